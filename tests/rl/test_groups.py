import numpy as np
import pytest

from orchestra_jax.rl.groups import group_arrays, trained_groups
from orchestra_jax.types import Preference, Status, Usage

from .trajectories import task, trajectory, turn


def test_group_arrays_by_hand():
    first = task("a", "python web", Preference("local", "", {"web": 0.2, "python": 0.4, "absent": 1.0}, 0.6))
    second = task("b", "web small large", Preference("cost", "", {}, 0.5, compute=0.3, latency=0.2))
    paid = [
        Usage("orchestrator", "orchestrator", cost_usd=0.25, seconds=1.0),
        Usage("web", cost_usd=0.5, seconds=2.0),
        Usage("judge", "judge", cost_usd=9.0, seconds=9.0),
        Usage("user", "user_simulator", cost_usd=9.0, seconds=9.0),
    ]
    members = [
        trajectory(first, turn([1], [2], "web"), turn([3], [4], "python web"), ledger=paid),
        trajectory(first, turn([1], [2]), status=Status.MALFORMED, solved=False),
        trajectory(second, turn([1], [2], "large large"), turn([1], [5], "small"), ledger=paid[:1]),
        trajectory(second, turn([1], [2], "web small", results=1), status=Status.FAILED, solved=False),
    ]
    arrays = group_arrays(members, 2)
    np.testing.assert_array_equal(arrays.tool_counts, [[[1, 2, 0], [0, 0, 0]], [[0, 1, 2], [1, 0, 0]]])
    np.testing.assert_array_equal(arrays.solved, [[True, False], [True, False]])
    np.testing.assert_array_equal(arrays.completed, [[True, False], [True, False]])
    np.testing.assert_array_equal(arrays.failed, [[False, False], [False, True]])
    np.testing.assert_array_equal(arrays.cost_usd, [[0.75, 0], [0.25, 0]])
    np.testing.assert_array_equal(arrays.latency_s, [[3, 0], [1, 0]])
    wanted = [[0.4, 0.2, 0, 0.6, 0, 0], [0, 0, 0, 0.5, 0.3, 0.2]]
    np.testing.assert_array_equal(arrays.preference, np.float32(wanted))
    np.testing.assert_array_equal(arrays.tool_mask, [[True, True, False, True, True, True], [True] * 6])


def test_group_arrays_pads_to_a_given_menu_size():
    arrays = group_arrays([trajectory(task("a", "x", Preference("", "")), turn([1], [2], "x"))], 1, max_tools=3)
    np.testing.assert_array_equal(arrays.tool_counts, [[[1, 0, 0]]])
    np.testing.assert_array_equal(arrays.preference, [[0, 0, 0, 1, 0, 0]])
    np.testing.assert_array_equal(arrays.tool_mask, [[True, False, False, True, True, True]])


def test_a_wrong_group_size_is_an_error():
    members = [trajectory(task("a", "x", Preference("", "")), turn([1], [2]))] * 3
    with pytest.raises(ValueError, match="3 trajectories do not divide into groups of 2"):
        group_arrays(members, 2)


def test_a_menu_larger_than_promised_still_fits():
    asked = task("a", "x y z", Preference("", ""))
    arrays = group_arrays([trajectory(asked, turn([1], [2], "z"))], 1, max_tools=2)
    np.testing.assert_array_equal(arrays.tool_counts, [[[0, 0, 1]]])


@pytest.mark.parametrize(
    ("kept", "count", "wanted"),
    [
        ("0110", 4, [0, 1, 2, 3]),
        ("01011", 3, [1, 3, 4]),
        ("000010", 2, [0, 4]),
        ("0000", 2, [0, 1]),
        ("01" + "0" * 38, 3, [0, 1, 2]),
    ],
)
def test_the_update_sees_groups_with_a_gradient_first(kept: str, count: int, wanted: list[int]):
    assert trained_groups(np.array([flag == "1" for flag in kept]), count).tolist() == wanted
