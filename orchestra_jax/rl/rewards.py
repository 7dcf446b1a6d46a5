"""The features of a trajectory, the preference reward of Eq. 2 and the preference score of Eq. 5-6.

Axes: G groups (one per task), N members of a group (rollouts), E evaluation examples, K tools, F = K + 3 features.
The feature order is fixed everywhere: K tools in the order of the instance's menu, outcome, -cost, -latency.

    >>> feature_matrix(jnp.array([[[1]]]), jnp.array([[True]]), jnp.array([[0.5]]), jnp.array([[2.0]])).tolist()
    [[[1.0, 1.0, -0.5, -2.0]]]
"""

import chex
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Num

from orchestra_jax.config.choices import ToolFeature

OUTCOME, COST = -3, -2  # indices of r_outcome and -cost in the feature axis; -latency follows them


def feature_matrix(
    tool_counts: Num[Array, "G N K"],
    solved: Bool[Array, "G N"],
    cost_usd: Float[Array, "G N"],
    latency_s: Float[Array, "G N"],
    *,
    tool_feature: ToolFeature = ToolFeature.count,
) -> Float[Array, "G N F"]:
    """Return M (section 3.2): `[m_t1 .. m_tK, r_outcome, r_compute, r_latency]` for every trajectory.

    A trajectory that called the first of two tools twice, was right, cost 25 cents and took 4 seconds:

    >>> feature_matrix(jnp.array([[[2, 0]]]), jnp.array([[True]]), jnp.array([[0.25]]), jnp.array([[4.0]])).tolist()
    [[[2.0, 0.0, 1.0, -0.25, -4.0]]]

    Args:
        tool_counts: number of calls of each tool; padding tools have 0.
        solved: r_outcome of Eq. 1.
        cost_usd, latency_s: dollars and seconds of the trajectory, >= 0; they enter M negated.
        tool_feature: meaning of m_t. "count" is the paper's number of calls; "used" is 1 if the tool was called at all,
            else 0; "share" is the count over the trajectory's calls of all tools, 0 when there were none.

    Returns:
        M with F = K + 3, in float32 (float64 if an input is).
    """
    cost, latency = jnp.asarray(cost_usd), jnp.asarray(latency_s)
    chex.assert_equal_shape([solved, cost, latency])
    chex.assert_shape(tool_counts, (*cost.shape, None))
    dtype = jnp.result_type(cost.dtype, latency.dtype, jnp.float32)
    counts = jnp.asarray(tool_counts).astype(dtype)
    match ToolFeature(tool_feature):
        case ToolFeature.count:
            tools = counts
        case ToolFeature.used:
            tools = (counts > 0).astype(dtype)
        case ToolFeature.share:
            total = counts.sum(axis=-1, keepdims=True)
            tools = counts / jnp.where(total > 0, total, 1.0)
    rest = jnp.stack([jnp.asarray(solved).astype(dtype), -cost.astype(dtype), -latency.astype(dtype)], axis=-1)
    return jnp.concatenate([tools, rest], axis=-1)


def normalize_features(
    M: Float[Array, "G N F"], valid: Bool[Array, "G N"], *, normalize_outcome: bool = True
) -> Float[Array, "G N F"]:
    """Return the min-max over the valid members of each group: `(M[k] - min) / (max - min)`, 0 where max equals min.

    Rows of invalid members are 0, whatever they hold (NaN included), and take no part in the minimum and maximum.

    >>> M = jnp.array([[[1.0, 1.0, -0.02, -4.0], [0.0, 1.0, -0.01, -2.0], [5.0, 1.0, -9.0, -9.0]]])
    >>> normalize_features(M, jnp.array([[True, True, False]])).tolist()
    [[[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]]

    `normalize_outcome=False` leaves the outcome element of valid members as it is (0 or 1).
    """
    features = jnp.asarray(M)
    member = jnp.asarray(valid).astype(bool)[..., None]
    low = jnp.where(member, features, jnp.inf).min(axis=-2, keepdims=True)
    high = jnp.where(member, features, -jnp.inf).max(axis=-2, keepdims=True)
    spread = high > low  # False for constant features and for groups without a valid member
    inside = member & spread
    norm = jnp.where(inside, features - low, 0.0) / jnp.where(spread, high - low, 1.0)
    if not normalize_outcome:
        norm = norm.at[..., OUTCOME].set(jnp.where(member[..., 0], features[..., OUTCOME], 0.0))
    return norm


def preference_reward(
    M: Float[Array, "G N F"],
    preference: Float[Array, "G F"],
    solved: Bool[Array, "G N"],
    valid: Bool[Array, "G N"],
    tool_mask: Bool[Array, "G F"],
    *,
    normalize_outcome: bool = True,
) -> Float[Array, "G N"]:
    """Return Eq. 2: `R = M_norm . P` for solved trajectories, 0 for unsolved ones.

    Two trajectories of a user who wants low cost; both are right, the second is cheaper:

    >>> M = jnp.array([[[1.0, 1.0, -0.02, -4.0], [0.0, 1.0, -0.01, -4.0]]])
    >>> both, all_features = jnp.array([[True, True]]), jnp.ones((1, 4), bool)
    >>> preference_reward(M, jnp.array([[0.0, 1.0, 1.0, 0.0]]), both, both, all_features).tolist()
    [[0.0, 1.0]]

    Args:
        preference: P of each group's instance, elements in [0, 1], in the feature order of M.
        valid: members that completed. Only they set the min-max, and the others get 0: pass the completed members here
            also when `advantages.member_masks` keeps malformed ones in the group.
        tool_mask: features that exist for the instance: False for padding tools, True for outcome, cost and latency.
            A feature that does not exist adds nothing, whatever M and P hold there.
        normalize_outcome: True is the paper: in a group that is all right the outcome element is 0 for all. False
            uses the outcome as it is, so every solved member gets `p_outcome`.
    """
    groups, members, features = jnp.shape(M)
    chex.assert_shape([preference, tool_mask], (groups, features))
    chex.assert_shape([solved, valid], (groups, members))
    exists = jnp.asarray(tool_mask).astype(bool)
    weights = jnp.where(exists, preference, 0.0)[:, None, :]
    norm = jnp.where(exists[:, None, :], normalize_features(M, valid, normalize_outcome=normalize_outcome), 0.0)
    rewarded = jnp.asarray(solved).astype(bool) & jnp.asarray(valid).astype(bool)
    return jnp.where(rewarded, (norm * weights).sum(axis=-1), 0.0)


def preference_score(
    M_s: Float[Array, "E F"], M_0: Float[Array, "E F"], preference: Float[Array, "E F"], solved: Bool[Array, " E"]
) -> Float[Array, " E"]:
    """Return Eq. 5-6: how well the trained policy follows the preference, relative to the starting checkpoint.

    The trained policy called one tool as often as before, was right too, and was two times as fast:

    >>> M_s, M_0 = jnp.array([[1.0, 1.0, -2.0, -4.0]]), jnp.array([[1.0, 1.0, -2.0, -8.0]])
    >>> preference_score(M_s, M_0, jnp.array([[0.0, 1.0, 0.0, 0.5]]), jnp.array([True])).tolist()
    [2.0]

    Eq. 5: tools and outcome give `M_s / max(1, M_0)`, cost and latency give `M_0 / max(1, M_s)`. M holds cost and
    latency as negatives and Eq. 5 is about magnitudes, so their absolute values are used here. Because of `max(1, .)`
    the score depends on their units: below one dollar or one second a saving no longer raises it. Eq. 6: dot with P if
    the trained policy solved the example, else 0.

    `M_s` and `M_0` are features of the trained policy and of the starting checkpoint on the same examples, in the same
    units, not normalised. Padding tools must weigh 0 in P. The benchmark's figure is the sum over the examples.
    """
    trained, start = jnp.asarray(M_s), jnp.asarray(M_0)
    chex.assert_equal_shape([trained, start, preference])
    chex.assert_shape(solved, trained.shape[:1])
    gains = trained[:, :COST] / jnp.maximum(1.0, start[:, :COST])
    savings = jnp.abs(start[:, COST:]) / jnp.maximum(1.0, jnp.abs(trained[:, COST:]))
    score = (jnp.concatenate([gains, savings], axis=-1) * preference).sum(axis=-1)
    return jnp.where(jnp.asarray(solved).astype(bool), score, 0.0)
