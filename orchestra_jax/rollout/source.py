"""Where a step's trajectories come from: collected within the step, or by a stream that runs ahead of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.data.pipeline import TaskIterator
from orchestra_jax.engines.base import Engine
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.replay import ReplayMiss
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.sharing import OwnTasks, own_groups, whole_position
from orchestra_jax.rollout.stream import GroupStream
from orchestra_jax.types import OutOfTime, Task, Trajectory


class RolloutSource:
    """Hands out the trajectories of one step after another.

    With rollout.max_staleness=0 and no spare groups every step collects its own batch: nothing runs during an update,
    and the run is reproducible. Else groups run ahead, under way across updates.

    Of several processes each collects its own groups of every batch, under the seeds they have in the whole.

    With algorithm.refill a step takes more groups of the stream, as many as it lacks at a time, until those that have a
    gradient are as many as the step began with. Each process makes up for its own: its servers stay as busy as the
    others' and its share of every minibatch stays as large, and nobody need know of the others' groups.

    Args:
        tasks: batches of algorithm.tasks_per_step.
        runner: the loop that the engine and the environment belong to.
        processes: that share the batches; None: this one alone.
        teaching: tells which groups of a step's trajectories have a gradient; algorithm.refill needs it.

    Attributes:
        per_step: groups that this process trains on in a step.
    """

    def __init__(
        self,
        cfg: WorldConfig,
        collector: Collector,
        engine: Engine,
        tasks: TaskIterator,
        runner: LoopThread,
        processes: Processes | None = None,
        teaching: Callable[[Sequence[Trajectory]], Bool[np.ndarray, " G"]] | None = None,
    ) -> None:
        self._cfg, self._collector, self._engine, self._runner = cfg, collector, engine, runner
        self._processes = processes or Processes()
        self._teaching, self._refill = teaching, cfg.algorithm.refill or 0
        self._ahead = bool(cfg.rollout.max_staleness or cfg.rollout.spare_groups)
        self._own = own_groups(cfg.algorithm, self._processes)
        self.per_step = len(self._own)
        self._tasks = OwnTasks(tasks, self._own)
        self._stream: GroupStream | None = None
        if self._ahead or self._refill:
            self._stream = GroupStream(
                self._roll,
                self._tasks,
                per_step=self.per_step,
                max_staleness=cfg.rollout.max_staleness,
                spare=len(self._processes.mine(range(cfg.rollout.spare_groups))),
            )

    def take(self, step: int, version: int, budget: Budget) -> tuple[list[Trajectory], dict[str, float]]:
        """This process's trajectories of step `step`, ordered by group and member, and metrics of the whole step.

        All that were collected, of groups without a gradient too. `version` is that of the learner's weights; `budget`,
        of the step, pays for the trajectories that begin in it.

        Raises:
            BudgetExceeded, ReplayMiss, OutOfTime: in all processes; the position in the tasks is that before the step.
        """
        position = self._state()
        try:
            with self._processes.together():
                taken, counts = self._take(step, version, budget)
        except (BudgetExceeded, ReplayMiss, OutOfTime):
            self._set_state(position)  # the run that goes on repeats this step
            raise
        spans = [span for trajectory in taken for turn in trajectory.turns for span in turn.spans]
        everyone = self._processes.gather((spans, counts))
        metrics = _staleness([span for spans, _ in everyone for span in spans], version)
        for name in counts:
            figures = [float(theirs[name]) for _, theirs in everyone]
            metrics[f"groups/{name}"] = max(figures) if name == "rounds" else sum(figures)
        return taken, metrics

    def _take(self, step: int, version: int, budget: Budget) -> tuple[list[Trajectory], dict[str, int]]:
        """This process's trajectories, and counts of its groups."""
        cfg = self._cfg
        if self._stream is not None:
            return self._take_of(self._stream, version, budget)
        collecting = self._collector.collect(
            self._engine,
            next(self._tasks),
            budget=budget,
            group_size=cfg.algorithm.group_size,
            temperature=cfg.rollout.temperature,
            seed=(cfg.seed, 2, step),
            numbers=self._own,
        )
        return self._runner.run(collecting), {}

    def _take_of(self, stream: GroupStream, version: int, budget: Budget) -> tuple[list[Trajectory], dict[str, int]]:
        """`_take` with a stream, in rounds of the groups that are missing."""
        groups, again, taught = list[list[Trajectory]](), list[int](), 0
        while lacking := min(self.per_step - taught, self.per_step * (1 + self._refill) - len(groups)):
            found, restarted = self._runner.run(stream.take(version, budget, lacking, last=not self._refill))
            groups += found
            again.append(restarted)
            taken = [replace(t, group=self._whole(n)) for n, group in enumerate(groups) for t in group]
            if self._refill and self._teaching is not None:
                taught = int(self._teaching(taken).sum())
        counts = {"restarted": again[0]} if self._ahead else {}
        if self._refill:
            counts |= {"collected": len(groups), "taught": taught, "rounds": len(again)}
            if not self._cfg.rollout.max_staleness:
                self.stop()
        return taken, counts

    def stop(self) -> None:
        """Ends what is under way; `take` begins it again."""
        if self._stream is not None:
            self._runner.run(self._stream.stop())

    def get_state(self) -> dict[str, Any]:
        """The position of all processes in the stream of tasks, for a checkpoint."""
        state, size = self._state(), self._cfg.algorithm.tasks_per_step
        if self._stream is None or self._processes.count == 1:
            return state
        return whole_position(self._processes.gather(state | {"own": self._own, "size": size}))

    def set_state(self, state: dict[str, Any]) -> None:
        self._set_state(state)

    def _state(self) -> dict[str, Any]:
        """This process's own position; groups are counted in whole batches."""
        if self._stream is None:
            return self._tasks.get_state()
        state = self._stream.get_state()
        return state | {"used": [self._whole(index) for index in state["used"]]}

    def _set_state(self, state: dict[str, Any]) -> None:
        if self._stream is None:
            self._tasks.set_state(state)
            return
        places = {place: n for n, place in enumerate(self._own)}
        used = [divmod(index, self._cfg.algorithm.tasks_per_step) for index in state["used"]]
        own = [number * len(self._own) + places[place] for number, place in used if place in places]
        self._stream.set_state(state | {"used": own})

    def _whole(self, index: int) -> int:
        """The number in whole batches of the stream's own group `index`."""
        number, place = divmod(index, len(self._own))
        return number * self._cfg.algorithm.tasks_per_step + self._own[place]

    async def _roll(self, index: int, task: Task, budget: Budget) -> list[Trajectory]:
        step, group = divmod(self._whole(index), self._cfg.algorithm.tasks_per_step)
        return await self._collector.collect(
            self._engine,
            [task],
            budget=budget,
            numbers=[group],
            group_size=self._cfg.algorithm.group_size,
            temperature=self._cfg.rollout.temperature,
            seed=(self._cfg.seed, 2, step),
        )


def _staleness(spans: Sequence[tuple[int, int]], version: int) -> dict[str, float]:
    """Mean over the sampled tokens, and largest, number of versions that they are older than the learner."""
    ages, tokens = np.array([version - v for v, _ in spans]), np.array([count for _, count in spans])
    if not tokens.sum():
        return {}
    return {"staleness/mean": float((ages * tokens).sum() / tokens.sum()), "staleness/max": float(ages.max())}
