"""Steps that take more groups until enough have a gradient: which tasks, their seeds, who pays, and a restart."""

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.sharing import joint_position
from orchestra_jax.rollout.source import RolloutSource
from orchestra_jax.training.build import rollout_source
from orchestra_jax.types import Status, Task, Trajectory
from tests.processes.others import Prepared
from tests.rollout.test_stream import Numbers, Rolls, Uneven, indices, make

MEMBERS = 2
TEACH = {0, 3, 4, 8, 9, 11, 13, 14, 15, 19, 20, 22, 25, 26, 30, 33, 34, 37, 39, 40}
AHEAD = (RolloutConfig(), RolloutConfig(max_staleness=1))


class Collecting:
    """A collector whose trajectories tell what they were collected with."""

    environment = None  # brings no source of its own

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[int, ...], str]] = []  # task, seed and group, budget
        self.refused: set[str] = set()

    async def collect(
        self, engine: Any, tasks: Sequence[Task], *, budget: Budget, numbers: Sequence[int], **settings: Any
    ) -> list[Trajectory]:
        ((task,), (number,)) = tasks, numbers
        assert settings["group_size"] == MEMBERS
        if task.id in self.refused:
            raise BudgetExceeded("Too dear.", "step")
        self.made.append((task.id, (*settings["seed"], number), budget.name))
        await asyncio.sleep(0)
        return [Trajectory(task, number, m, (), Status.COMPLETED, "", "", True, ()) for m in range(MEMBERS)]


class Alone(Prepared):
    """One of several processes whose others collect nothing at the moment."""

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def _settle(self, own: Exception | None, value: Any) -> Any:
        if own is not None:
            raise own


def teaching(trajectories: Sequence[Trajectory]) -> np.ndarray:
    return np.array([int(t.task.id) in TEACH for t in trajectories[::MEMBERS]])


def none(trajectories: Sequence[Trajectory]) -> np.ndarray:
    return np.zeros(len(trajectories) // MEMBERS, bool)


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread() as running:
        yield running


def source(
    loop: LoopThread,
    refill: int | None = 3,
    rollout: RolloutConfig = AHEAD[0],
    processes: Processes | None = None,
) -> tuple[RolloutSource, Collecting]:
    algorithm = AlgorithmConfig(tasks_per_step=4, group_size=MEMBERS, refill=refill)
    rollout = dataclasses.replace(rollout, lockstep=False)
    collector: Any = Collecting()
    engine: Any = None
    cfg = RunConfig(algorithm=algorithm, rollout=rollout)
    rest = cfg.seed, collector, engine, Numbers(4), loop, processes
    return rollout_source(cfg.algorithm, cfg.rollout, *rest), collector


def take(rollouts: RolloutSource, step: int, teaches=teaching) -> tuple[list[int], dict[str, float]]:
    """Tasks of a step's groups, in their order, and its counts."""
    trajectories, metrics = rollouts.take(step, step, Budget(name=f"step {step}"), teaches)
    assert [t.member for t in trajectories] == list(range(MEMBERS)) * (len(trajectories) // MEMBERS)
    numbers = [t.group for t in trajectories[::MEMBERS]]
    assert numbers == sorted(set(numbers))
    counts = {name.removeprefix("groups/"): value for name, value in metrics.items() if name.startswith("groups/")}
    return [int(t.task.id) for t in trajectories[::MEMBERS]], counts


def test_a_step_goes_on_with_the_next_tasks_until_enough_have_a_gradient(loop: LoopThread):
    rollouts, collector = source(loop)
    # 0 and 3 teach; of 4 and 5 one; 6; 7; 8.
    assert take(rollouts, 0) == ([*range(9)], {"collected": 9, "taught": 4, "rounds": 5})
    assert take(rollouts, 1) == ([*range(9, 15)], {"collected": 6, "taught": 4, "rounds": 2})
    # Each under the seed that its place in the stream has without refills, and paid by the step that it is for.
    assert collector.made == [(str(n), (0, 2, n // 4, n % 4), "step 0" if n < 9 else "step 1") for n in range(15)]


def test_nothing_else_happens_without_the_key(loop: LoopThread):
    for rollout in AHEAD[1:]:
        rollouts, _ = source(loop, None, rollout)
        assert [take(rollouts, step)[0] for step in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert take(rollouts, 2)[1] == {"restarted": 0 if rollout.max_staleness else 2}
        rollouts.stop()
    assert type(source(loop, None)[0]) is RolloutSource  # whole batches, as ever


@pytest.mark.parametrize("refill", [1, 2])
def test_it_ends_at_the_cap(loop: LoopThread, refill: int):
    rollouts, _ = source(loop, refill)
    size = 4 * (1 + refill)
    assert take(rollouts, 0, none) == ([*range(size)], {"collected": size, "taught": 0, "rounds": 1 + refill})
    assert take(rollouts, 1, none)[0] == [*range(size, 2 * size)]


@pytest.mark.parametrize("rollout", AHEAD, ids=["step", "ahead"])
def test_tasks_are_taken_once_also_after_a_restart_in_the_middle_of_a_batch(loop: LoopThread, rollout: RolloutConfig):
    rollouts, collector = source(loop, rollout=rollout)
    steps = [take(rollouts, step)[0] for step in range(2)]
    state = rollouts.get_state()
    steps += [take(rollouts, step)[0] for step in range(2, 4)]
    rollouts.stop()
    found = [task for step in steps for task in step]
    assert found == list(range(len(found)))  # here none is slow, so they end in their order
    assert [sum(task in TEACH for task in step) for step in steps] == [4] * 4
    again, repeated = source(loop, rollout=rollout)
    again.set_state(state)
    assert again.get_state() == state
    assert [take(again, step)[0] for step in range(2, 4)] == steps[2:]
    again.stop()
    assert {row[:2] for row in repeated.made} <= {row[:2] for row in collector.made}  # under the same seeds


def test_a_budget_that_ends_in_a_refill_leaves_the_position_before_the_step(loop: LoopThread):
    rollouts, collector = source(loop)
    first, _ = take(rollouts, 0)
    state = rollouts.get_state()
    collector.refused = {"14"}
    with pytest.raises(BudgetExceeded):
        take(rollouts, 1)
    assert rollouts.get_state() == state
    collector.refused = set()
    assert sorted(take(rollouts, 1)[0]) == list(range(len(first), 15))
    again, _ = source(loop)  # as a run that is started once more
    again.set_state(state)
    assert take(again, 1)[0] == list(range(len(first), 15))


def test_each_process_makes_up_for_its_own_groups(loop: LoopThread):
    """With the seeds that one process gives them, and a position that one process goes on from."""
    whole, collector = source(loop, 9)
    for step in range(4):
        take(whole, step)
    seeds = {task: seed for task, seed, _ in collector.made}
    parts = []
    for index in range(2):
        rollouts, own = source(loop, 9, processes=Alone(index, 2))
        assert rollouts.per_step == 2
        for step in range(2):
            tasks, counts = take(rollouts, step)
            assert sum(task in TEACH for task in tasks) == counts["taught"] == 2
            assert all(task % 4 // 2 == index for task in tasks)
        assert [task for task, _, _ in own.made] == [str(n) for n in range(40) if n % 4 // 2 == index][: len(own.made)]
        assert all(seeds[task] == seed for task, seed, _ in own.made)
        parts.append((rollouts._position() | {"own": rollouts._own, "size": 4}, {int(task) for task, _, _ in own.made}))
    assert len(parts[0][1]) != len(parts[1][1])
    alone, _ = source(loop, 9)
    alone.set_state(joint_position([part for part, _ in parts]))
    rest = [n for n in range(60) if n not in parts[0][1] | parts[1][1]]
    tasks, _ = take(alone, 2)
    assert tasks == rest[: len(tasks)]


def test_the_figures_are_those_of_all_processes(loop: LoopThread):
    theirs = ([], {"collected": 7, "taught": 1, "rounds": 9})
    rollouts, _ = source(loop, processes=Prepared(0, 2, [theirs]))
    rollouts._processes._settle = lambda own, value: None  # type: ignore[method-assign]
    counts = take(rollouts, 0)[1]
    assert counts == {"collected": 3 + 7, "taught": 2 + 1, "rounds": 9}  # of its own 0, 1 and 4


# --- groups that run ahead -------------------------------------------------------------------------------------------


async def more(stream: Any, version: int, count: int) -> list[int]:
    async with asyncio.timeout(20):
        groups, _ = await stream.take(version, Budget(name=f"step {version}"), count, last=False)
    return [group[0].group for group in groups]


async def test_what_further_groups_did_is_kept_until_the_step_ends():
    rolls = Rolls(1)
    stream = make(rolls, ahead=1)
    assert await more(stream, 0, 4) == [0, 2, 3, 4]
    rolls.slow = set()
    await asyncio.wait([stream._running[1].job])
    assert await more(stream, 0, 2) == [1, 5]
    assert (rolls.cancelled, rolls.started.count(1)) == ([], 1)
    await stream.stop()


@pytest.mark.parametrize("staleness", [1, 2])
async def test_more_groups_are_replaced_by_as_many(staleness: int):
    rolls = Rolls()
    stream = make(rolls, max_staleness=staleness)
    assert await more(stream, 0, 4) == [0, 1, 2, 3]
    for count in (3, 1, 2):
        await more(stream, 0, count)
        assert len(stream._running) == 4 * staleness
    assert await indices(stream, 1) == [10, 11, 12, 13]
    await stream.stop()


@pytest.mark.parametrize("staleness", [1, 3])
async def test_with_more_groups_none_is_too_old_or_begun_for_nothing(staleness: int):
    rolls, seen = Uneven(), list[int]()
    stream = make(rolls, max_staleness=staleness)
    for rolls.step in range(12):
        for count in (4, rolls.step % 4, rolls.step % 3):
            found = await more(stream, rolls.step, count) if count else []
            assert all(rolls.step - dict(rolls.begun)[index] <= staleness for index in found)
            seen += found
    await stream.stop()
    assert len(rolls.begun) == len(dict(rolls.begun)), "a group begins once"
    assert len(seen) == len(set(seen))
    assert set(range(len(seen) - 4 * (staleness + 1))) <= set(seen), "a slow task is waited for in the end"
