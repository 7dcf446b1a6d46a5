"""The source of a step's trajectories: collected within the step, or by a stream that runs ahead of it.

Of several processes each collects its own groups of every batch, under the seeds that they have in the whole.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
from orchestra_jax.types import OutOfTime, ReplayMiss, Task, Trajectory

if TYPE_CHECKING:  # loaded when groups run ahead
    from orchestra_jax.rollout.stream import GroupStream


class RolloutSource:
    """Hands out the trajectories of one step after another.

    With rollout.max_staleness=0 and no spare groups every step collects its own batch: nothing runs during an update,
    and the run is reproducible. Else groups run ahead, under way across updates (`rollout.stream`).

    With algorithm.refill a step takes more groups of the stream, as many as it lacks at a time, until those that have a
    gradient are as many as the step began with. Each process makes up for its own: its servers stay as busy as the
    others' and its share of every minibatch stays as large, and nobody need know of the others' groups.

    Args:
        seed: seed of the run.
        tasks: batches of algorithm.tasks_per_step.
        runner: event loop that the engine and the environment belong to.
        processes: processes that share the batches; None: this one alone.
        teaching: tells which groups of a step's trajectories have a gradient; algorithm.refill needs it.

    Attributes:
        per_step: groups that this process trains on in a step.
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
        teaching: Callable[[Sequence[Trajectory]], Bool[np.ndarray, " G"]] | None = None,
    ) -> None:
        self._collector, self._engine, self._runner = collector, engine, runner
        self._rollout, self._seed, self._group_size = rollout, seed, algorithm.group_size
        self._processes = processes or Processes()
        self._teaching, self._refill = teaching, algorithm.refill or 0
        self._batch_size = algorithm.tasks_per_step
        self._ahead = bool(rollout.max_staleness or rollout.spare_groups)
        self._own = groups_of_process(algorithm, self._processes)
        self.per_step = len(self._own)
        self._tasks = TasksOfProcess(tasks, self._own)
        self._stream = self._make_stream() if self._ahead or self._refill else None

    def _make_stream(self) -> "GroupStream":
        from orchestra_jax.rollout.stream import GroupStream

        return GroupStream(
            self._roll,
            self._tasks,
            per_step=self.per_step,
            max_staleness=self._rollout.max_staleness,
            spare=len(self._processes.mine(range(self._rollout.spare_groups))),
        )

    def take(self, step: int, version: int, budget: Budget) -> tuple[list[Trajectory], dict[str, float]]:
        """Return this process's trajectories of step `step`, by group and member, and metrics of the whole step.

        The trajectories are all that were collected, those of groups without a gradient too.

        Args:
            version: version of the learner's weights.
            budget: budget of the step, which pays for the trajectories that begin in it.

        Raises:
            BudgetExceeded, ReplayMiss, OutOfTime: in all processes; the position in the tasks is that before the step.
        """
        position = self._position()
        try:
            with self._processes.together():
                taken, counts = self._take(step, version, budget)
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

    def _take(self, step: int, version: int, budget: Budget) -> tuple[list[Trajectory], dict[str, int]]:
        """Return this process's trajectories, and counts of its groups."""
        if self._stream is None:
            return self._runner.run(self._collect(step, next(self._tasks), self._own, budget)), {}
        if self._refill:
            return self._take_refilled(self._stream, version, budget)
        found, restarted = self._runner.run(self._stream.take(version, budget))
        return self._numbered(found), {"restarted": restarted}

    def _take_refilled(
        self, stream: "GroupStream", version: int, budget: Budget
    ) -> tuple[list[Trajectory], dict[str, int]]:
        """Take groups in rounds, until enough of them have a gradient or algorithm.refill allows no more."""
        assert self._teaching is not None
        groups, restarted, taught, rounds = list[list[Trajectory]](), 0, 0, 0
        most = self.per_step * (1 + self._refill)
        while missing := min(self.per_step - taught, most - len(groups)):
            found, again = self._runner.run(stream.take(version, budget, missing, last=False))
            restarted = restarted if rounds else again  # later rounds go on with what the first began again
            groups += found
            rounds += 1
            taken = self._numbered(groups)
            taught = int(self._teaching(taken).sum())
        if not self._rollout.max_staleness:
            self.stop()
        counts = {"restarted": restarted} if self._ahead else {}
        return taken, counts | {"collected": len(groups), "taught": taught, "rounds": rounds}

    def _numbered(self, groups: Sequence[Sequence[Trajectory]]) -> list[Trajectory]:
        """Return the trajectories with the numbers that their groups have in this step."""
        return [replace(each, group=self._in_batches(n)) for n, group in enumerate(groups) for each in group]

    def stop(self) -> None:
        """End what is under way; `take` begins it again."""
        if self._stream is not None:
            self._runner.run(self._stream.stop())

    def get_state(self) -> dict[str, Any]:
        """Return the position of all processes in the stream of tasks, for a checkpoint."""
        position = self._position()
        if self._stream is None or self._processes.count == 1:
            return position
        from orchestra_jax.rollout.sharing import joint_position

        return joint_position(self._processes.gather(position | {"own": self._own, "size": self._batch_size}))

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a position that `get_state` gave, with any number of processes."""
        if self._stream is None:
            self._tasks.set_state(state)
            return
        places = {place: n for n, place in enumerate(self._own)}
        used = [divmod(index, self._batch_size) for index in state["used"]]
        own = [number * len(self._own) + places[place] for number, place in used if place in places]
        self._stream.set_state(state | {"used": own})

    def _position(self) -> dict[str, Any]:
        """Return this process's own position; groups are counted in whole batches."""
        if self._stream is None:
            return self._tasks.get_state()
        state = self._stream.get_state()
        return state | {"used": [self._in_batches(index) for index in state["used"]]}

    def _in_batches(self, index: int) -> int:
        """Return the number in whole batches of the stream's own group `index`."""
        number, place = divmod(index, len(self._own))
        return number * self._batch_size + self._own[place]

    async def _roll(self, index: int, task: Task, budget: Budget) -> list[Trajectory]:
        step, group = divmod(self._in_batches(index), self._batch_size)
        return await self._collect(step, [task], [group], budget)

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
        )


class TasksOfProcess:
    """The tasks at some places of every batch; the state is that of the batches, the same in every process."""

    def __init__(self, batches: TaskIterator, places: Sequence[int]) -> None:
        self._batches, self._places = batches, places
        self.get_state, self.set_state = batches.get_state, batches.set_state

    def __iter__(self) -> "TasksOfProcess":
        return self

    def __next__(self) -> list[Task]:
        batch = next(self._batches)
        return [batch[place] for place in self._places]


def groups_of_process(algorithm: AlgorithmConfig, processes: Processes) -> list[int]:
    """Return the groups of a step that this process collects: its share of every minibatch.

    So what a minibatch is made of, and each group's seeds, do not depend on the number of processes.
    """
    size = algorithm.tasks_per_step // algorithm.minibatches
    if processes.count == 1 or not size:
        return list(range(algorithm.tasks_per_step))
    return [g for g in range(algorithm.tasks_per_step) if g % size * processes.count // size == processes.index]


def _staleness(spans: Sequence[tuple[int, int]], version: int) -> dict[str, float]:
    """Return the mean and the largest age of the sampled tokens, in versions of the learner's weights."""
    ages, tokens = np.array([version - v for v, _ in spans]), np.array([count for _, count in spans])
    if not tokens.sum():
        return {}
    return {"staleness/mean": float((ages * tokens).sum() / tokens.sum()), "staleness/max": float(ages.max())}
