"""Which groups are whose, and a position in the tasks that any number of processes goes on from."""

import itertools

import pytest

from orchestra_jax.config.schema import AlgorithmConfig
from orchestra_jax.rollout.sharing import TasksOfProcess, groups_of_process, joint_position
from tests.processes.others import Prepared
from tests.rollout.test_stream import Numbers


@pytest.mark.parametrize(("tasks", "minibatches"), [(16, 1), (16, 4), (12, 3), (10, 2)])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_group_has_one_owner_and_a_minibatch_is_split_evenly(tasks: int, minibatches: int, count: int):
    algorithm = AlgorithmConfig(tasks_per_step=tasks, minibatches=minibatches)
    owned = [groups_of_process(algorithm, Prepared(index, count)) for index in range(count)]
    assert sorted(itertools.chain(*owned)) == list(range(tasks))
    size = tasks // minibatches
    for groups in owned:
        shares = [[group % size for group in groups if group // size == m] for m in range(minibatches)]
        # The same places of every minibatch: local trajectories divide into minibatches as the whole step's do.
        assert all(share == shares[0] for share in shares)
        assert size // count <= len(shares[0]) <= -(-size // count)


def test_own_tasks_are_places_of_the_batches():
    tasks = TasksOfProcess(Numbers(4), [1, 3])
    assert [[task.id for task in next(tasks)] for _ in range(2)] == [["1", "3"], ["5", "7"]]
    state = tasks.get_state()
    assert state == {"position": 2}
    other = TasksOfProcess(Numbers(4), [0])
    other.set_state(state)
    assert [task.id for task in next(other)] == ["8"]


def test_the_whole_position_is_that_of_the_process_behind_with_all_that_is_used():
    parts = [
        {"batches": {"at": 1}, "number": 1, "used": [4], "own": [0, 1], "size": 4},
        # Two batches ahead: all its groups of batches 1 and 2 are used.
        {"batches": {"at": 3}, "number": 3, "used": [14], "own": [2, 3], "size": 4},
    ]
    assert joint_position(parts) == {"batches": {"at": 1}, "number": 1, "used": [4, 6, 7, 10, 11, 14]}
