"""One training run from its configuration: checks, parts, warm start, policy steps, report."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax

from orchestra_jax.config.record import RunRecord, Start
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.registry import environment_class, make_environment
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.run_budget import Halted, RunBudget
from orchestra_jax.processes import Processes, joined
from orchestra_jax.processes.lock import alone_in
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.training.build import keep_compiled, preflight
from orchestra_jax.training.checkpoint_names import in_bucket
from orchestra_jax.training.guard import guarded
from orchestra_jax.training.loggers.base import RunLog, chosen
from orchestra_jax.training.stopping import Interrupted, end_now, handling
from orchestra_jax.training.summary import report, summary
from orchestra_jax.training.trainer import Trainer
from orchestra_jax.training.warm_start import warm_start

STOPS = (Halted, Interrupted)  # the run may go on from where these ended it


@contextmanager
def exit_status(processes: Processes | None = None, **places: str | None) -> Iterator[None]:
    """End the process with one sentence instead of a stack trace, if the user can mend what happened, or wanted it.

    Args:
        processes: of the run; only the first tells what ends all of them.
        places: `folder` of the run, `calls`, its file of recorded calls, and `checkpoints`, its checkpoint.folder.

    Raises:
        SystemExit: with a status of docs/reliability.md, after a sentence for each thing that is to be mended.
    """
    try:
        with handling(end_now):
            yield
    except (KeyboardInterrupt, Exception) as error:
        from orchestra_jax.training.endings import status_of

        if (status := status_of(error, processes, **places)) is None:
            raise
        raise SystemExit(status) from None


@contextmanager
def working_in(folder: Path, processes: Processes, checkpoints: str | None = None) -> Iterator[None]:
    """Make the folder, and one of the run's checkpoints elsewhere, and keep every other run out of both.

    Raises:
        ConfigError: another run is at work in one of them.
    """
    elsewhere = Path(checkpoints) if checkpoints and not in_bucket(checkpoints) else folder
    places = {elsewhere.absolute(): "checkpoint.folder", folder.absolute(): "name"}
    with ExitStack() as held:
        with processes.together():
            for place, setting in reversed(places.items()) if processes.first else ():
                place.mkdir(parents=True, exist_ok=True)
                held.enter_context(alone_in(place, setting=setting))
        yield


def run(cfg: RunConfig, opening: str = "", start: Start | None = None) -> None:
    """Train until `cfg.steps`, or continue the run in the same folder; write its summary and pictures.

    Args:
        opening: text that the first process prints before anything else.
        start: command line for run.json; None: this process's.

    Raises:
        SystemExit: see `exit_status`.
    """
    directory = Path(cfg.output_dir)
    with (
        exit_status(),
        joined(cfg.mesh) as processes,
        exit_status(processes, folder=cfg.output_dir, calls=cfg.replay.path, checkpoints=cfg.checkpoint.folder),
        RunRecord(directory, cfg, "train", start, stops=STOPS, writes=processes.first) as record,
        ExitStack() as parts,
    ):
        if opening:
            print(opening, flush=True)
        with processes.together():  # a run that cannot start leaves no folder
            keep_compiled(cfg)
            preflight(cfg, processes)
            chosen(cfg)
        if processes.count > processes.beside:
            from orchestra_jax.training.prerequisites import refuse_shared_record

            refuse_shared_record(cfg.replay, processes)
        parts.enter_context(working_in(directory, processes, cfg.checkpoint.folder))
        with processes.together():
            chat, environment = make_chat(cfg), make_environment(cfg)
            _print_forecast(cfg)
            money = RunBudget(cfg.budget, directory, processes)
        loop = LoopThread()
        parts.enter_context(guarded(directory, loop, cfg.rollout.limits.deadline_s, cfg.checkpoint.grace_s))
        parts.enter_context(loop)
        parts.callback(money.close)
        tools = parts.enter_context(ExitStack())
        tools.callback(lambda: loop.run(environment.close()))
        trainer = Trainer(cfg, environment, chat, money, loop, processes)
        if cfg.profile.steps:
            from orchestra_jax.training.profiling import trace_steps

            trace_steps(trainer)
        state, origin = trainer.state, trainer.origin
        if origin is not None and processes.first:
            print(f"Continues from {origin} (step {state.step} of {state.phase}).", flush=True)
        with processes.together():
            parents = list[dict[str, Any]]()
            if cfg.model.path or cfg.model.lora.path:
                from orchestra_jax.config.parents import parents_of

                parents = parents_of(cfg.model)
            record.begin(origin=origin.name if origin else None, parents=parents, devices=device_names())
        first = trainer.next_step - ("unmeasured" in state.notes)  # that step is logged anew
        with trainer.running(), RunLog(cfg, first, writes=processes.first) as log:
            if state.phase == "warm_start":
                if trainer.warm is not None:
                    warm_start(trainer, trainer.warm, environment)
                trainer.begin_policy_phase()
            trainer.optimise(log)
            state.notes["after"] = trainer.evaluate("after") if state.step else state.notes["before"]
            if cfg.checkpoint.export:
                trainer.export(chat.tokenizer)
            found = summary(trainer)
        tools.close()
        found["spent"] = money.summary()  # now no request is under way, and the bill is known
        if processes.first:
            report(found, directory)


def device_names() -> list[str]:
    """Return the kind of each device of this process."""
    return [device.device_kind for device in jax.local_devices()]


def _print_forecast(cfg: RunConfig) -> None:
    """Print what is told before a run begins: the environment's own sentences, and what a step will cost."""
    told = [environment_class(cfg).forecast(cfg)]
    if cfg.env.name != "quickstart":  # whose tools and judge cost nothing
        from orchestra_jax.money.run_prices import paid_prices
        from orchestra_jax.training.forecast import dry_run

        told.append(dry_run(cfg, paid_prices(cfg.pricing)))
    for sentence in filter(None, told):
        print(sentence, flush=True)
