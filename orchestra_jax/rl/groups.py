"""The [G, N] arrays that rewards and advantages are computed from, made from trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

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
    if len(trajectories) % group_size:
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
