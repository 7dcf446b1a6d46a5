"""The models that a run asks: where they are served, their share of the limits, and clients of single ones."""

import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, replace
from typing import Any

from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.config.tools import EvaluationOffer, MenuRule
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.prices import MissingPrice
from orchestra_jax.money.replay import Replay
from orchestra_jax.processes import Processes
from orchestra_jax.tools.base import unreachable
from orchestra_jax.tools.catalogue import models_of
from orchestra_jax.tools.experts.cards import api_fields
from orchestra_jax.tools.experts.client import ExpertClient, expert_clients
from orchestra_jax.tools.experts.expert import Expert, read_experts
from orchestra_jax.tools.experts.judge import Judge

_NOWHERE = "http://replayed.invalid/v1"  # address of experts that are only replayed
Close = Callable[[], Coroutine[Any, Any, None]]


def run_experts(cfg: WorldConfig) -> list[Expert]:
    """Return every model that plays a role or judges: as tools.experts_file has it, else served at tools.server.

    A server's limits on requests hold for the run: each of its processes has a share.

    Raises:
        ValueError: one of them has no server.
        FileNotFoundError: no such file.
    """
    processes, tools = _processes(), cfg.tools.opened
    known = {expert.name: expert for expert in (read_experts(tools.experts_file) if tools.experts_file else ())}
    url = tools.server.url or (_NOWHERE if cfg.replay.mode is ReplayMode.replay else None)
    options = {key: value for key, value in asdict(tools.server).items() if key != "url" and value is not None}
    experts = []
    for name in models_of(tools):
        if name in known:
            expert = known[name]
        elif url is not None:
            expert = Expert(name=name, model=name, base_url=url, **{**api_fields(name), **options})
        else:
            raise ValueError(
                f"There is no server for {name!r}: set tools.server.url=http://HOST:PORT/v1, or name it in "
                "tools.experts_file."
            )
        rate = expert.requests_per_minute
        share = processes.share(expert.concurrency)
        experts.append(replace(expert, concurrency=share, requests_per_minute=rate and rate / processes.count))
    return experts


def _processes() -> Processes:
    if "jax" not in sys.modules:  # a dry run: nobody has joined a run of several, and JAX takes seconds to load
        return Processes()
    from orchestra_jax.processes import several

    return several.processes_of_run()


def named_experts(cfg: WorldConfig, names: Sequence[str]) -> list[Expert]:
    """Return these models as `run_experts` has them, each once, whatever the menus offer.

    Raises:
        ValueError, FileNotFoundError: see `run_experts`.
    """
    alone = replace(
        cfg.tools, experts={"any": list(names)}, names=[], judge="match", menu=MenuRule(), evaluation=EvaluationOffer()
    )
    return run_experts(replace(cfg, tools=alone))


def model_client(cfg: WorldConfig, name: str, role: str) -> tuple[ExpertClient, Close]:
    """Return the client of one model without any tool, and the function that ends it once its requests are paid.

    Args:
        cfg: settings of the run; the model is served as its experts are.
        role: "judge" or "user", for sentences.

    Raises:
        ConfigError: one sentence for what it lacks.
    """
    asks = cfg.replay.mode is not ReplayMode.replay
    try:
        book, (expert,) = price_book(cfg), named_experts(cfg, [name])
        replay = Replay(cfg.replay.path, cfg.replay.mode)
        client = expert_clients([expert], book.base, replay=replay)[name]
        if asks:
            client.check()
    except (OSError, ValueError, ImportError, MissingPrice) as error:
        raise ConfigError(str(error)) from error
    if asks and not cfg.evaluation.dry_run and (problems := unreachable(f"the {role} {name!r}", expert.base_url)):
        replay.close()
        raise ConfigError("\n".join(problems))

    async def close() -> None:
        try:
            await client.close()
            await replay.drain()
        finally:
            replay.close()

    return client, close


def make_judge(cfg: WorldConfig) -> tuple[Judge, Close]:
    """Return the judge without any other tool, and the function that ends it, as `model_client` does.

    Raises:
        ConfigError: nobody judges, or one sentence for what it lacks.
    """
    if cfg.tools.judge == "match":
        raise ConfigError("tools.judge=match asks nobody: set tools.judge to a model of the price list.")
    client, close = model_client(cfg, cfg.tools.judge, "judge")
    return Judge(client), close
