"""Fold a function over a large vocabulary in blocks, so that the logits of one block exist at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_LOWEST = -1e30  # below every logit, and finite: before the first block it is multiplied by 0


def over_vocabulary(
    step: Callable[[Any, Array | int, Float[Array, "D b"]], tuple[Any, Float[Array, "D b"] | None]],
    carry: Any,
    head: Float[Array, "D V"],
    block: int,
) -> tuple[Any, Any]:
    """Fold `step(carry, first id, head of the block)` over the vocabulary; return the carry and the parts joined."""
    whole, found = head.shape[1] // block, []
    looped = whole * block if whole > 1 else 0
    if looped:
        blocks = jnp.swapaxes(head[:, :looped].reshape(-1, whole, block), 0, 1)
        carry, parts = jax.lax.scan(lambda c, x: step(c, *x), carry, (jnp.arange(whole) * block, blocks))
        if parts is not None:
            found.append(jnp.swapaxes(parts, 0, 1).reshape(-1, looped))
    for first in range(looped, head.shape[1], block):
        carry, part = step(carry, first, head[:, first : first + block])
        if part is not None:
            found.append(part)
    return carry, jnp.concatenate(found, axis=1) if found else None


def score_by_blocks(
    logits: Callable[[Array], Float[Array, "C b"]], head: Float[Array, "D V"], targets: Int[Array, " C"], block: int
) -> tuple[Float[Array, " C"], Float[Array, " C"], Float[Array, " C"]]:
    """Return (logprobs, entropy, log of the partition function) by a running softmax over blocks of the vocabulary.

    Args:
        logits: a function from a block of `head` to the logits of its ids.
        block: ids whose logits exist at once.
    """

    def step(sums: tuple[Array, ...], first: Array | int, part: Float[Array, "D b"]) -> tuple[tuple[Array, ...], None]:
        # Sums of exp(z - highest) and exp(z - highest) * (z - highest), moved to each block's new highest logit.
        highest, total, moment, chosen = sums
        z = logits(part)
        top = jnp.maximum(highest, z.max(-1))
        shifted, moved = z - top[:, None], highest - top
        weights, kept = jnp.exp(shifted), jnp.exp(moved)
        moment = kept * (moment + moved * total) + (weights * shifted).sum(-1)
        total = kept * total + weights.sum(-1)
        local = targets - first
        here = jnp.take_along_axis(z, jnp.clip(local, 0, part.shape[1] - 1)[:, None], 1)[:, 0]
        chosen = jnp.where((local >= 0) & (local < part.shape[1]), here, chosen)
        return (top, total, moment, chosen), None

    zero = jnp.zeros(targets.shape, jnp.float32)
    (highest, total, moment, chosen), _ = over_vocabulary(step, (zero + _LOWEST, zero, zero, zero), head, block)
    partition = highest + jnp.log(total)
    return chosen - partition, jnp.log(total) - moment / total, partition
