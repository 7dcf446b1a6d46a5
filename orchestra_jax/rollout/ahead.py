"""The source of a step's trajectories where rollouts run ahead of the learner, or a step is refilled with groups."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.pausing import PausingEngine
from orchestra_jax.rollout.sharing import joint_position
from orchestra_jax.rollout.source import Informative, RolloutSource
from orchestra_jax.rollout.stream import GroupStream
from orchestra_jax.types import Task, Trajectory


class StreamSource(RolloutSource):
    """Takes a step's groups from a `GroupStream`.

    - rollout.max_staleness: groups go on during an update.
    - rollout.oversample: during an update nothing is sampled, but tools go on. A group that is not whole when a step
      has enough keeps its finished turns, and the next step continues it.
    - algorithm.refill: a step takes as many further groups as it lacks, until it has algorithm.tasks_per_step groups
      with a gradient, or refill allows no more. Each process refills its own share: all keep equally busy, and none
      needs to know of the others' groups.

    Args:
        steps: steps of the run, beyond which no group begins; None: unknown.
    """

    def __init__(
        self,
        algorithm: AlgorithmConfig,
        rollout: RolloutConfig,
        *rest: Any,
        steps: int | None = None,
    ) -> None:
        super().__init__(algorithm, rollout, *rest)
        self._refill = algorithm.refill or 0
        self._batch_size, self._steps = algorithm.tasks_per_step, steps
        self._pausing: PausingEngine | None = None
        ahead: int | None = None
        if rollout.oversample:
            ahead = min(self.per_step, len(self._processes.mine(range(rollout.oversample))))
            self._engine = self._pausing = PausingEngine(self._engine)
        self._stream = GroupStream(
            self._roll,
            self._tasks,
            per_step=self.per_step,
            max_staleness=rollout.max_staleness,
            ahead=ahead,
        )

    def _take(
        self, step: int, version: int, budget: Budget, informative: Informative | None
    ) -> tuple[list[Trajectory], dict[str, int]]:
        later = None if self._steps is None else (self._steps - 1 - step) * self.per_step
        if self._pausing is not None:
            self._runner.call_soon(self._pausing.go_on)
        if self._refill:
            taken, counts = self._take_refilled(version, budget, informative, later)
        else:
            found, restarted = self._runner.run(self._stream.take(version, budget, later=later))
            taken, counts = self._numbered(found), {"restarted": restarted}
        if self._pausing is not None:
            self._runner.run(self._pausing.pause())
            counts["carried"] = self._stream.unfinished
        return taken, counts

    def _take_refilled(
        self, version: int, budget: Budget, informative: Informative | None, later: int | None
    ) -> tuple[list[Trajectory], dict[str, int]]:
        """Take groups in rounds, until enough of them have a gradient or algorithm.refill allows no more."""
        assert informative is not None
        groups, restarted, taught, rounds = list[list[Trajectory]](), 0, 0, 0
        most = self.per_step * (1 + self._refill)
        while missing := min(self.per_step - taught, most - len(groups)):
            found, again = self._runner.run(self._stream.take(version, budget, missing, last=False, later=later))
            restarted = restarted if rounds else again  # later rounds go on with what the first began again
            groups += found
            rounds += 1
            taken = self._numbered(groups)
            taught = int(informative(taken).sum())
        if not self._rollout.max_staleness:
            self.stop()
        counts = {"restarted": restarted} if self._rollout.max_staleness else {}
        return taken, counts | {"collected": len(groups), "taught": taught, "rounds": rounds}

    def _numbered(self, groups: Sequence[Sequence[Trajectory]]) -> list[Trajectory]:
        """Return the trajectories with the numbers that their groups have in this step."""
        return [replace(each, group=self._in_batches(n)) for n, group in enumerate(groups) for each in group]

    def stop(self) -> None:
        self._runner.run(self._stream.stop())

    def get_state(self) -> dict[str, Any]:
        position = self._position()
        if self._processes.count == 1:
            return position
        return joint_position(self._processes.gather(position | {"own": self._own, "size": self._batch_size}))

    def set_state(self, state: dict[str, Any]) -> None:
        places = {place: n for n, place in enumerate(self._own)}
        used = [divmod(index, self._batch_size) for index in state["used"]]
        own = [number * len(self._own) + places[place] for number, place in used if place in places]
        self._stream.set_state(state | {"used": own})

    def _position(self) -> dict[str, Any]:
        """Return this process's own position; groups are counted in whole batches."""
        state = self._stream.get_state()
        return state | {"used": [self._in_batches(index) for index in state["used"]]}

    def _in_batches(self, index: int) -> int:
        """Return the number in whole batches of the stream's own group `index`."""
        number, place = divmod(index, len(self._own))
        return number * self._batch_size + self._own[place]

    async def _roll(self, index: int, task: Task, budget: Budget) -> list[Trajectory]:
        step, group = divmod(self._in_batches(index), self._batch_size)
        return await self._collect(step, [task], [group], budget)
