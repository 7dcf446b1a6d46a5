"""Statistics over the entries of an array that a mask keeps."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float


def masked_mean(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, ""]:
    """The mean; 0 where nothing is masked in."""
    return jnp.where(mask, values, 0.0).sum() / jnp.maximum(mask.sum(), 1)


def masked_percentiles(
    values: Float[Array, "B T"], mask: Bool[Array, "B T"], percents: Sequence[float]
) -> tuple[Float[Array, ""], ...]:
    """`np.percentile(values[mask], percents)`, interpolated between neighbours; 0 where nothing is masked in."""
    last = jnp.maximum(mask.sum() - 1, 0)
    ordered = jnp.sort(jnp.where(mask, values, jnp.inf), axis=None)
    place = jnp.asarray(percents, ordered.dtype) / 100 * last
    below = jnp.floor(place).astype(jnp.int32)
    low, high = ordered[below], ordered[jnp.minimum(below + 1, last)]
    found = jnp.where(mask.any(), low + (high - low) * (place - below), 0.0)
    return tuple(found[index] for index in range(len(percents)))
