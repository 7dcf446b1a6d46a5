"""Where a step's trajectories come from: collected within the step, or by a stream that runs ahead of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from orchestra_jax.config.schema import RunConfig
from orchestra_jax.data.pipeline import TaskIterator
from orchestra_jax.engines.base import Engine
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.replay import ReplayMiss
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.event_loop import LoopThread
from orchestra_jax.rollout.stream import GroupStream
from orchestra_jax.types import Task, Trajectory


class RolloutSource:
    """Hands out the trajectories of one step after another.

    With rollout.max_staleness=0 and no spare groups every step collects its own batch: nothing runs during an update,
    and the run is reproducible. Else groups run ahead, under way across updates.

    Args:
        tasks: batches of algorithm.tasks_per_step.
        runner: the loop that the engine and the environment belong to.
    """

    def __init__(
        self, cfg: RunConfig, collector: Collector, engine: Engine, tasks: TaskIterator, runner: LoopThread
    ) -> None:
        self._cfg, self._collector, self._engine, self._tasks, self._runner = cfg, collector, engine, tasks, runner
        self._stream: GroupStream | None = None
        if cfg.rollout.max_staleness or cfg.rollout.spare_groups:
            self._stream = GroupStream(
                self._roll,
                tasks,
                per_step=cfg.algorithm.tasks_per_step,
                max_staleness=cfg.rollout.max_staleness,
                spare=cfg.rollout.spare_groups,
            )

    def take(self, step: int, version: int, budget: Budget) -> tuple[list[Trajectory], dict[str, float]]:
        """The trajectories of step `step`, ordered by group and member, and the metrics of their age.

        `version` is that of the learner's weights; `budget`, of the step, pays for the trajectories that begin in it.

        Raises:
            BudgetExceeded, ReplayMiss: the position in the tasks is that before the step.
        """
        cfg, metrics = self._cfg, {}
        if self._stream is None:
            position = self._tasks.get_state()
            try:
                trajectories = self._runner.run(
                    self._collector.collect(
                        self._engine,
                        next(self._tasks),
                        budget=budget,
                        group_size=cfg.algorithm.group_size,
                        temperature=cfg.rollout.temperature,
                        seed=(cfg.seed, 2, step),
                    )
                )
            except (BudgetExceeded, ReplayMiss):
                self._tasks.set_state(position)  # the run that goes on repeats this step
                raise
        else:
            groups, restarted = self._runner.run(self._stream.take(version, budget))
            trajectories = [replace(t, group=g) for g, group in enumerate(groups) for t in group]
            metrics["groups/restarted"] = float(restarted)
        return trajectories, metrics | _staleness(trajectories, version)

    def stop(self) -> None:
        """Ends what is under way; `take` begins it again."""
        if self._stream is not None:
            self._runner.run(self._stream.stop())

    def get_state(self) -> dict[str, Any]:
        """The position in the stream of tasks, for a checkpoint."""
        return self._tasks.get_state() if self._stream is None else self._stream.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        (self._tasks if self._stream is None else self._stream).set_state(state)

    async def _roll(self, index: int, task: Task, budget: Budget) -> list[Trajectory]:
        step, group = divmod(index, self._cfg.algorithm.tasks_per_step)
        return await self._collector.collect(
            self._engine,
            [task],
            budget=budget,
            first=group,
            group_size=self._cfg.algorithm.group_size,
            temperature=self._cfg.rollout.temperature,
            seed=(self._cfg.seed, 2, step),
        )


def _staleness(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Mean over the sampled tokens, and largest, number of versions that they are older than the learner."""
    spans = [
        span
        for trajectory in trajectories
        for turn in trajectory.turns
        for span in turn.version_spans or ((turn.weight_version, len(turn.sampled_ids)),)
    ]
    ages, tokens = np.array([version - v for v, _ in spans]), np.array([count for _, count in spans])
    if not tokens.sum():
        return {}
    return {"staleness/mean": float((ages * tokens).sum() / tokens.sum()), "staleness/max": float(ages.max())}
