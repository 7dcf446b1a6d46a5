"""Statistics over the entries of an array that a mask keeps, and the bound of all log-ratios. B sequences, T tokens."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

MAX_LOG_RATIO = 20.0  # exp(20) is far outside every clip range and squares safely in float32


def masked_mean(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, ""]:
    """Return the mean of the entries that the mask keeps, or 0 if it keeps none."""
    return jnp.where(mask, values, 0.0).sum() / jnp.maximum(mask.sum(), 1)


def gap_metrics(
    log_ratio: Float[Array, "B T"], weights: Float[Array, "B T"], mask: Bool[Array, "B T"]
) -> dict[str, Float[Array, ""]]:
    """Return how far learner and engine are apart in nats, and the effective share of the tokens under the weights."""
    gap, squares = jnp.abs(log_ratio), (weights**2).sum() * mask.sum()
    return {
        "mismatch_mean": masked_mean(gap, mask),
        "mismatch_max": jnp.where(mask, gap, 0.0).max(initial=0.0),
        "importance_ess": weights.sum() ** 2 / jnp.where(squares > 0, squares, 1.0),
    }


def masked_percentiles(
    values: Float[Array, "B T"], mask: Bool[Array, "B T"], percents: Sequence[float]
) -> tuple[Float[Array, ""], ...]:
    """Return `np.percentile(values[mask], percents)`, interpolated between neighbours, or 0 if the mask keeps none.

    >>> mask = jnp.array([[True, True, True, False]])
    >>> found = masked_percentiles(jnp.array([[1.0, 2.0, 3.0, 9.0]]), mask, (0, 50, 100))
    >>> [float(value) for value in found]
    [1.0, 2.0, 3.0]
    """
    last = jnp.maximum(mask.sum() - 1, 0)
    ordered = jnp.sort(jnp.where(mask, values, jnp.inf), axis=None)
    place = jnp.asarray(percents, ordered.dtype) / 100 * last
    below = jnp.floor(place).astype(jnp.int32)
    low, high = ordered[below], ordered[jnp.minimum(below + 1, last)]
    found = jnp.where(mask.any(), low + (high - low) * (place - below), 0.0)
    return tuple(found[index] for index in range(len(percents)))
