"""Group-relative advantages (Eq. 3) and the filters of section 3.3.

The homogeneity filter drops whole groups (`informative_groups`); the format filter and the invalid-output filter drop
members (`member_masks`). Axes: G groups, N members of a group.

    >>> group_advantages(jnp.array([[1.0, 0.0], [0.5, 0.5]]), jnp.ones((2, 2), bool)).tolist()
    [[1.0, -1.0], [0.0, 0.0]]
"""

import chex
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from orchestra_jax.config.choices import InvalidMode

_ROUNDING = 1e-6  # a group whose std equals min_std but for float32 rounding is kept


def member_masks(
    completed: Bool[Array, "G N"], failed: Bool[Array, "G N"], *, invalid: InvalidMode = InvalidMode.drop
) -> Bool[Array, "G N"]:
    """Return the members that take part in their group's mean, std and gradient: the format and invalid-output filters.

    >>> completed, failed = jnp.array([[True, False, False]]), jnp.array([[False, False, True]])
    >>> member_masks(completed, failed).tolist()
    [[True, False, False]]
    >>> member_masks(completed, failed, invalid="zero_reward").tolist()
    [[True, True, False]]

    Args:
        completed: the trajectory gave a final answer (`Status.COMPLETED`). Members that are neither completed nor
            failed broke the tool-call format (MALFORMED) or gave no answer (NO_ANSWER).
        failed: infrastructure failure (`Status.FAILED`) or padding; such a member never takes part.
        invalid: treatment of malformed and unanswered members. "drop" is the paper: they take no part. "zero_reward"
            keeps them in the group, where their reward of 0 (Eq. 2 gives it to every member that is not completed)
            becomes a negative advantage as soon as another member is rewarded.

    Returns:
        The members, to pass as `valid` to `group_advantages`. `preference_reward` takes `completed` in both modes.
    """
    chex.assert_equal_shape([completed, failed])
    alive = ~jnp.asarray(failed).astype(bool)
    return alive & jnp.asarray(completed).astype(bool) if InvalidMode(invalid) is InvalidMode.drop else alive


def informative_groups(
    rewards: Float[Array, "G N"], valid: Bool[Array, "G N"], *, min_std: float = 0.1
) -> Bool[Array, " G"]:
    """Return the groups that carry a gradient: the homogeneity filter.

    >>> informative_groups(jnp.array([[1.0, 0.0], [1.0, 1.0]]), jnp.ones((2, 2), bool)).tolist()
    [True, False]

    A group is False where its population std over the members that are `valid` (`member_masks`) is below `min_std`, and
    always where all valid rewards are equal or none is valid.
    """
    _, std, differs = _moments(jnp.asarray(rewards), jnp.asarray(valid).astype(bool))
    return (differs & (std >= min_std * (1 - _ROUNDING)))[:, 0]


def group_advantages(
    rewards: Float[Array, "G N"],
    valid: Bool[Array, "G N"],
    *,
    min_std: float = 0.1,
    centre: bool = True,
    normalize_std: bool = True,
    clip: float | None = None,
) -> Float[Array, "G N"]:
    """Return Eq. 3, `A = (R - mean) / std` over the valid members of each group, with the homogeneity filter.

    The std is the population form (divisor: number of valid members), both here and in the filter.

    >>> valid = jnp.array([[True, True, False], [True, True, True]])
    >>> group_advantages(jnp.array([[1.0, 0.0, 9.0], [1.0, 1.0, 1.0]]), valid).tolist()
    [[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]

    Args:
        rewards: R of Eq. 2; rewards of members that are not `valid` (`member_masks`) are ignored, NaN included.
        min_std: groups whose reward std is below it get advantages 0 (see `informative_groups`).
        centre, normalize_std: False leaves out the mean, or the division by std (Dr. GRPO); the filter stays.
        clip: if given, advantages are clamped to [-clip, clip]; the authors' training script uses 3.

    Returns:
        A; 0 for members that are not valid and for whole groups that were filtered.
    """
    chex.assert_rank(rewards, 2)
    chex.assert_equal_shape([rewards, valid])
    member = jnp.asarray(valid).astype(bool)
    deviation, std, _ = _moments(jnp.asarray(rewards), member)
    kept = informative_groups(rewards, valid, min_std=min_std)[:, None] & member
    scale = jnp.where(std > 0, std, 1.0) if normalize_std else 1.0
    advantages = jnp.where(kept, (deviation if centre else jnp.asarray(rewards)) / scale, 0.0)
    return advantages if clip is None else jnp.clip(advantages, -clip, clip)


def _moments(
    rewards: Float[Array, "G N"], member: Bool[Array, "G N"]
) -> tuple[Float[Array, "G N"], Float[Array, "G 1"], Bool[Array, "G 1"]]:
    """Return deviations from the group's mean (0 for others), the population std, and whether two members differ."""
    count = jnp.maximum(member.sum(axis=-1, keepdims=True), 1)
    known = jnp.where(member, rewards, 0.0)
    mean = known.sum(axis=-1, keepdims=True) / count
    deviation = jnp.where(member, known - mean, 0.0)
    std = jnp.sqrt((deviation**2).sum(axis=-1, keepdims=True) / count)
    high = jnp.where(member, rewards, -jnp.inf).max(axis=-1, keepdims=True)
    low = jnp.where(member, rewards, jnp.inf).min(axis=-1, keepdims=True)
    return deviation, std, high > low
