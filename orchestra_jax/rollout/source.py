"""The source of a step's trajectories, which collects them within the step.

`ahead.StreamSource` takes its place where rollouts run ahead (rollout.max_staleness) or a step is refilled
(algorithm.refill). Each process collects its own groups, under the seeds that they have in the whole batch.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.data.pipeline import TaskIterator
from orchestra_jax.engines.base import Engine
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.speakers import EngineSpeaker
from orchestra_jax.types import OutOfTime, ReplayMiss, Task, Trajectory

Informative = Callable[[Sequence[Trajectory]], Bool[np.ndarray, " G"]]  # which groups have a gradient


class RolloutSource:
    """Hands out the trajectories of one step after another.

    Every step collects its own batch: nothing runs during an update, and the run is reproducible. A trajectory that
    failed (`Status.FAILED`) is not rolled out again: it has no part in its group.

    Args:
        tasks: batches of algorithm.tasks_per_step.
        runner: event loop that the engine and the environment belong to.
        processes: processes that share the batches; None: this one alone.
    """

    def __init__(
        self,
        algorithm: AlgorithmConfig,
        rollout: RolloutConfig,
        seed: int,
        collector: Collector,
        engine: Engine,
        tasks: TaskIterator,
        runner: LoopThread,
        processes: Processes | None = None,
    ) -> None:
        self._collector, self._engine, self._runner = collector, engine, runner
        self._rollout, self._seed, self._group_size = rollout, seed, algorithm.group_size
        self._processes = processes or Processes()
        self._speaker: Callable[..., EngineSpeaker] | None = None
        if algorithm.enumerate_calls:
            from orchestra_jax.rollout.first_calls import first_call_speaker

            self._speaker = first_call_speaker(algorithm)
        self._own, self._tasks = list(range(algorithm.tasks_per_step)), tasks
        if self._processes.count > 1:
            from orchestra_jax.rollout.sharing import TasksOfProcess, groups_of_process

            self._own = groups_of_process(algorithm, self._processes)
            self._tasks = TasksOfProcess(tasks, self._own)

    @property
    def per_step(self) -> int:
        """Number of groups that this process trains on in a step."""
        return len(self._own)

    def take(
        self, step: int, version: int, budget: Budget, informative: Informative | None = None
    ) -> tuple[list[Trajectory], dict[str, float]]:
        """Return this process's trajectories of step `step`, by group and member, and metrics of the whole step.

        The trajectories are all that were collected, those of groups without a gradient too.

        Args:
            version: version of the learner's weights.
            budget: budget of the step, which pays for the trajectories that begin in it.
            informative: tells which groups have a gradient; algorithm.refill needs it.

        Raises:
            BudgetExceeded, ReplayMiss, OutOfTime: in all processes; the position in the tasks is that before the step.
        """
        position = self._position()
        try:
            with self._processes.together():
                taken, counts = self._take(step, version, budget, informative)
        except (BudgetExceeded, ReplayMiss, OutOfTime):
            self.set_state(position)  # the run that goes on repeats this step
            raise
        spans = [span for trajectory in taken for turn in trajectory.turns for span in turn.spans]
        everyone = self._processes.gather((spans, counts))
        metrics = _staleness([span for spans, _ in everyone for span in spans], version)
        for name in counts:
            figures = [float(theirs[name]) for _, theirs in everyone]
            metrics[f"groups/{name}"] = max(figures) if name == "rounds" else sum(figures)
        return taken, metrics

    def _take(
        self, step: int, version: int, budget: Budget, informative: Informative | None
    ) -> tuple[list[Trajectory], dict[str, int]]:
        """Return this process's trajectories, and counts of its groups."""
        return self._runner.run(self._collect(step, next(self._tasks), self._own, budget)), {}

    def stop(self) -> None:
        """End what is under way; `take` begins it again."""

    def get_state(self) -> dict[str, Any]:
        """Return the position of all processes in the stream of tasks, for a checkpoint."""
        return self._position()

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a position that `get_state` gave, with any number of processes."""
        self._tasks.set_state(state)

    def _position(self) -> dict[str, Any]:
        """Return this process's own position."""
        return self._tasks.get_state()

    def _collect(
        self, step: int, tasks: Sequence[Task], groups: Sequence[int], budget: Budget
    ) -> Coroutine[Any, Any, list[Trajectory]]:
        """Roll out these groups under the seeds of a step."""
        return self._collector.collect(
            self._engine,
            tasks,
            budget=budget,
            group_size=self._group_size,
            temperature=self._rollout.temperature,
            seed=(self._seed, 2, step),
            numbers=groups,
            speaker=self._speaker,
        )


def _staleness(spans: Sequence[tuple[int, int]], version: int) -> dict[str, float]:
    """Return the mean and the largest age of the sampled tokens, in versions of the learner's weights."""
    ages, tokens = np.array([version - v for v, _ in spans]), np.array([count for _, count in spans])
    if not tokens.sum():
        return {}
    return {"staleness/mean": float((ages * tokens).sum() / tokens.sum()), "staleness/max": float(ages.max())}
