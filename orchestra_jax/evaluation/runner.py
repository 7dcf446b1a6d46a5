"""Evaluation of a policy on its benchmarks: at temperature 1 and greedy, by parts, and beside baselines."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.engines.base import Engine
from orchestra_jax.envs.base import DO_NOTHING, EXPERT, Baseline, Script, do_nothing
from orchestra_jax.evaluation.benchmarks import HELD_OUT, PREFERENCE_SWAP, chosen_tasks, in_parts
from orchestra_jax.evaluation.calls import model_figures, several_figures
from orchestra_jax.evaluation.measures import (
    local_share,
    preference_utility,
    question_intervals,
    questions,
    summarize,
    tool_shares,
)
from orchestra_jax.evaluation.trajectory_files import TrajectoryFile
from orchestra_jax.money.budgets import Budget
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.collector import Collector, share_all
from orchestra_jax.types import Status, Task, Trajectory

if TYPE_CHECKING:  # loaded when it is there
    from orchestra_jax.rollout.messages import MessageEngine


@dataclass(frozen=True)
class Work:
    """Samples of the tasks of a benchmark or its part, for a policy or script to play.

    Attributes:
        identity: tells the player's weights from others'; None: earlier trajectories are not taken over.
        model: the name of the policy's own model, if it is known.
    """

    name: str
    tasks: Sequence[Task]
    temperature: float
    samples: int
    engine: "Engine | MessageEngine | Baseline"
    folder: str
    identity: str | None = None
    model: str | None = None


class Evaluator:
    """Measures the policy of an engine, or a script, on fixed tasks of the collector's environment.

    Args:
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
        self.directory, self.processes = directory, processes or Processes()
        self.benchmarks = chosen_tasks(collector.environment, cfg)
        self.disagreements: list[dict[str, Any]] = []
        self._held_out = cast(Sequence[Task], self.benchmarks.get(HELD_OUT, ()))  # it has no parts
        self._scripts = dict(collector.environment.baselines())
        self._silence = Baseline(DO_NOTHING, self._scripts.pop(DO_NOTHING, do_nothing))
        self._baseline_runs: dict[str, list[Trajectory]] | None = None

    async def evaluate(
        self, when: str = "policy", identity: str | None = None, policy_model: str | None = None
    ) -> dict[str, dict[str, Any]]:
        """Return the figures of docs/metrics.md by benchmark. Every evaluation samples alike.

        A part of a benchmark (a wish of `preference_swap`) has `local_share`, not `several`, `tool_shares`, `greedy`.

        Args:
            when: names the folder of the trajectories.
            identity: tells the policy's weights from others: trajectories that an earlier evaluation of them left are
                taken over, unless they failed; None: all are made.
            policy_model: the name of the model that the policy is made from, for `own_share`.
        """
        settings, found = self.cfg.evaluation, dict[str, dict[str, Any]]()
        is_script = isinstance(self.engine, Baseline)  # a script says the same each time
        samples = 1 if is_script else settings.samples
        folder = re.sub(r"[^\w-]+", "-", when)
        work = partial(Work, engine=self.engine, folder=folder, identity=identity, model=policy_model)
        for name, tasks in self.benchmarks.items():
            if isinstance(tasks, Mapping):
                found[name] = {}
                for part, some in tasks.items():
                    each = work(f"{name}.{part}", some, settings.temperature, samples)
                    found[name][part] = await self.figures(each, await self.collect(each), is_part=True)
                continue
            each = work(name, tasks, settings.temperature, samples)
            found[name] = await self.figures(each, await self.collect(each))
            if settings.greedy and settings.temperature and not is_script:
                each = work(name, tasks, 0.0, 1)
                found[name]["greedy"] = await self.figures(each, await self.collect(each))
        return found

    async def baselines(self) -> dict[str, dict[str, float | None]]:
        """Return the figures of every baseline on the held-out tasks, and of doing nothing on every benchmark.

        The preference swap asks held-out questions again, and has no row of doing nothing. Trajectories of doing
        nothing are kept as a policy's are. An expert alone is played where it is offered.
        """
        runs, experts = await self._runs(), self.collector.environment.experts
        found = {name: summarize(run) | self._utility(run, runs) for name, run in runs.items()}
        for name, script in self._scripts.items():
            if name.startswith(EXPERT):
                model = name.removeprefix(EXPERT)
                if offered := [task for task in self._held_out if model in [each.name for each in experts(task)]]:
                    found[name] = summarize(await self._play(script, offered))
        for name in [name for name in self.benchmarks if name != PREFERENCE_SWAP]:
            run, asked = list[Trajectory](), (self.cfg.evaluation.temperature, 1, self._silence, DO_NOTHING, DO_NOTHING)
            for part, some in in_parts(name, self.benchmarks[name]).items():
                run += await self.collect(Work(part, some, *asked))
            utility = self._utility(run, runs) if name == HELD_OUT else {}
            found[DO_NOTHING if name == HELD_OUT else f"{DO_NOTHING} on {name}"] = summarize(run) | utility
        return found

    async def figures(self, work: Work, run: Sequence[Trajectory], *, is_part: bool = False) -> dict[str, Any]:
        """Return the figures of trajectories, the samples of each task side by side, with 95 % intervals."""
        found: dict[str, Any] = summarize(run) | ({"local_share": local_share(run)} if is_part else {})
        if work.samples > 1:
            from orchestra_jax.evaluation.pass_at_k import pass_figures

            counts = [(len(some), sum(t.solved for t in some)) for some in questions(run, work.samples)]
            found |= pass_figures(counts, work.samples)
        found |= model_figures(run, work.model)
        if not is_part:
            found |= several_figures(run)
        if work.name == HELD_OUT:
            runs, rival = await self._runs(), self.collector.environment.rival
            found |= self._utility(run, runs, work.samples)
            if rival is not None and not isinstance(work.engine, Baseline):
                from orchestra_jax.evaluation.verdict import verdict

                found["verdict"] = verdict(run, runs, *rival, work.samples)
        if reasons := Counter(trajectory.reason for trajectory in run if trajectory.status is Status.FAILED):
            ((reason, count),) = reasons.most_common(1)
            found["failure"] = f"{reason.rstrip('.')} ({count} of {reasons.total()})."
        found["intervals"] = question_intervals(run, work.samples)
        return found if is_part else found | {"tool_shares": tool_shares(run)}

    async def collect(self, work: Work) -> list[Trajectory]:
        """Return the samples of each task of all processes, side by side."""
        if self.directory is None or (self.processes.count == 1 and not any(self.directory.glob("*/*.p*.jsonl"))):
            files = self.files(work)
        else:  # of several processes, now or at an earlier start
            from orchestra_jax.evaluation.decoding import dealt

            files = await dealt(self.directory, self.processes, self.places(work), lambda: self.files(work))
        run = await share_all(self.processes, self.played(work, files))
        if any(row.role == "judge" for trajectory in run for row in trajectory.ledger):
            from orchestra_jax.evaluation.judged import disagreements  # only where there is a judge

            self.disagreements += [{"benchmark": work.name, **found} for found in disagreements(run)]
        return run

    def files(self, work: Work) -> list[TrajectoryFile]:
        """Open the files of this process's trajectories."""
        return [self.file(work, self.collector.limits)] if self.directory is not None else []

    async def played(self, work: Work, files: Sequence[TrajectoryFile]) -> list[Trajectory]:
        """Return this process's share of the trajectories; play those that no earlier evaluation left in the files."""
        own, file = self.places(work), files[0] if files else None
        found = dict(file.found) if file else {}
        missing = [place for place in own if place not in found]
        todo, numbers = [work.tasks[number] for number, _ in missing], [number for number, _ in missing]
        options: dict[str, Any] = {"budget": self._budget, "on_done": self.on_done(file), "numbers": numbers}
        if isinstance(work.engine, Baseline):
            made = await self.collector.play(work.engine.script, todo, silent=work.engine.silent, **options)
        else:
            options |= {"members": [sample for _, sample in missing], "seed": (self.cfg.evaluation.seed,)}
            made = await self.collector.collect(work.engine, todo, temperature=work.temperature, **options)
        found |= zip(missing, made, strict=True)
        return [found[place] for place in own]

    def on_done(self, file: TrajectoryFile | None) -> Callable[[Trajectory], None] | None:
        """Return what takes each trajectory of a work as it ends."""
        return file.add if file else None

    def places(self, work: Work) -> list[tuple[int, int]]:
        """Return the numbers of task and sample that this process plays."""
        return self.processes.mine([(n, sample) for n in range(len(work.tasks)) for sample in range(work.samples)])

    def file(self, work: Work, limits: RolloutLimits) -> TrajectoryFile:
        """Open the file of this process's trajectories, which were made under `limits`."""
        part = f".p{self.processes.index}" if self.processes.index else ""  # 0.7 alone is a temperature
        name = re.sub(r"[^\w.-]+", "-", f"{work.name}.t{work.temperature:g}{part}.jsonl")
        model = None if isinstance(work.engine, Baseline) else work.model
        judge = "" if self.cfg.tools.judge == "match" else f" {self.cfg.tools.judge}"  # it decides what is solved
        policy = work.identity and f"{work.identity} {work.temperature} {self.cfg.evaluation.seed} {limits}{judge}"
        assert self.directory is not None
        return TrajectoryFile(self.directory / work.folder / name, policy, work.tasks, work.samples, model)

    async def _runs(self) -> dict[str, list[Trajectory]]:
        """Return the trajectories of the baselines but experts alone on the held-out tasks, which are played once."""
        if self._baseline_runs is None:
            scripts = {name: script for name, script in self._scripts.items() if not name.startswith(EXPERT)}
            tasks = self._held_out
            self._baseline_runs = {name: await self._play(each, tasks) for name, each in scripts.items() if tasks}
        return self._baseline_runs

    async def _play(self, script: Script, tasks: Sequence[Task]) -> list[Trajectory]:
        silent, own = self.collector.environment.silent_baselines, self.processes.mine(tasks)
        return await share_all(self.processes, self.collector.play(script, own, budget=self._budget, silent=silent))

    def _utility(
        self, run: Sequence[Trajectory], baselines: Mapping[str, list[Trajectory]], samples: int = 1
    ) -> dict[str, float | None]:
        """Return the mean over the samples that did not fail for infrastructure reasons; None where all did."""
        if not baselines:
            return {}
        runs = [run[sample::samples] for sample in range(samples)]
        found = preference_utility(runs, list(baselines.values()), self.cfg.reward.tool_feature)
        counts = np.array([[t.status is not Status.FAILED for t in some] for some in runs])
        return {"utility": float(np.mean(found[counts])) if counts.any() else None}
