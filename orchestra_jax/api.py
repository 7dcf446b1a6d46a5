"""The public functions that are more than a name of another room: open a finished run, and play one trajectory."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestra_jax.config import record
from orchestra_jax.config.compose import recorded_config
from orchestra_jax.config.schema import POLICY_FOLDER, ConfigError, RunConfig
from orchestra_jax.envs.base import Environment, Script
from orchestra_jax.envs.baselines import Baseline, baseline
from orchestra_jax.envs.registry import environment_class, make_environment
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.run_budget import limits
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.training.build import make_collector
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.types import Task, ToolCall, ToolResult, Trajectory


@dataclass(frozen=True)
class LoadedRun:
    """A run's folder, opened.

    Attributes:
        folder: the run's folder.
        config: its settings.
        record: run.json: who started it, when, with which commit and packages.
        summary: summary.json, {} before the run has ended.
        metrics: the rows of metrics.jsonl, one per training step.
        policy: folder of the exported policy, None before there is one.
    """

    folder: Path
    config: RunConfig
    record: Mapping[str, Any]
    summary: Mapping[str, Any]
    metrics: list[dict[str, float]]
    policy: Path | None


def load_run(folder: str | Path) -> LoadedRun:
    """Open a run's folder, also of one that still trains.

    Examples:
        >>> run = load_run("outputs/quickstart")  # doctest: +SKIP
        >>> run.config.seed, run.metrics[-1]["accuracy"], run.policy  # doctest: +SKIP
        (0, 0.97, PosixPath('outputs/quickstart/policy'))

    Raises:
        FileNotFoundError: the folder holds no run.
        ConfigError, omegaconf.errors.OmegaConfBaseException: another version wrote it.
    """
    folder = Path(folder)
    if not folder.is_dir() or (found := record.read(folder)) is None:
        raise FileNotFoundError(f"{str(folder)!r} holds no run: a run's folder has {record.FILE_NAME} in it.")
    summary, metrics, policy = folder / "summary.json", folder / "metrics.jsonl", folder / POLICY_FOLDER
    return LoadedRun(
        folder,
        replace(recorded_config(found["config"]), output_dir=str(folder)),
        found,
        json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else {},
        read_metrics(metrics) if metrics.is_file() else [],
        policy if policy.is_dir() else None,
    )


def play(where: RunConfig | Environment, policy: str | Path | Script, task: Task | None = None) -> Trajectory:
    """Play one task with one policy and return the trajectory: turns, calls, results, answer, cost and latency.

    Examples:
        >>> from orchestra_jax.config.compose import compose
        >>> found = play(compose("seed=1"), "preference_oracle")
        >>> found.solved, found.tool_names
        (True, ['python'])
        >>> play(compose("seed=1"), lambda task, results: "42").answer
        '42'

    Args:
        where: the config of an environment (`compose`, `load_run(...).config`), or an environment that is open.
        policy: a baseline's name, such as "preference_oracle" or "do_nothing"; a script, which takes the task and the
            results so far and returns a call or the answer, and whose words cost nothing; or the folder of a run or
            checkpoint, a hub id or an address, whose answers are greedy.
        task: the task to play, such as one of `environment.held_out(8)`; None: the first held-out one.

    Raises:
        TypeError: `where` is neither, `task` is no `Task`, or the script returns neither a call nor a text.
        ConfigError: there is no such policy, or the environment lacks something.
        BudgetExceeded: a call could cost more than the config's budget.run_usd leaves; each call of `play` has it anew.
    """
    if not isinstance(where, RunConfig | Environment):
        raise TypeError(f"play takes a config (compose(...)) or an open environment first, not {where!r}.")
    if not isinstance(task, Task | None):
        raise TypeError(f"The task must be a Task, such as environment.held_out(1)[0], not {task!r}.")
    cfg = where if isinstance(where, RunConfig) else RunConfig()
    budget = Budget(limits(cfg.budget, "run"), name="run")
    environment = make_environment(cfg) if isinstance(where, RunConfig) else where
    with LoopThread() as loop, tempfile.TemporaryDirectory() as scratch:
        try:
            task = environment.held_out(1)[0] if task is None else task
            script = _script(environment, policy, task, cfg)
            if script is None:
                return _sampled(cfg, environment, str(policy), task, loop, budget, Path(scratch))
            own = isinstance(where, RunConfig) and environment_class(cfg).chat(cfg) is not None
            words = replace(cfg, model=replace(cfg.model, tokenizer="environment"))
            collector = make_collector(cfg, environment, make_chat(words) if own else None)
            playing = collector.play(script.script, [task], budget=budget, silent=script.silent)
            return loop.run(playing)[0]
        finally:
            if isinstance(where, RunConfig):
                loop.run(environment.close())


def _script(environment: Environment, policy: str | Path | Script, task: Task, cfg: RunConfig) -> Baseline | None:
    """Return the script that `policy` is or names, or None where it names a model."""
    if callable(policy):
        return Baseline("script", partial(_said, policy))
    name, limits = str(policy).removeprefix("baseline:"), cfg.rollout.limits
    if Path(name).is_dir() or name.startswith(("http://", "https://")):
        return None
    try:
        # The answer is a turn of its own.
        return baseline(environment, name, [task], min(limits.max_calls, limits.max_turns - 1))
    except ConfigError:
        from orchestra_jax.io import hub

        if hub.is_id(name):
            return None
        raise


def _said(script: Script, task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    """Return what a script says, if it is a call or a text."""
    if not isinstance(found := script(task, results), ToolCall | str):
        raise TypeError(f"The script must return a ToolCall or the answer as a text, not {found!r}.")
    return found


def _sampled(
    cfg: RunConfig, environment: Environment, policy: str, task: Task, loop: LoopThread, budget: Budget, scratch: Path
) -> Trajectory:
    """Return the trajectory of a model that our engines, or an endpoint, sample."""
    from orchestra_jax.training.evaluate import engine_of
    from orchestra_jax.training.subject import subject_of

    subject = subject_of(replace(cfg, policy=policy))
    cfg = subject.cfg
    chat = make_chat(cfg) if subject.own else None
    collector = make_collector(cfg, environment, chat)
    with engine_of(subject, environment, scratch, Processes(), loop, chat) as engine:
        assert not isinstance(engine, Baseline)
        return loop.run(collector.collect(engine, [task], budget=budget, temperature=0.0))[0]
