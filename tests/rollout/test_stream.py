"""The stream of groups: what is handed out, what is started anew, and where it goes on after a restart."""

import asyncio
import itertools

import pytest

from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.stream import GroupStream
from orchestra_jax.types import Preference, Status, Task, Trajectory

SECONDS = 20.0


class Numbers:
    """Batches of tasks named by their place in the stream."""

    def __init__(self, size: int) -> None:
        self.size, self.position = size, 0

    def __next__(self) -> list[Task]:
        first = self.position * self.size
        self.position += 1
        return [Task(str(first + i), "", (), (), Preference("accuracy", "")) for i in range(self.size)]

    def get_state(self) -> dict[str, int]:
        return {"position": self.position}

    def set_state(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Rolls:
    """Ends a group when it is told to; remembers when each began."""

    def __init__(self, *slow: int) -> None:
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self.slow = set(slow)
        self.fails: set[int] = set()
        self.budgets: dict[int, str] = {}

    async def __call__(self, index: int, task: Task, budget: Budget) -> list[Trajectory]:
        assert task.id == str(index)
        self.started.append(index)
        self.budgets[index] = budget.name
        try:
            while index in self.slow:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled.append(index)
            raise
        if index in self.fails:
            raise OSError(f"group {index} broke")
        return [Trajectory(task, index, 0, (), Status.COMPLETED, "", "", True, ())]


class Uneven:
    """Ends some groups later than others; remembers the step that each began in."""

    def __init__(self) -> None:
        self.step, self.begun, self.delays = 0, list[tuple[int, int]](), itertools.cycle([0, 3, 1, 0, 0, 9, 2])

    async def __call__(self, index: int, task: Task, budget: Budget) -> list[Trajectory]:
        self.begun.append((index, self.step))
        for _ in range(next(self.delays)):
            await asyncio.sleep(0.001)
        return [Trajectory(task, index, 0, (), Status.COMPLETED, "", "", True, ())]


def make(rolls: Rolls | Uneven, **options) -> GroupStream:
    return GroupStream(rolls, Numbers(4), per_step=4, **options)


async def indices(stream: GroupStream, version: int) -> list[int]:
    async with asyncio.timeout(SECONDS):
        groups, _ = await stream.take(version, Budget(name=f"step {version}"))
    return [group[0].group for group in groups]


async def test_synchronous_steps_take_the_batches_one_by_one():
    rolls = Rolls()
    stream = make(rolls)
    assert [await indices(stream, version) for version in range(3)] == [[4 * n + i for i in range(4)] for n in range(3)]
    assert rolls.started == list(range(12))


@pytest.mark.parametrize("staleness", [1, 2])
async def test_the_next_steps_groups_run_while_the_learner_updates(staleness: int):
    rolls = Rolls()
    stream = make(rolls, max_staleness=staleness)
    assert await indices(stream, 0) == [0, 1, 2, 3]
    assert rolls.started == list(range(4 * (staleness + 1)))
    assert await indices(stream, 1) == [4, 5, 6, 7]
    await asyncio.sleep(0)
    assert rolls.started == list(range(4 * (staleness + 2)))
    await stream.stop()


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_slow_group_is_carried_over_or_begun_anew_and_paid_by_the_step_in_which_it_begins(staleness: int):
    rolls = Rolls(1)
    stream = make(rolls, max_staleness=staleness, ahead=4 * staleness + 1)
    assert await indices(stream, 0) == [0, 2, 3, 4]
    assert rolls.cancelled == [1] * (1 - staleness)  # without staleness it begins anew
    assert set(rolls.budgets.values()) == {"step 0"}
    begun, rolls.slow = len(rolls.started), set()
    await asyncio.sleep(0.01)
    assert await indices(stream, 1) == [1, 5, 6, 7]
    await asyncio.sleep(0)  # what the step began only now
    assert rolls.started.count(1) == 2 - staleness
    assert rolls.budgets[1] == f"step {1 - staleness}"
    assert {rolls.budgets[index] for index in rolls.started[begun:]} == {"step 1"}
    await stream.stop()


async def ends_without(rolls: Rolls, stream: GroupStream, version: int, slow: int) -> list[int]:
    """The groups of a step that must not end before the slow group does."""
    async with asyncio.timeout(SECONDS):
        later = asyncio.ensure_future(stream.take(version, Budget(name=f"step {version}")))
        await asyncio.sleep(0.05)
        assert not later.done()
        rolls.slow.remove(slow)
        return [group[0].group for group in (await later)[0]]


async def test_a_group_that_would_be_too_old_for_the_next_step_is_waited_for():
    rolls = Rolls(1)
    stream = make(rolls, max_staleness=2)
    assert [await indices(stream, version) for version in range(2)] == [[0, 2, 3, 4], [5, 6, 7, 8]]
    assert await ends_without(rolls, stream, 2, slow=1) == [1, 9, 10, 11]
    assert rolls.cancelled == []
    assert rolls.started.count(1) == 1
    await stream.stop()


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("more", [0, 3])
async def test_every_task_is_used_exactly_once_and_none_is_too_old(staleness: int, more: int):
    rolls = Uneven()
    stream = make(rolls, max_staleness=staleness, ahead=4 * staleness + more)
    seen: list[int] = []
    for rolls.step in range(12):
        found = await indices(stream, rolls.step)
        assert all(rolls.step - dict(rolls.begun)[index] <= staleness for index in found)
        seen += found
    await stream.stop()
    assert len(seen) == len(set(seen)) == 48
    assert set(range(48 - 4 * (staleness + 1) - more)) <= set(seen), "a slow task is waited for in the end"


async def test_a_restart_goes_on_with_the_tasks_that_were_not_used():
    rolls = Rolls(1, 6)
    stream = make(rolls, max_staleness=1, ahead=7)
    used = [*await indices(stream, 0), *await indices(stream, 1)]
    state = stream.get_state()
    await stream.stop()
    again = make(Rolls(), max_staleness=1, ahead=7)
    again.set_state(state)
    assert again.get_state() == state
    for version in range(2, 5):
        used += await indices(again, version)
    await again.stop()
    assert len(set(used)) == len(used) == 20
    assert {1, 6} <= set(used)


async def test_a_restart_does_not_use_a_batch_again_that_was_used_up_before_an_earlier_one():
    rolls = Rolls(0)
    stream = make(rolls, max_staleness=1, ahead=5)
    used = [*await indices(stream, 0), *await indices(stream, 1)]
    assert {4, 5, 6, 7} <= set(used), "the second batch is used up, the first waits for group 0"
    state = stream.get_state()
    await stream.stop()
    again = make(Rolls(), max_staleness=1, ahead=5)
    again.set_state(state)
    used += await indices(again, 2)
    await again.stop()
    assert sorted(used) == [*range(12)]


async def test_a_failure_reaches_the_caller_and_the_group_starts_anew():
    rolls = Rolls()
    rolls.fails = {2}
    stream = make(rolls)
    with pytest.raises(OSError, match="group 2 broke"):
        await indices(stream, 0)
    rolls.fails = set()
    assert await indices(stream, 0) == [0, 1, 2, 3]
    await stream.stop()
