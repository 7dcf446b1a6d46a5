"""One synthesis from its configuration: checks, models, stages, and the files that are left."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

from orchestra_jax.config.choices import ReplayMode, SynthesisTarget
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.config.synthesis import SynthesisConfig
from orchestra_jax.envs.database.workers.pool import WorldError
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.forecast import call_usd
from orchestra_jax.money.paid import MissingKey
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.prices import MissingPrice
from orchestra_jax.money.replay import Replay
from orchestra_jax.money.run_budget import Halted, RunBudget
from orchestra_jax.processes.lock import alone_in
from orchestra_jax.synthesis import wordings
from orchestra_jax.synthesis.cast import Cast, make_cast
from orchestra_jax.synthesis.stages import Stages
from orchestra_jax.synthesis.worlds.make import make as make_world
from orchestra_jax.tools.python.isolation import IsolationError
from orchestra_jax.training.loggers.progress import ProgressBar
from orchestra_jax.types import InfrastructureError

STAGES = "stages"
_UNDER_WAY = 16  # items of a stage at once
_DOMAIN = re.compile(r"[a-z][a-z0-9_-]{0,40}")
# Writes the files into a folder; returns a sentence on them, and whether there is anything to use.
Make = Callable[[WorldConfig, SynthesisConfig, Path, Stages, Cast], Awaitable[tuple[str, bool]]]


def synthesize(cfg: WorldConfig, settings: SynthesisConfig) -> bool:
    """Make a world's folder or a file of preferences in `cfg.output_dir`, or go on; return whether there is any.

    Raises:
        ConfigError: something cannot be used; one sentence.
        Halted: a budget, the record or a server ended it; the same command goes on.
    """
    folder = Path(cfg.output_dir)
    if not _DOMAIN.fullmatch(settings.domain):
        raise ConfigError(
            f"synthesis.domain={settings.domain} names a folder: take lower-case letters, digits, '-' and '_'."
        )
    if cfg.replay.mode is ReplayMode.off:
        raise ConfigError(
            "replay.mode=off would pay again for all that an interrupted synthesis has asked: set "
            "replay.mode=replay_or_record."
        )
    print(forecast(cfg, settings), flush=True)
    if cfg.evaluation.dry_run:
        return True
    (folder / STAGES).mkdir(parents=True, exist_ok=True)
    with alone_in(folder), LoopThread() as loop:
        money = RunBudget(cfg.budget, folder)
        try:
            told, made = loop.run(_run(cfg, settings, folder, money))
        finally:
            money.close()
    print(told, flush=True)
    return made


async def _run(cfg: WorldConfig, settings: SynthesisConfig, folder: Path, money: RunBudget) -> tuple[str, bool]:
    """Return what is printed at the end, and whether something was made."""
    make: Make = {SynthesisTarget.world: make_world, SynthesisTarget.preferences: wordings.make}[settings.make]
    try:
        replay = Replay(cfg.replay.path, cfg.replay.mode)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    bars = _Bars()
    try:
        cast = make_cast(cfg, settings, money.run, replay)
        stages = Stages(folder / STAGES, cast, {**asdict(settings), "seed": cfg.seed}, _UNDER_WAY, bars.show)
        try:
            told, made = await make(cfg, settings, folder, stages, cast)
        finally:
            await cast.close()
            await replay.drain()
    except (OSError, ValueError, ImportError, MissingPrice, MissingKey, IsolationError) as error:
        raise ConfigError(str(error)) from error
    except (InfrastructureError, WorldError) as error:  # the sandbox failed; a failure of a model ends its stage
        raise Halted(f"{error} The same command goes on.") from error
    finally:
        bars.close()
        replay.close()
    spent = money.run.spent
    money_told = f"{spent.calls} calls were paid with ${spent.usd:.4f}; {replay.replayed} came from the record."
    return f"{told} {money_told}", made


def forecast(cfg: WorldConfig, settings: SynthesisConfig) -> str:
    """Return a sentence on the number of requests and their cost; recorded answers cost nothing.

    Raises:
        ConfigError: a model has no price.
    """
    plan, asked = cfg.plan, _requests(settings)
    models = asdict(settings.models)
    prices = price_book(cfg).base
    try:
        usd = sum(count * call_usd(cfg, prices, models[role]) for role, count in asked.items())
    except MissingPrice as error:
        raise ConfigError(str(error)) from error
    most = cfg.budget.run_usd
    limit = "no budget.run_usd is set" if most is None else f"budget.run_usd={most:g} ends it"
    told = ", ".join(f"{role} ({models[role]}) {count:,}" for role, count in asked.items() if count)
    return (
        f"Requests, at most and without those asked again: {told}. They cost about ${usd:,.2f} ({plan.call_input} + "
        f"{plan.call_output} tokens each, less what is recorded); {limit}."
    )


def _requests(settings: SynthesisConfig) -> dict[str, int]:
    """Return the number of requests by role if nothing is rejected."""
    if settings.make is SynthesisTarget.preferences:
        return {"writer": settings.preferences, "checker": settings.preferences * wordings.WORDINGS}
    tasks = settings.subjects * settings.intents * settings.tasks
    return {
        "writer": 2 + settings.subjects * 2 + tasks,
        "checker": settings.subjects,
        "programmer": 1 + settings.functions,
        "evolver": tasks * settings.harder,
        "solver": tasks * (1 + settings.harder) * settings.attempts * 5,
    }


class _Bars:
    """A progress bar for the stage under way."""

    def __init__(self) -> None:
        self._bar: ProgressBar | None = None
        self._stage = ""

    def show(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self.close()
            self._stage = stage
            self._bar = ProgressBar(max(total, 1), phase=stage, every=max(1, total // 10)).__enter__()
        if self._bar is not None and done:
            self._bar.update(done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__()
            self._bar = None
