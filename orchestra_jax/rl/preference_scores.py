"""The preference score of Eq. 5-6, with which evaluations compare a policy with its starting checkpoint.

Axes: E evaluation examples, F = K + 3 features of `rl.rewards.feature_matrix`.
"""

import chex
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

_COST = -2  # index of -cost in the feature axis; -latency follows it, tools and outcome stand before it


def preference_score(
    M_s: Float[Array, "E F"],
    M_0: Float[Array, "E F"],
    preference: Float[Array, "E F"],
    solved: Bool[Array, " E"],
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
    gains = trained[:, :_COST] / jnp.maximum(1.0, start[:, :_COST])
    savings = jnp.abs(start[:, _COST:]) / jnp.maximum(1.0, jnp.abs(trained[:, _COST:]))
    score = (jnp.concatenate([gains, savings], axis=-1) * preference).sum(axis=-1)
    return jnp.where(jnp.asarray(solved).astype(bool), score, 0.0)
