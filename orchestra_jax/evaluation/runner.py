"""A policy on its benchmarks: at temperature 1 and greedy, by parts, and beside baselines."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.engines.base import Engine
from orchestra_jax.envs.base import Environment, Script
from orchestra_jax.envs.baselines import DO_NOTHING, EXPERT, Baseline, do_nothing
from orchestra_jax.evaluation.benchmarks import BENCHMARKS, HELD_OUT, Tasks
from orchestra_jax.evaluation.calls import share_figures
from orchestra_jax.evaluation.measures import (
    by_part,
    disagreements,
    intervals,
    passes,
    preference_utility,
    summarize,
    tool_shares,
)
from orchestra_jax.evaluation.several import several_figures
from orchestra_jax.evaluation.trajectory_files import Kept
from orchestra_jax.evaluation.turn_caps import capped, cut, ended_by, widest
from orchestra_jax.money.budgets import Budget
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.sharing import play_all, share_all
from orchestra_jax.rollout.speakers import MessageEngine
from orchestra_jax.types import Status, Task, Trajectory


def chosen_tasks(environment: Environment, cfg: WorldConfig) -> dict[str, Tasks]:
    """The tasks of evaluation.benchmarks by name, where there are any, the first evaluation.limit of each.

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
    """The parts of a benchmark, by their names in files; where it has none, itself."""
    return {f"{name}.{part}": some for part, some in tasks.items()} if isinstance(tasks, Mapping) else {name: tasks}


class Evaluator:
    """Measures the policy that the engine holds, or a script, on fixed tasks of the environment; `budget`, of the run,
    pays for it.

    Trajectories are kept in `directory`, if there is one. Each of `processes` plays its share of the tasks, keeps what
    it played in a file of its own, and has the figures of all; None: this one alone.

    `policy_model` names the model that the policy is made from, for figures of what it delegates to its own kind.

    With caps of turns the collector has the widest limits (`measures.turn_caps`): a trajectory is played once, under
    these, and the others are its beginnings, kept in folders of their own.

    Attributes:
        disagreements: of a judge and exact match in what was evaluated, with the benchmark's name.
        benchmarks: tasks by benchmark, where there are any; by part, where it has parts. None with
            evaluation.questions=0.

    Raises:
        ConfigError: there is no benchmark of a name in evaluation.benchmarks.
    """

    def __init__(
        self,
        cfg: WorldConfig,
        environment: Environment,
        collector: Collector,
        engine: Engine | MessageEngine | Baseline,
        budget: Budget,
        directory: Path | None = None,
        processes: Processes | None = None,
        turn_caps: Sequence[int] = (),
        policy_model: str | None = None,
    ) -> None:
        self._directory, self._when = directory, ""
        self._policy: str | None = None
        self._model = policy_model
        self._processes = processes or Processes()
        self.cfg, self.collector, self.engine, self._budget = cfg, collector, engine, budget
        self.benchmarks = chosen_tasks(environment, cfg)
        self.disagreements: list[dict[str, Any]] = []
        self.scripts = dict(environment.baselines())
        self._silence = Baseline(DO_NOTHING, self.scripts.pop(DO_NOTHING, do_nothing))
        self._alone = {name: self.scripts.pop(name) for name in list(self.scripts) if name.startswith(EXPERT)}
        self._environment = environment
        self._baseline_runs: dict[str, list[Trajectory]] | None = None
        self._caps = capped(cfg.rollout.limits, turn_caps)
        assert not turn_caps or collector.limits == widest(cfg.rollout.limits, turn_caps)

    async def evaluate(self, when: str = "policy", policy: str | None = None) -> dict[str, dict[str, Any]]:
        """Figures of the policy now, by benchmark. Those of before and after sample alike.

        Args:
            when: names the folder of the trajectories.
            policy: what tells its weights from others: trajectories that an earlier evaluation of them left are taken
                over, unless they failed; None: all are made.

        Returns:
            `summarize`'s figures over evaluation.samples samples of each question, with their `intervals`, `passes`,
            `share_figures`, `several_figures`, `tool_shares`, and `greedy` (figures of one sample at temperature 0)
            where configured; the held-out tasks have `utility` too, and with caps of turns all have `turn_caps`,
            `summarize`'s figures with `intervals` by cap. A benchmark with parts has those of each by `by_part`, and no
            greedy ones.
        """
        settings, found = self.cfg.evaluation, {}
        self._when, self._policy = re.sub(r"[^\w-]+", "-", when), policy
        for name, tasks in self.benchmarks.items():
            # A script says the same each time.
            asked = settings.temperature, 1 if isinstance(self.engine, Baseline) else settings.samples
            if isinstance(tasks, Mapping):
                runs = {part: await self._collect(f"{name}.{part}", some, *asked) for part, some in tasks.items()}
                found[name] = by_part(
                    {part: self._as_limited(run) for part, run in runs.items()}, asked[1], self._model
                )
                for part, run in runs.items():
                    found[name][part] |= self._by_cap(run, asked[1])
                continue
            found[name] = await self._figures(name, tasks, *asked)
            if settings.greedy and settings.temperature and not isinstance(self.engine, Baseline):
                found[name]["greedy"] = await self._figures(name, tasks, 0.0, 1)
        return found

    async def baselines(self) -> dict[str, dict[str, float | None]]:
        """Figures of every baseline on the held-out tasks, and of doing nothing on every benchmark.

        That one is called "do_nothing" on the held-out tasks and "do_nothing on BENCHMARK" on others, where a benchmark
        with parts is one; its trajectories are kept as a policy's are. An expert alone is played where it is offered.
        """
        runs = await self._runs()
        found = {name: summarize(run) | self._utility(run, runs) for name, run in runs.items()}
        held_out = self.benchmarks.get(HELD_OUT, ())
        assert not isinstance(held_out, Mapping)
        for name, script in self._alone.items():
            model = name.removeprefix(EXPERT)
            offered = [task for task in held_out if model in [each.name for each in self._environment.experts(task)]]
            if offered:
                found[name] = summarize(await self._play(script, offered))
        self._when, self._policy = DO_NOTHING, DO_NOTHING
        for name, tasks in self.benchmarks.items():
            run = [
                trajectory
                for part, some in in_parts(name, tasks).items()
                for trajectory in await self._collect(part, some, self.cfg.evaluation.temperature, 1, self._silence)
            ]
            utility = self._utility(run, runs) if name == HELD_OUT else {}
            found[DO_NOTHING if name == HELD_OUT else f"{DO_NOTHING} on {name}"] = summarize(run) | utility
        return found

    async def _figures(self, name: str, tasks: Sequence[Task], temperature: float, samples: int) -> dict[str, Any]:
        whole = await self._collect(name, tasks, temperature, samples)
        run = self._as_limited(whole)
        utility = self._utility(run, await self._runs(), samples) if name == HELD_OUT else {}
        others = {"intervals": intervals(run, samples), "tool_shares": tool_shares(run)} | self._by_cap(whole, samples)
        calls = share_figures(run, self._model) | several_figures(run)
        return summarize(run) | passes(run, samples) | calls | utility | others

    def _as_limited(self, run: list[Trajectory]) -> list[Trajectory]:
        return [cut(trajectory, self.cfg.rollout.limits) for trajectory in run] if self._caps else run

    def _by_cap(self, run: list[Trajectory], samples: int) -> dict[str, dict[str, Any]]:
        found = dict[str, Any]()
        for cap, limits in self._caps.items():
            some = [cut(trajectory, limits) for trajectory in run]
            found[str(cap)] = summarize(some) | {"intervals": intervals(some, samples)}
        return {"turn_caps": found} if found else {}

    async def _collect(
        self, name: str, tasks: Sequence[Task], temperature: float, samples: int, script: Baseline | None = None
    ) -> list[Trajectory]:
        """The samples of each task, side by side, of the policy or of a script."""
        own = self._processes.mine([(number, sample) for number in range(len(tasks)) for sample in range(samples)])
        run = await share_all(self._processes, self._played(name, tasks, own, temperature, samples, script))
        self.disagreements += [{"benchmark": name, **found} for found in disagreements(run)]
        return run

    async def _played(
        self,
        name: str,
        tasks: Sequence[Task],
        own: Sequence[tuple[int, int]],
        temperature: float,
        samples: int,
        script: Baseline | None,
    ) -> list[Trajectory]:
        """This process's `own` trajectories, by number of the task and of the sample."""
        seed, chosen = self.cfg.evaluation.seed, script or self.engine
        files = self._files(name, tasks, temperature, samples, script)
        kept = files.pop(None, None)
        found = dict(kept.found) if kept else {}
        for limits, file in files.items():
            for place, trajectory in file.found.items():
                if kept and limits and place not in found and not ended_by(trajectory, limits):
                    found[place] = trajectory
                    kept.add(trajectory)
        missing = [each for each in own if each not in found]
        todo = [tasks[number] for number, _ in missing]
        options: dict[str, Any] = {"budget": self._budget, "on_done": kept.add if kept else None}
        options["numbers"] = [number for number, _ in missing]
        if isinstance(chosen, Baseline):
            made = await self.collector.play(chosen.script, todo, silent=chosen.silent, **options)
        else:
            options["members"] = [sample for _, sample in missing]
            made = await self.collector.collect(chosen, todo, temperature=temperature, seed=(seed,), **options)
        found |= zip(missing, made, strict=True)
        for limits, file in files.items():
            for place in own:
                if limits and place not in file.found:
                    file.add(cut(found[place], limits))
        return [found[each] for each in own]

    def _files(
        self, name: str, tasks: Sequence[Task], temperature: float, samples: int, script: Baseline | None
    ) -> dict[RolloutLimits | None, Kept]:
        """The file of what is played, by None, and those of what it is cut to, by the limits; none without a folder."""
        if self._directory is None:
            return {}
        folders: dict[RolloutLimits | None, str] = {None: self._when}
        if self._caps and not script:
            most = self.collector.limits.max_turns
            folders = {limits: f"{self._when}-{cap}-turns" for cap, limits in self._caps.items() if cap < most}
            folders |= {self.cfg.rollout.limits: self._when, None: f"{self._when}-{most}-turns"}
            if self.cfg.rollout.limits == self.collector.limits:
                folders[None] = folders.pop(self.cfg.rollout.limits)
        part = f".p{self._processes.index}" if self._processes.index else ""  # 0.7 alone is a temperature
        file = re.sub(r"[^\w.-]+", "-", f"{name}.t{temperature:g}{part}.jsonl")
        model, seed = None if script or isinstance(self.engine, Baseline) else self._model, self.cfg.evaluation.seed
        return {
            limits: Kept(
                self._directory / folder / file,
                self._policy and f"{self._policy} {temperature} {seed} {limits or self.collector.limits}",
                tasks, samples, model,
            )
            for limits, folder in folders.items()
        }  # fmt: skip

    async def _runs(self) -> dict[str, list[Trajectory]]:
        """The baselines' trajectories; they depend on nothing that is trained and are played once."""
        if self._baseline_runs is None:
            tasks = self.benchmarks.get(HELD_OUT, ())
            assert not isinstance(tasks, Mapping)
            self._baseline_runs = {
                name: await self._play(script, tasks) for name, script in self.scripts.items() if tasks
            }
        return self._baseline_runs

    async def _play(self, script: Script, tasks: Sequence[Task]) -> list[Trajectory]:
        silent = self._environment.silent_baselines
        return await play_all(self._processes, self.collector, script, tasks, budget=self._budget, silent=silent)

    def _utility(
        self, run: list[Trajectory], baselines: Mapping[str, list[Trajectory]], samples: int = 1
    ) -> dict[str, float | None]:
        """The mean over the samples that did not fail for infrastructure reasons; None where all did."""
        if not baselines:
            return {}
        runs = [run[sample::samples] for sample in range(samples)]
        found = preference_utility(runs, list(baselines.values()), self.cfg.reward.tool_feature)
        counted = np.array([[t.status is not Status.FAILED for t in some] for some in runs])
        return {"utility": float(np.mean(found[counted])) if counted.any() else None}
