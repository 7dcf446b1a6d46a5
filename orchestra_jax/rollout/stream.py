"""Groups of rollouts that go on while the learner updates, and the bound on the age of their tokens.

With `max_staleness` N the groups of N + 1 steps are under way when a step begins. The step takes the groups that end
first, and the others go on during the update: a group has the time of N + 1 steps.

A step waits for groups that would be too old for the next one, and for groups that had to begin again. To lose them
would favour short tasks. Where a step takes further groups (algorithm.refill), as many new ones begin, so that the
number of groups ahead stays the same and they get no older.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestra_jax.data.pipeline import TaskIterator
from orchestra_jax.money.budgets import Budget
from orchestra_jax.types import Task, Trajectory

# Rolls group `index` out: (index, task, budget) -> its trajectories.
Roll = Callable[[int, Task, Budget], Awaitable[list[Trajectory]]]


@dataclass
class _Group:
    """A group under way, and the weight version under which it began."""

    index: int
    version: int
    job: "asyncio.Task[list[Trajectory]]"


@dataclass
class _Batch:
    """A batch of tasks that is not used up, or that follows such a batch.

    Attributes:
        state: position of the stream before it.
        used: places that are used up.
    """

    state: dict[str, Any]
    tasks: list[Task]
    used: set[int] = field(default_factory=set)


class GroupStream:
    """Starts groups ahead of their use, in the order of the tasks, and hands them out as they end.

    Args:
        roll: rolls one group out with the engine's weights of the moment.
        batches: tasks, `per_step` at a time.
        per_step: groups of a step.
        max_staleness: most versions that the oldest token of a group may be older than the learner's. 0: nothing runs
            during an update.
        ahead: groups under way beyond those of a step; None: those of `max_staleness` steps.
    """

    def __init__(
        self,
        roll: Roll,
        batches: TaskIterator,
        *,
        per_step: int,
        max_staleness: int = 0,
        ahead: int | None = None,
    ) -> None:
        self._roll, self._source = roll, batches
        self._per_step, self._staleness = per_step, max_staleness
        self._ahead = per_step * max_staleness if ahead is None else ahead
        self._batches: dict[int, _Batch] = {}
        self._read = 0  # batches read from the source
        self._running: dict[int, _Group] = {}
        self._again: set[int] = set()  # begun again: the next step waits for them

    async def take(
        self, version: int, budget: Budget, count: int | None = None, *, last: bool = True, later: int | None = None
    ) -> tuple[list[list[Trajectory]], int]:
        """Return the next groups for the update of the learner's weights `version`.

        Groups that ended with an error of the program start again with the next call.

        Args:
            budget: budget of the step, which pays for the groups that begin now, also for what they cost later.
            count: groups to take; None: `per_step`.
            last: whether this is the last call for this version. If nothing may run during an update, it ends what is
                under way.
            later: groups that later steps will take, so that none begins for nothing; None: any number.

        Returns:
            Trajectories by group, in the order of the tasks, and the number of groups that had to begin again, because
            their tokens would have been too old.
        """
        count = self._per_step if count is None else count
        for group in self._in_order():
            if version - group.version > self._staleness:
                await self._stop(group)
        restarted = len(self._again)
        for index in sorted(self._again):
            self._start(index, version, budget)
        ahead = self._ahead if later is None else min(self._ahead, later)
        self._fill(count + ahead, version, budget)
        first = sorted(self._again)[:count]
        while not self._suffice(count, first, version):
            await asyncio.wait([g.job for g in self._in_order() if not g.job.done()], return_when="FIRST_COMPLETED")
        ended = [group for group in self._running.values() if group.job.done()]
        oldest = [g.index for g in sorted(ended, key=lambda g: (g.version, g.index)) if g.index not in first]
        chosen = sorted([*first, *oldest][:count])
        for index in chosen:
            if self._running[index].job.exception() is not None:
                self._running.pop(index).job.result()
        found = [self._running.pop(index).job.result() for index in chosen]
        for index in chosen:
            self._use(index)
        if last and not self._staleness:
            await self.stop()
        return found, restarted

    @property
    def unfinished(self) -> int:
        """Number of groups under way that are not whole."""
        return sum(not group.job.done() for group in self._running.values())

    async def stop(self) -> None:
        """End what is under way; its tasks come first when the stream goes on."""
        for group in self._in_order():
            await self._stop(group)

    def get_state(self) -> dict[str, Any]:
        """Return the position; tasks not handed out yet are read again after `set_state`."""
        if not self._batches:
            return {"batches": self._source.get_state(), "number": self._read, "used": []}
        first = min(self._batches)
        used = [n * self._per_step + i for n, batch in self._batches.items() for i in sorted(batch.used)]
        return {"batches": self._batches[first].state, "number": first, "used": used}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a position of `get_state`."""
        self._source.set_state(state["batches"])
        self._batches, self._read = {}, state["number"]
        for index in state["used"]:
            self._batch(index // self._per_step).used.add(index % self._per_step)
        self._forget_used()  # of several processes one may have used up batches that another has not

    def _in_order(self) -> list[_Group]:
        return [self._running[index] for index in sorted(self._running)]

    def _batch(self, number: int) -> _Batch:
        while self._read <= number:
            state = self._source.get_state()
            self._batches[self._read] = _Batch(state, next(self._source))
            self._read += 1
        return self._batches[number]

    def _use(self, index: int) -> None:
        self._again.discard(index)
        number, place = divmod(index, self._per_step)
        self._batch(number).used.add(place)
        self._forget_used()

    def _forget_used(self) -> None:
        """Forget batches that are used up, up to the first that is not: the position counts from there."""
        for number in sorted(self._batches):
            if len(self._batches[number].used) < self._per_step:
                return
            del self._batches[number]

    def _suffice(self, count: int, first: Sequence[int], version: int) -> bool:
        """Return whether `count` groups have ended: the `first`, the oldest as far as they are taken, and others."""
        ended = {group.index for group in self._running.values() if group.job.done()}
        oldest = {group.index for group in self._running.values() if version - group.version >= self._staleness}
        due = min(len(oldest), count - len(first))
        return len(ended) >= count and ended.issuperset(first) and len(ended & oldest) >= due

    def _fill(self, wanted: int, version: int, budget: Budget) -> None:
        """Start the first tasks that are neither used nor under way, until `wanted` groups are under way."""
        for number in itertools.chain(sorted(self._batches), itertools.count(self._read)):
            for place in range(self._per_step):
                if len(self._running) >= wanted:
                    return
                if place not in self._batch(number).used:
                    self._start(number * self._per_step + place, version, budget)

    def _start(self, index: int, version: int, budget: Budget) -> None:
        if index not in self._running:
            number, place = divmod(index, self._per_step)
            job = asyncio.ensure_future(self._roll(index, self._batch(number).tasks[place], budget))
            self._running[index] = _Group(index, version, job)

    async def _stop(self, group: _Group) -> None:
        del self._running[group.index]
        self._again.add(group.index)
        group.job.cancel()
        await asyncio.gather(group.job, return_exceptions=True)
