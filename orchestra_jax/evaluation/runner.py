"""Evaluation of a policy on its benchmarks: at temperature 1 and greedy, by parts, and beside baselines."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.engines.base import Engine
from orchestra_jax.envs.base import DO_NOTHING, EXPERT, Baseline, Environment, Script, do_nothing
from orchestra_jax.evaluation.benchmarks import BENCHMARKS, HELD_OUT, Tasks
from orchestra_jax.evaluation.calls import model_figures, several_figures
from orchestra_jax.evaluation.measures import (
    intervals,
    local_share,
    preference_utility,
    questions,
    summarize,
    tool_shares,
)
from orchestra_jax.evaluation.trajectory_files import TrajectoryFile
from orchestra_jax.money.budgets import Budget
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.collector import Collector, share_all
from orchestra_jax.types import Status, Task, Trajectory

if TYPE_CHECKING:  # loaded when they are there
    from orchestra_jax.evaluation.turn_caps import TurnCaps
    from orchestra_jax.rollout.messages import MessageEngine


def chosen_tasks(environment: Environment, cfg: WorldConfig) -> dict[str, Tasks]:
    """Return the tasks of evaluation.benchmarks by name, the first evaluation.limit of each.

    Raises:
        ConfigError: there is no benchmark of a name.
    """
    limit, found = cfg.evaluation.limit, dict[str, Tasks]()
    for name in cfg.evaluation.benchmarks if cfg.evaluation.questions else []:
        tasks = BENCHMARKS.get(name)(environment, cfg)
        if isinstance(tasks, Mapping):
            found[name] = {part: some[:limit] for part, some in tasks.items()}
        elif len(tasks):
            found[name] = tasks[:limit]
    return {name: tasks for name, tasks in found.items() if len(tasks)}


def in_parts(name: str, tasks: Tasks) -> dict[str, Sequence[Task]]:
    """Return the parts of a benchmark by their names in files; one without parts is its only part."""
    return {f"{name}.{part}": some for part, some in tasks.items()} if isinstance(tasks, Mapping) else {name: tasks}


@dataclass(frozen=True)
class _Player:
    """A policy or script under evaluation.

    Attributes:
        folder: of its trajectories.
        identity: tells its weights from others'; None: earlier trajectories are not taken over.
        model: the name of the policy's own model, if it is known.
        caps: of turns, if there are any.
    """

    engine: "Engine | MessageEngine | Baseline"
    folder: str
    identity: str | None = None
    model: str | None = None
    caps: "TurnCaps | None" = None


@dataclass(frozen=True)
class _Work:
    """Samples of tasks to play; `name` is that of the benchmark or its part."""

    name: str
    tasks: Sequence[Task]
    temperature: float
    samples: int
    player: _Player


class Evaluator:
    """Measures the policy of an engine, or a script, on fixed tasks of the collector's environment.

    Args:
        cfg: the settings of evaluation, reward and rollout limits, and all that a benchmark may ask for.
        collector: plays the tasks, under `TurnCaps.widest` if the evaluation has caps of turns.
        engine: the policy, or a script.
        budget: of the run; it pays for everything.
        directory: for the trajectories; None: they are not kept.
        processes: each plays its share of the tasks, keeps it in a file of its own, and has the figures of all.

    Attributes:
        benchmarks: tasks by benchmark; by part, where it has parts. Empty with evaluation.questions=0.
        disagreements: of a judge and exact match so far, with the benchmark's name.

    Raises:
        ConfigError: there is no benchmark of a name in evaluation.benchmarks.
    """

    def __init__(
        self,
        cfg: WorldConfig,
        collector: Collector,
        engine: "Engine | MessageEngine | Baseline",
        budget: Budget,
        directory: Path | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.cfg, self.collector, self.engine, self._budget = cfg, collector, engine, budget
        self._directory, self._processes = directory, processes or Processes()
        self._environment = collector.environment
        self.benchmarks = chosen_tasks(self._environment, cfg)
        self.disagreements: list[dict[str, Any]] = []
        scripts = dict(self._environment.baselines())
        self._silence = Baseline(DO_NOTHING, scripts.pop(DO_NOTHING, do_nothing))
        self._experts = {name: scripts.pop(name) for name in list(scripts) if name.startswith(EXPERT)}
        self._scripts = scripts
        self._baseline_runs: dict[str, list[Trajectory]] | None = None

    async def evaluate(
        self,
        when: str = "policy",
        identity: str | None = None,
        policy_model: str | None = None,
        caps: "TurnCaps | None" = None,
    ) -> dict[str, dict[str, Any]]:
        """Return the figures of the policy by benchmark. Every evaluation samples alike.

        Args:
            when: names the folder of the trajectories.
            identity: tells the policy's weights from others: trajectories that an earlier evaluation of them left are
                taken over, unless they failed; None: all are made.
            policy_model: the name of the model that the policy is made from, for `own_share`.
            caps: of turns, for figures under each.

        Returns:
            For each benchmark the figures of `measures.summarize` over evaluation.samples samples of each question,
            of `pass_figures`, `model_figures` and `several_figures`, `utility` (on the held-out tasks), `intervals`,
            `tool_shares`, `turn_caps` (with caps) and `greedy` (figures of one sample at temperature 0, where
            configured). A benchmark with parts has for each part `local_share`, but not `several`, `tool_shares` and
            `greedy`.
        """
        assert caps is None or self.collector.limits == caps.widest
        settings, found = self.cfg.evaluation, dict[str, dict[str, Any]]()
        player = _Player(self.engine, re.sub(r"[^\w-]+", "-", when), identity, policy_model, caps)
        is_script = isinstance(self.engine, Baseline)  # a script says the same each time
        asked = settings.temperature, 1 if is_script else settings.samples, player
        for name, tasks in self.benchmarks.items():
            if isinstance(tasks, Mapping):
                work = {part: _Work(f"{name}.{part}", some, *asked) for part, some in tasks.items()}
                found[name] = {part: await self._figures(each, is_part=True) for part, each in work.items()}
                continue
            found[name] = await self._figures(_Work(name, tasks, *asked))
            if settings.greedy and settings.temperature and not is_script:
                found[name]["greedy"] = await self._figures(_Work(name, tasks, 0.0, 1, player))
        return found

    async def baselines(self) -> dict[str, dict[str, float | None]]:
        """Return the figures of every baseline on the held-out tasks, and of doing nothing on every benchmark.

        That one is called "do_nothing" on the held-out tasks and "do_nothing on BENCHMARK" on others, where a benchmark
        with parts is one; its trajectories are kept as a policy's are. An expert alone is played where it is offered.
        """
        runs = await self._runs()
        found = {name: summarize(run) | self._utility(run, runs) for name, run in runs.items()}
        held_out = self.benchmarks.get(HELD_OUT, ())
        assert not isinstance(held_out, Mapping)
        for name, script in self._experts.items():
            model = name.removeprefix(EXPERT)
            offered = [task for task in held_out if model in [each.name for each in self._environment.experts(task)]]
            if offered:
                found[name] = summarize(await self._play(script, offered))
        silent = _Player(self._silence, DO_NOTHING, DO_NOTHING)
        for name, tasks in self.benchmarks.items():
            run = []
            for part, some in in_parts(name, tasks).items():
                run += await self._collect(_Work(part, some, self.cfg.evaluation.temperature, 1, silent))
            utility = self._utility(run, runs) if name == HELD_OUT else {}
            found[DO_NOTHING if name == HELD_OUT else f"{DO_NOTHING} on {name}"] = summarize(run) | utility
        return found

    async def _figures(self, work: _Work, *, is_part: bool = False) -> dict[str, Any]:
        played, caps = await self._collect(work), work.player.caps
        run, samples = caps.proper(played) if caps else played, work.samples
        found: dict[str, Any] = summarize(run)
        if is_part:
            found["local_share"] = local_share(run)
        found |= _passes(run, samples) | model_figures(run, work.player.model)
        if not is_part:
            found |= several_figures(run)
        if work.name == HELD_OUT:
            found |= self._utility(run, await self._runs(), samples)
        found["intervals"] = intervals(run, samples)
        if not is_part:
            found["tool_shares"] = tool_shares(run)
        return found | (caps.figures(played, samples) if caps else {})

    async def _collect(self, work: _Work) -> list[Trajectory]:
        """Return the samples of each task, side by side."""
        run = await share_all(self._processes, self._played(work))
        if any(row.role == "judge" for trajectory in run for row in trajectory.ledger):
            from orchestra_jax.evaluation.judged import disagreements  # only where there is a judge

            self.disagreements += [{"benchmark": work.name, **found} for found in disagreements(run)]
        return run

    async def _played(self, work: _Work) -> list[Trajectory]:
        """Return this process's share of the trajectories; play those that no earlier evaluation left."""
        own = self._processes.mine([(n, sample) for n in range(len(work.tasks)) for sample in range(work.samples)])
        shorter = self._files(work)
        file = shorter.pop(self.collector.limits, None)
        found = dict(file.found) if file else {}
        if shorter and file:
            from orchestra_jax.evaluation.turn_caps import cut, ended_by  # only where there are caps

            for limits, other in shorter.items():
                for place, trajectory in other.found.items():
                    if place not in found and not ended_by(trajectory, limits):
                        found[place] = trajectory
                        file.add(trajectory)
        missing, player = [place for place in own if place not in found], work.player.engine
        todo = [work.tasks[number] for number, _ in missing]
        options: dict[str, Any] = {"budget": self._budget, "on_done": file.add if file else None}
        options["numbers"] = [number for number, _ in missing]
        if isinstance(player, Baseline):
            made = await self.collector.play(player.script, todo, silent=player.silent, **options)
        else:
            options |= {"members": [sample for _, sample in missing], "seed": (self.cfg.evaluation.seed,)}
            made = await self.collector.collect(player, todo, temperature=work.temperature, **options)
        found |= zip(missing, made, strict=True)
        for limits, other in shorter.items():
            for place in own:
                if place not in other.found:
                    other.add(cut(found[place], limits))
        return [found[place] for place in own]

    def _files(self, work: _Work) -> dict[RolloutLimits, TrajectoryFile]:
        """Open the file of the trajectories under each of the limits; none without a directory."""
        if self._directory is None:
            return {}
        player, limits_played = work.player, self.collector.limits
        folders = player.caps.folders(player.folder) if player.caps else {limits_played: player.folder}
        part = f".p{self._processes.index}" if self._processes.index else ""  # 0.7 alone is a temperature
        name = re.sub(r"[^\w.-]+", "-", f"{work.name}.t{work.temperature:g}{part}.jsonl")
        model = None if isinstance(player.engine, Baseline) else player.model
        found = {}
        for limits, folder in folders.items():
            sampling = f"{player.identity} {work.temperature} {self.cfg.evaluation.seed} {limits}"
            policy = sampling if player.identity else player.identity
            found[limits] = TrajectoryFile(self._directory / folder / name, policy, work.tasks, work.samples, model)
        return found

    async def _runs(self) -> dict[str, list[Trajectory]]:
        """Return the baselines' trajectories on the held-out tasks, which are played once."""
        if self._baseline_runs is None:
            tasks = self.benchmarks.get(HELD_OUT, ())
            assert not isinstance(tasks, Mapping)
            self._baseline_runs = {
                name: await self._play(script, tasks) for name, script in self._scripts.items() if tasks
            }
        return self._baseline_runs

    async def _play(self, script: Script, tasks: Sequence[Task]) -> list[Trajectory]:
        silent = self._environment.silent_baselines
        own = self._processes.mine(tasks)
        return await share_all(self._processes, self.collector.play(script, own, budget=self._budget, silent=silent))

    def _utility(
        self, run: list[Trajectory], baselines: Mapping[str, list[Trajectory]], samples: int = 1
    ) -> dict[str, float | None]:
        """Return the mean over the samples that did not fail for infrastructure reasons; None where all did."""
        if not baselines:
            return {}
        runs = [run[sample::samples] for sample in range(samples)]
        found = preference_utility(runs, list(baselines.values()), self.cfg.reward.tool_feature)
        counts = np.array([[t.status is not Status.FAILED for t in some] for some in runs])
        return {"utility": float(np.mean(found[counts])) if counts.any() else None}


def _passes(run: Sequence[Trajectory], samples: int) -> dict[str, Any]:
    if samples == 1:
        return {}
    from orchestra_jax.evaluation.pass_at_k import pass_figures  # only for several samples

    return pass_figures([(len(some), sum(t.solved for t in some)) for some in questions(run, samples)], samples)
