"""Attention of packed rows whose sequences share beginnings (`rl.packing`): every sequence is laid out in full again.

All else of a layer runs once for each token of the row. Attention gathers queries, keys and values into pieces, in
which sequences lie whole and one after another, and so runs by every backend as it does on rows that share nothing.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def in_pieces(
    attend: Callable[..., Array],
    q: Float[Array, "B S H d"],
    k: Float[Array, "B Hkv S d"],
    v: Float[Array, "B Hkv S d"],
    source: Int[Array, "B U"],
    segment_ids: Int[Array, "B U"],
) -> Float[Array, "B S H d"]:
    """Return the attention of every token of a row: that in the first sequence that holds the token.

    One piece is in memory at a time, forward and backward; pieces in which all rows have padding only cost nothing.
    Gradients of tokens that several sequences share are added up in fp32.

    Args:
        attend: `attention.base.attention` of (queries, keys, values, segment_ids=) without a past.
        source: for each place of the pieces, which have S places each, the row's token that lies there: its index t
            where the piece gives the token's output, ~t where another does.
        segment_ids: of the pieces; 0 is padding.
    """
    length = q.shape[1]
    places, ids = (jnp.moveaxis(x.reshape(x.shape[0], -1, length), 1, 0) for x in (source, segment_ids))
    # The transpose of a gather adds up the gradients of a token's places: of its keys and values there are many.
    keys, values = k.astype(jnp.float32), v.astype(jnp.float32)

    def attended(index: Array, ids: Array) -> Array:
        of_keys = index[:, None, :, None]
        own = (jnp.take_along_axis(x, of_keys, axis=2).astype(k.dtype) for x in (keys, values))
        return attend(jnp.take_along_axis(q, index[:, :, None, None], axis=1), *own, segment_ids=ids)

    @jax.checkpoint
    def found(places: Array, ids: Array) -> Array:
        index = jnp.where(places < 0, ~places, places)
        return jax.lax.cond((ids > 0).any(), attended, lambda *_: jnp.zeros_like(q), index, ids)

    def step(out: Array, piece: tuple[Array, Array]) -> tuple[Array, None]:
        # A place that gives no output points one past the end, and is dropped. Every token is given once.
        index = jnp.where(piece[0] < 0, length, piece[0])
        return out.at[jnp.arange(len(index))[:, None], index].add(found(*piece), mode="drop"), None

    return jax.lax.scan(step, jnp.zeros_like(q), (places, ids))[0]
