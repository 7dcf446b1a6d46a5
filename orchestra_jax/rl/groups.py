"""Rewards and advantages of groups of trajectories: their ledgers as [G, N] arrays, then Eq. 2, Eq. 3 and the filters.

A trajectory's dollars and seconds are sums over the ledger rows of policy and tools, without those of the judge and the
user; of a turn's calls the longest counts (`types.Trajectory`). A step calls `GroupRewards.reward_and_advantage`.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from orchestra_jax.config.algorithm import AdvantageConfig
from orchestra_jax.config.schema import RewardConfig
from orchestra_jax.rl.advantages import group_advantages, informative_groups, member_masks
from orchestra_jax.rl.rewards import feature_matrix, preference_reward
from orchestra_jax.types import Status, Trajectory


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupArrays:
    """Arrays of G groups of N members for the reward; K is the largest menu, F = K + 3.

    Attributes:
        tool_counts: executed calls of each tool of the instance's menu, menu order.
        solved, completed, failed: r_outcome; the trajectory gave an answer; infrastructure failure.
        cost_usd, latency_s: dollars and seconds of the trajectory.
        preference: P in the feature order of `rewards.feature_matrix`.
        tool_mask: features that exist for the instance.
    """

    tool_counts: Float[np.ndarray, "G N K"]
    solved: Bool[np.ndarray, "G N"]
    completed: Bool[np.ndarray, "G N"]
    failed: Bool[np.ndarray, "G N"]
    cost_usd: Float[np.ndarray, "G N"]
    latency_s: Float[np.ndarray, "G N"]
    preference: Float[np.ndarray, "G F"]
    tool_mask: Bool[np.ndarray, "G F"]


def trained_groups(informative: Bool[np.ndarray, " G"], count: int) -> Int[np.ndarray, " count"]:
    """Return the `count` groups that the update sees, in order: those with a gradient, then the first of the others."""
    return np.sort(np.argsort(~informative, kind="stable")[:count])


def group_arrays(trajectories: Sequence[Trajectory], group_size: int, max_tools: int | None = None) -> GroupArrays:
    """Return the arrays of trajectories that are ordered by group, then member (as `Collector.collect` returns them).

    Examples:
        >>> from orchestra_jax.api import play
        >>> from orchestra_jax.config.compose import compose
        >>> arrays = group_arrays([play(compose(), name) for name in ("preference_oracle", "do_nothing")], group_size=2)
        >>> arrays.solved.tolist(), arrays.tool_counts.sum(axis=2).tolist()
        ([[True, False]], [[1.0, 0.0]])

    K is `max_tools`, or that of the largest menu among the trajectories where this is larger.
    """
    if not trajectories or group_size < 1 or len(trajectories) % group_size:
        raise ValueError(f"{len(trajectories)} trajectories do not divide into groups of {group_size}.")
    groups = [trajectories[i : i + group_size] for i in range(0, len(trajectories), group_size)]
    tools = max(max_tools or 0, *(len(t.task.tools) for t in trajectories))
    counts = np.zeros((len(groups), group_size, tools), np.float32)
    preference = np.zeros((len(groups), tools + 3), np.float32)
    tool_mask = np.zeros((len(groups), tools + 3), bool)
    for g, members in enumerate(groups):
        task = members[0].task
        names = [spec.name for spec in task.tools]
        wanted = task.preference
        preference[g, : len(names)] = [wanted.tools.get(name, 0.0) for name in names]
        preference[g, tools:] = wanted.outcome, wanted.compute, wanted.latency
        tool_mask[g, : len(names)] = tool_mask[g, tools:] = True
        for n, member in enumerate(members):
            called = member.tool_names
            counts[g, n, : len(names)] = [called.count(name) for name in names]

    def column(values: Sequence[float | bool], dtype: type) -> np.ndarray:
        return np.array(values, dtype).reshape(len(groups), group_size)

    return GroupArrays(
        tool_counts=counts,
        solved=column([t.solved for t in trajectories], bool),
        completed=column([t.completed for t in trajectories], bool),
        failed=column([t.status is Status.FAILED for t in trajectories], bool),
        cost_usd=column([t.cost_usd for t in trajectories], np.float32),
        latency_s=column([t.latency_s for t in trajectories], np.float32),
        preference=preference,
        tool_mask=tool_mask,
    )


@functools.partial(jax.jit, static_argnames=("reward", "advantage"))
def reward_groups(
    arrays: GroupArrays, reward: RewardConfig, advantage: AdvantageConfig
) -> tuple[Float[jax.Array, "G N"], Float[jax.Array, "G N"], Bool[jax.Array, " G"]]:
    """Return rewards (Eq. 2), advantages (Eq. 3 and the filters), and which groups have a gradient.

    The user's wish P is multiplied by the weights of `reward.*`, and dollars enter to the power `reward.cost_power`.
    """
    given: Any = arrays  # traced: its fields are jax arrays here
    tools = given.preference.shape[1] - 3
    scale = np.array([*[reward.tools] * tools, reward.outcome, reward.compute, reward.latency], np.float32)
    wish, cost = given.preference * scale, given.cost_usd**reward.cost_power
    features = feature_matrix(given.tool_counts, given.solved, cost, given.latency_s, tool_feature=reward.tool_feature)
    rewards = preference_reward(
        features, wish, given.solved, given.completed, given.tool_mask, normalize_outcome=reward.normalize_outcome
    )
    members = member_masks(given.completed, given.failed, invalid=advantage.invalid)
    advantages = group_advantages(
        rewards,
        members,
        min_std=advantage.min_std,
        centre=advantage.centre,
        normalize_std=advantage.normalize_std,
        clip=advantage.clip,
    )
    return rewards, advantages, informative_groups(rewards, members, min_std=advantage.min_std)


class GroupRewards:
    """Computes rewards and advantages of any number of groups, `per_step` at a time, by `reward_groups`.

    So nothing is compiled anew, and a group's figures are the same to the bit whatever was collected after it.

    Args:
        per_step: groups that this process trains on in a step.
        menu: most tools of a task, as far as the environment knows.
    """

    def __init__(
        self, reward: RewardConfig, advantage: AdvantageConfig, group_size: int, per_step: int, menu: int | None
    ) -> None:
        self._reward, self._advantage, self._size = reward, advantage, group_size
        self.per_step, self._menu = per_step, menu

    def reward_and_advantage(
        self, trajectories: Sequence[Trajectory]
    ) -> tuple[Float[np.ndarray, "G N"], Float[np.ndarray, "G N"], Bool[np.ndarray, " G"]]:
        """Return rewards, advantages, and which groups have a gradient, of trajectories ordered by group and member."""
        size = self._size
        part, found = self.per_step * size, []
        for first in range(0, len(trajectories), part):
            own = trajectories[first : first + part]
            arrays = group_arrays([*own, *trajectories[: part - len(own)]], size, self._menu)
            self._menu = arrays.tool_counts.shape[-1]
            found.append(reward_groups(arrays, self._reward, self._advantage))
        rewards, advantages, informative = (
            np.concatenate(figures)[: len(trajectories) // size] for figures in zip(*found, strict=True)
        )
        return rewards, advantages, informative

    def informative(self, trajectories: Sequence[Trajectory]) -> Bool[np.ndarray, " G"]:
        """Return which groups have a gradient."""
        return self.reward_and_advantage(trajectories)[2]
