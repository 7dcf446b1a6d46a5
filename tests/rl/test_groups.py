"""Groups as arrays, and their rewards and advantages: by hand, and in one program."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from orchestra_jax.config.algorithm import AdvantageConfig, AlgorithmConfig
from orchestra_jax.config.schema import RewardConfig, RunConfig
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.rl import groups
from orchestra_jax.rl.groups import GroupArrays, group_arrays, trained_groups
from orchestra_jax.types import Preference, Status, Task, Usage
from tests.rl.test_advantages import brute_force_advantages
from tests.rl.test_rewards import brute_force_reward
from tests.training.test_trainer import config

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
    for few, size in ((members, 0), ([], 2)):
        with pytest.raises(ValueError, match=f"{len(few)} trajectories do not divide into groups of {size}"):
            group_arrays(few, size)


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


def members(task: Task) -> list:
    """A group of three, of which two solve the task by the first tool."""
    calls = task.tools[0].name
    return [trajectory(task, turn([1], [2], calls * solved), solved=bool(solved)) for solved in (1, 1, 0)]


async def test_menus_of_all_sizes_are_scored_by_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cfg = config(tmp_path)

    def rewarded(group: list, max_tools: int | None = None) -> tuple:
        return groups.reward_groups(group_arrays(group, 3, max_tools), cfg.reward, cfg.algorithm.advantage)

    environment = make_environment(cfg)
    stream = environment.train_tasks(8)
    tasks = [task for _ in range(4) for task in next(stream)]
    sizes = {len(task.tools) for task in tasks}
    assert len(sizes) > 2, "the test needs menus of several sizes"
    assert max(sizes) <= environment.largest_menu()
    traced, original = [], groups.reward_groups.__wrapped__

    def counted(arrays, reward, advantage):
        traced.append(arrays.tool_counts.shape)
        return original(arrays, reward, advantage)

    # A function of its own: what other tests have traced is none of it.
    monkeypatch.setattr(groups, "reward_groups", jax.jit(counted, static_argnames=("reward", "advantage")))
    found = []
    for each in tasks:
        found.append(rewarded(members(each), environment.largest_menu()))
    assert len(traced) == 1
    # Padding changes nothing but the number of programs.
    for each, padded in zip(tasks, found, strict=True):
        for wide, narrow in zip(padded, rewarded(members(each)), strict=True):
            np.testing.assert_allclose(wide, narrow, rtol=1e-6)
    assert len(traced) == len(sizes | {environment.largest_menu()})
    await environment.close()


def test_groups_are_scored_so_many_at_a_time_and_with_the_largest_menu_so_far(monkeypatch: pytest.MonkeyPatch):
    """In the shape of a step of two groups of one, whatever their number: nothing is compiled anew."""
    shapes = []

    def scored(arrays: GroupArrays, *settings) -> tuple:
        shapes.append(arrays.tool_counts.shape)
        return arrays.cost_usd, arrays.latency_s, arrays.failed[:, 0]

    monkeypatch.setattr(groups, "reward_groups", scored)
    rewards = groups.GroupRewards(RewardConfig(), AdvantageConfig(), 1, 2, 1)
    narrow, wide = (
        trajectory(task("a", tools, Preference("", "")), turn([1], [2]), ledger=[Usage("x", cost_usd=len(tools))])
        for tools in ("x", "x y z")
    )
    for given in ([narrow] * 2, [wide, narrow, wide], [narrow] * 2):
        costs, seconds, kept = rewards.reward_and_advantage(given)
        assert costs.tolist() == [[member.cost_usd] for member in given]
        assert len(seconds) == len(kept) == len(given)
    assert shapes == [(2, 1, 1), (2, 1, 3), (2, 1, 3), (2, 1, 3)]


def brute_force(cfg: RunConfig, a: GroupArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eq. 2 and 3 with the filters, one member after the other."""
    counts, advantage = a.tool_counts, cfg.algorithm.advantage
    share = counts / np.maximum(1, counts.sum(-1, keepdims=True))
    tools = {"count": counts, "used": counts > 0, "share": share}[cfg.reward.tool_feature]
    rest = np.stack([a.solved, -(a.cost_usd**cfg.reward.cost_power), -a.latency_s], axis=-1)
    scale = [cfg.reward.tools] * tools.shape[-1] + [cfg.reward.outcome, cfg.reward.compute, cfg.reward.latency]
    features = np.concatenate([tools, rest], axis=-1)
    rewards = brute_force_reward(
        features, a.preference * scale, a.solved, a.completed, a.tool_mask, cfg.reward.normalize_outcome
    )
    members = a.completed if advantage.invalid == "drop" else ~a.failed
    options = {name: getattr(advantage, name) for name in ("min_std", "centre", "normalize_std", "clip")}
    advantages = brute_force_advantages(rewards, members, **options)
    return rewards, advantages, advantages.any(axis=-1)


def hand_made() -> GroupArrays:
    """Three groups of five: everything happens in the first, the second is all right, the third all wrong."""
    counts = np.array(
        [
            [[1, 0, 0], [0, 2, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]],
            [[1, 0, 0], [0, 1, 0], [0, 0, 3], [0, 1, 1], [1, 0, 0]],
            [[1, 0, 0]] * 5,
        ],
        np.float32,
    )
    yes, no = True, False
    return GroupArrays(
        tool_counts=counts,
        solved=np.array([[yes, yes, no, no, no], [yes] * 5, [no] * 5]),
        completed=np.array([[yes, yes, yes, no, no], [yes] * 5, [yes, yes, no, yes, yes]]),
        failed=np.array([[no, no, no, no, yes], [no] * 5, [no] * 5]),
        cost_usd=np.array([[0.01, 0.08, 0.02, 9.0, 50.0], [0.0, 0.1, 0.2, 0.1, 0.0], [0.1] * 5], np.float32),
        latency_s=np.array([[3, 9, 4, 99, 999], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], np.float32),
        preference=np.array([[0.4, 0, 0, 0.5, 0.25, 0.25], [0, 0.3, 0.9, 0.5, 0.5, 0], [0, 0, 0, 1, 0, 0]], np.float32),
        tool_mask=np.array([[yes, yes, no, yes, yes, yes], [yes] * 6, [yes] * 6]),
    )


@pytest.mark.parametrize("invalid", ["drop", "zero_reward"])
@pytest.mark.parametrize(
    "reward",
    [
        RewardConfig(tool_feature="share"),
        RewardConfig(tool_feature="count", normalize_outcome=False),
        RewardConfig(outcome=0.5, compute=0.25, latency=0.0, tools=0.75, tool_feature="used"),
        RewardConfig(cost_power=0.5),
    ],
    ids=["share", "outcome as it is", "multipliers", "root of the cost"],
)
def test_reward_groups_is_the_paper_by_hand(invalid: str, reward: RewardConfig):
    advantage = AdvantageConfig(invalid=invalid, clip=1.25)
    cfg = replace(RunConfig(), reward=reward, algorithm=AlgorithmConfig(advantage=advantage))
    rewarded = groups.reward_groups(hand_made(), cfg.reward, advantage)
    for found, expected in zip(rewarded, brute_force(cfg, hand_made()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"min_std": 0.4}, {"centre": False, "normalize_std": False}])
def test_the_settings_of_the_advantage_are_those_of_the_groups(options: dict):
    """The std of the first two groups is .58 and .18."""
    cfg = replace(RunConfig(), algorithm=AlgorithmConfig(advantage=AdvantageConfig(**options)))
    expected = brute_force(cfg, hand_made())
    rewarded = groups.reward_groups(hand_made(), cfg.reward, cfg.algorithm.advantage)
    for found, wanted in zip(rewarded, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(expected[1], brute_force(RunConfig(), hand_made())[1])  # they differ from the defaults
