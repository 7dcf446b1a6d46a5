"""Rotary positions: the angles by which queries and keys turn with their position."""

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

if TYPE_CHECKING:  # only stretched models need it
    from orchestra_jax.models.rope_scaling import RopeScaling

Rope = tuple[Float[Array, "B S d/2"], Float[Array, "B S d/2"]]


def rope_angles(positions: Int[Array, "B S"], dim: int, theta: float, scaling: "RopeScaling | None" = None) -> Rope:
    """Return cosine and sine (fp32) of position * frequency; without scaling the frequencies are theta^(-2i/d)."""
    frequencies = theta ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    if scaling is not None:
        kept = scaling.kept(frequencies, theta)
        frequencies = frequencies / scaling.factor * (1 - kept) + frequencies * kept
    angles = positions[..., None].astype(jnp.float32) * frequencies
    if scaling is None or scaling.attention_factor == 1:
        return jnp.cos(angles), jnp.sin(angles)
    return jnp.cos(angles) * scaling.attention_factor, jnp.sin(angles) * scaling.attention_factor


def apply_rope(
    x: Float[Array, "B S H d"], cos: Float[Array, "B S d/2"], sin: Float[Array, "B S d/2"]
) -> Float[Array, "B S H d"]:
    """Rotate the pairs (x_i, x_{i+d/2}), Hugging Face's half-rotation convention."""
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(x.dtype)
