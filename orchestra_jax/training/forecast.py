"""Dry runs: the cost of a training step or of an evaluation, told before a dollar is spent; nothing here loads JAX."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.config.missing_policy import missing_to_evaluate
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.envs.base import DO_NOTHING, EXPERT, RANDOM, Environment
from orchestra_jax.envs.registry import environment_class, make_environment
from orchestra_jax.envs.users import SCRIPTED
from orchestra_jax.evaluation.benchmarks import HELD_OUT, chosen_tasks, in_parts
from orchestra_jax.money.forecast import call_costs, evaluation_cost, verdict_usd
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.prices import MissingPrice, PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.training.subject import Subject, script_of, subject_of
from orchestra_jax.types import Task


@dataclass(frozen=True)
class StepCost:
    """Dollars of one step for calls outside.

    Attributes:
        trajectories: number of trajectories of the step.
        calls: dollars for calls of experts and other paid tools at random.
        judge: dollars for one verdict a trajectory.
        dearest: name of the tool that costs most; empty: only the judge is paid.
        alone: dollars if all calls are its, and the judge's.
    """

    trajectories: int
    calls: float
    judge: float
    dearest: str
    alone: float

    @property
    def total(self) -> float:
        """Dollars for calls at random and the judge."""
        return self.calls + self.judge


def step_cost(cfg: RunConfig, prices: PriceList) -> StepCost | None:
    """Return the dollars of a step, or None if no call is paid for, as where kept trajectories are trained on.

    Assumes that each trajectory makes plan.calls calls of paid tools, and one of the judge.
    """
    offered = call_costs(cfg, cfg.tools, prices)
    trajectories = cfg.algorithm.tasks_per_step * cfg.algorithm.group_size
    judge = trajectories * verdict_usd(cfg, prices)
    if not (offered or judge) or hasattr(environment_class(cfg), "rollout_source"):
        return None
    if not offered:
        return StepCost(trajectories, 0.0, judge, "", judge)
    calls, (model, role) = cfg.plan.calls * trajectories, max(offered, key=offered.__getitem__)
    dearest, alone = f"{model} as {role}" if role else model, calls * offered[model, role] + judge
    return StepCost(trajectories, calls * sum(offered.values()) / len(offered), judge, dearest, alone)


def evaluations_usd(cfg: RunConfig, prices: PriceList) -> float:
    """Return the dollars of a run's evaluations on held-out questions: before, after and every evaluation.every steps.

    Assumes that each answer makes plan.calls calls of paid tools at random, and one of the judge.
    """
    settings, costs = cfg.evaluation, call_costs(cfg, cfg.tools.evaluated, prices)
    times = 2 + ((cfg.steps - 1) // settings.every if settings.every else 0)
    samples = settings.samples + bool(settings.greedy and settings.temperature)
    each = cfg.plan.calls * sum(costs.values()) / max(1, len(costs)) + verdict_usd(cfg, prices)
    return times * samples * each * (settings.questions if HELD_OUT in settings.benchmarks else 0)


def dry_run(cfg: RunConfig, prices: PriceList) -> str | None:
    """Return a sentence about what a step will cost outside, or None if nothing is paid for."""
    if (cost := step_cost(cfg, prices)) is None:
        return None
    if cfg.replay.mode == "replay":
        return "Dry run: all outside calls are replayed and cost nothing."
    plan, limit = cfg.plan, cfg.budget.run_usd
    more = f" (with algorithm.refill up to {cfg.algorithm.refill + 1} times that)" if cfg.algorithm.refill else ""
    end = "no budget.run_usd is set" if limit is None else f"budget.run_usd={limit:g} ends the run"
    calls, which = "a verdict", " for the judge"
    if cost.dearest:
        calls = f"{plan.calls} call{'s' * (plan.calls != 1)}"
        which = f" with calls at random, ${cost.alone:.2f} with {cost.dearest} alone"
    return (
        f"Dry run: with {calls} of {plan.call_input} + {plan.call_output} tokens per trajectory a step of "
        f"{cost.trajectories} trajectories costs about ${cost.total:.2f}{which}, and {cfg.steps} steps "
        f"${cost.total * cfg.steps:.2f}{more}, evaluations ${evaluations_usd(cfg, prices):.2f} besides; {end}."
    )


def forecast(cfg: RunConfig) -> str | None:
    """Return what is told before a run begins: the environment's own sentences, and what a step will cost."""
    told = environment_class(cfg).forecast(cfg), dry_run(cfg, price_book(cfg).base)
    return "\n".join(filter(None, told)) or None


def dry_run_evaluation(cfg: RunConfig) -> None:
    """Print what an evaluation will cost. No weights or indices are read, nothing is kept and nobody asked.

    Raises:
        ConfigError: something is missing; one sentence for each thing.
    """
    require_benchmarks(cfg)
    subject = subject_of(cfg)
    with asking_nobody(subject.cfg) as silent:
        lacking = [*missing_to_evaluate(silent), *environment_class(silent).problems(silent)]
        if lacking:
            raise ConfigError("\n".join(dict.fromkeys(lacking)))
        environment = make_environment(silent)
        try:
            if subject.baseline is not None:
                script_of(subject, environment)
            told = evaluation_forecast(subject.cfg, environment, subject)
            print(told or "Dry run: nothing is paid for outside.", flush=True)
        finally:
            asyncio.run(environment.close())


@contextmanager
def asking_nobody(cfg: RunConfig) -> Iterator[RunConfig]:
    """Yield settings whose tools open nothing and need no key: all calls would come from a record, which is empty.

    MCP servers are started all the same, because they alone know their tools.
    """
    if cfg.tools.opened.mcp:
        yield replace(cfg, replay=replace(cfg.replay, mode=ReplayMode.off))
        return
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "calls.db")
        Replay(record, ReplayMode.replay_or_record).close()  # makes the file
        yield replace(cfg, replay=replace(cfg.replay, mode=ReplayMode.replay, path=str(record)))


def require_benchmarks(cfg: RunConfig) -> None:
    """Raise ConfigError if there is nothing to evaluate on."""
    if not (cfg.evaluation.questions and cfg.evaluation.benchmarks):
        raise ConfigError("There is nothing to evaluate on: set evaluation.benchmarks and evaluation.questions.")


def evaluation_forecast(cfg: RunConfig, environment: Environment, subject: Subject) -> str | None:
    """Return a sentence about what an evaluation will pay outside, or None if nothing.

    Raises:
        ConfigError: there is no price list, or it lacks a price.
    """
    found = {
        name: list(chain.from_iterable(in_parts(name, some).values()))
        for name, some in chosen_tasks(environment, cfg).items()
    }
    name = subject.baseline or ""
    calls = {DO_NOTHING: 0, RANDOM: 1}.get(name, 1 if name.startswith(EXPERT) else None)
    asked = [name.removeprefix(EXPERT)] if name.startswith(EXPERT) else None
    if subject.baseline is not None:  # a script says the same each time
        cfg = replace(cfg, evaluation=replace(cfg.evaluation, samples=1, greedy=False))
    counts, users = {name: len(tasks) for name, tasks in found.items()}, _users(cfg, environment, found)
    try:
        prices, paid = price_book(cfg).base, subject.url is not None
        return evaluation_cost(cfg, prices, counts, paid_policy=paid, asked=asked, calls=calls, users=users)
    except (OSError, ValueError, MissingPrice) as error:
        raise ConfigError(str(error)) from error


def _users(cfg: RunConfig, environment: Environment, found: Mapping[str, list[Task]]) -> dict[str, int]:
    """Return how many conversations each model plays the user of: the policy's, and those of the rows beside it."""
    settings, scripts = cfg.evaluation, environment.baselines()
    samples, users = settings.samples + bool(settings.greedy and settings.temperature), Counter[str]()
    for name, tasks in found.items():
        beside = len(scripts.keys() - {DO_NOTHING}) if name == HELD_OUT else 0
        for task in tasks:
            # A part of a mixture has options of its own.
            options = cfg.env.options.get(str(task.extra.get("part"))) or cfg.env.options
            users[options.get("user", SCRIPTED)] += samples + beside + (DO_NOTHING in scripts)
    return {str(model): number for model, number in users.items() if model != SCRIPTED}
