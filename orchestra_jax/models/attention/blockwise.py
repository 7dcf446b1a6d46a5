"""Causal attention by blocks of queries and keys: O(length * block) memory, forward and backward.

The forward pass is the online softmax of Rabe and Staats (arXiv:2112.05682), the backward pass that of FlashAttention
(Dao et al., arXiv:2205.14135): the scores of a block are computed again from the saved log-partition function.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

_MASKED = -1e30
# Lower bound of a running maximum: exp(_MASKED - _LOWEST) is 0, so a block of which a query sees nothing adds nothing.
_LOWEST = -1e20

# Arrays by query block and arrays by key block: [blocks, ...] outside, one block's inside a step.
_State = tuple[tuple[Array, ...], tuple[Array, ...]]


@dataclass(frozen=True)
class _Plan:
    """The pairs of query blocks and key blocks that meet. The past's key blocks come first, then the chunk's.

    Attributes:
        length: queries of a row.
        bq, bk: queries and keys of a block.
        past: key blocks of the past.
    """

    length: int
    bq: int
    bk: int
    past: int

    @property
    def q_blocks(self) -> int:
        """The number of query blocks."""
        return -(-self.length // self.bq)

    @property
    def chunk_blocks(self) -> int:
        """The number of the chunk's key blocks."""
        return -(-self.length // self.bk)

    def last_queries(self) -> Int[np.ndarray, " nq"]:
        """Return the index of the last query of each block."""
        return np.minimum((np.arange(self.q_blocks) + 1) * self.bq, self.length) - 1

    def pairs(self) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
        """Return (query blocks, key blocks) without the key blocks that lie wholly above the diagonal."""
        counts = self.past + self.last_queries() // self.bk + 1
        return np.repeat(np.arange(self.q_blocks), counts), np.concatenate([np.arange(count) for count in counts])


class _Mask(NamedTuple):
    """The arrays that decide whether a query sees a key, by blocks.

    Attributes:
        order: number of each key; a query sees the keys whose order is at most its own index. -1 stands for a valid
            entry of the past, the row's length for an entry that no query sees.
        q_segments, k_segments: segments of queries and keys; a query sees the chunk's keys of its own segment. None:
            there are no segments.
        visited: whether any query of any row may see any key of a pair of blocks; None: every pair is visited.
    """

    order: Int[Array, "nk #B bk"]
    q_segments: Int[Array, "nq B bq"] | None
    k_segments: Int[Array, "nk B bk"] | None
    visited: Bool[Array, " pairs"] | None


def blockwise_attention(
    q: Float[Array, "B S H d"],
    k: Float[Array, "B Hkv S d"],
    v: Float[Array, "B Hkv S d"],
    *,
    past: tuple[Float[Array, "B Hkv M d"], Float[Array, "B Hkv M d"]] | None = None,
    past_lengths: Int[Array, " B"] | None = None,
    segment_ids: Int[Array, "B S"] | None = None,
    block: int = 512,
) -> Float[Array, "B S H d"]:
    """Compute `attention.base.attention` without an array of S x (M + S).

    It has a reverse mode only; gradients flow into `past`.

    Key blocks above the diagonal are never computed; with segments or past lengths, nor are pairs of blocks in which no
    query of any row sees a key. Lengths that `block` does not divide are padded inside. Products run in the inputs'
    dtype and accumulate in fp32; the softmax is fp32. Batch and heads stay axes of their own, so that both may be split
    over devices.

    Args:
        block: most queries and most keys of a block, up to rounding to a multiple of 8.

    Returns:
        Attention output in q's dtype.
    """
    batch, length, heads, dim = q.shape
    kv_heads = k.shape[1]
    past_length = 0 if past is None else past[0].shape[2]
    bk = _block_size(max(length, past_length), block)
    plan = _Plan(length, _block_size(length, block), bk, -(-past_length // bk))

    # As in the dense path, the G query heads of one key head become one matrix of G*bq rows.
    q = (q * dim**-0.5).reshape(batch, length, kv_heads, heads // kv_heads, dim).transpose(0, 2, 3, 1, 4)
    q = _split(q, plan.bq, axis=3).reshape(plan.q_blocks, batch, kv_heads, -1, dim)
    k, v = _split(k, bk, axis=2), _split(v, bk, axis=2)
    if past is not None:
        k = jnp.concatenate([_split(past[0], bk, axis=2), k])
        v = jnp.concatenate([_split(past[1], bk, axis=2), v])
    out = _attend(plan, q, k, v, _mask(plan, past_length, past_lengths, segment_ids))
    out = out.reshape(plan.q_blocks, batch, kv_heads, -1, plan.bq, dim).transpose(1, 0, 4, 2, 3, 5)
    return out.reshape(batch, -1, heads, dim)[:, :length]


def _block_size(length: int, block: int) -> int:
    """Return the size of equal blocks that pad `length` least, a multiple of 8."""
    return -(-length // (8 * -(-length // block))) * 8


def _split(x: Array, block: int, *, axis: int) -> Array:
    """Pad `axis` with zeros and cut it into blocks; their number becomes the first axis."""
    count = -(-x.shape[axis] // block)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, count * block - x.shape[axis])
    x = jnp.pad(x, widths).reshape(*x.shape[:axis], count, block, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)


def _mask(
    plan: _Plan, past_length: int, past_lengths: Int[Array, " B"] | None, segment_ids: Int[Array, "B S"] | None
) -> _Mask:
    """Return which query sees which key, and which pairs of blocks hold none that do."""
    # Order of the past's keys: -1 where valid. Order of the chunk's keys: their own index, and no less in the padding.
    slots = jnp.arange(plan.past * plan.bk)
    valid = slots < (jnp.full((1, 1), past_length) if past_lengths is None else past_lengths[:, None])
    chunk = jnp.minimum(jnp.arange(plan.chunk_blocks * plan.bk), plan.length)
    order = jnp.concatenate([jnp.where(valid, -1, plan.length), jnp.tile(chunk, (valid.shape[0], 1))], axis=1)
    order = _split(order, plan.bk, axis=1)
    if past_lengths is None and segment_ids is None:
        return _Mask(order, None, None, None)

    # A pair is visited if the last query of the one block may see the first key of the other.
    q_block, k_block = plan.pairs()
    in_order = order.min(-1)[k_block] <= plan.last_queries()[q_block, None]
    if segment_ids is None:
        return _Mask(order, None, None, in_order.any(-1))

    # And if some query and key may have the same segment: the ranges of the two blocks' ids overlap. Padding becomes
    # the highest id: ids ascend along a row then, and ranges of blocks that are far apart do not overlap.
    ids = jnp.where(segment_ids == 0, jnp.iinfo(segment_ids.dtype).max, segment_ids)
    q_ids, k_ids = _split(ids, plan.bq, axis=1), _split(ids, plan.bk, axis=1)
    k_ids = jnp.pad(k_ids, ((plan.past, 0), (0, 0), (0, 0)))  # the past has no segments
    overlap = (k_ids.min(-1)[k_block] <= q_ids.max(-1)[q_block]) & (q_ids.min(-1)[q_block] <= k_ids.max(-1)[k_block])
    in_past = (k_block < plan.past)[:, None]
    return _Mask(order, q_ids, k_ids, (in_order & (overlap | in_past)).any(-1))


def _scan_pairs(plan: _Plan, mask: _Mask, step: Callable[[_State, Array, Array], _State], state: _State) -> _State:
    """Replace blocks (i, j) of `state` by step(blocks, i, j), for one visited pair after the other."""

    pairs = tuple(jnp.asarray(blocks, jnp.int32) for blocks in plan.pairs())
    count = pairs[0].shape[0]

    def body(carry: tuple[Array, _State]) -> tuple[Array, _State]:
        n, state = carry
        i, j = (_at(blocks, n) for blocks in pairs)
        index = ((i,) * len(state[0]), (j,) * len(state[1]))

        blocks = jax.tree.map(_at, state, index)
        if mask.visited is None:
            blocks = step(blocks, i, j)
        else:
            blocks = jax.lax.cond(_at(mask.visited, n), lambda x: step(x, i, j), lambda x: x, blocks)
        return n + 1, jax.tree.map(_put, state, blocks, index)

    # Not a scan: inside a scan over layers that is differentiated, JAX would hoist what depends on the mask alone out
    # of the layers and store it for every pair of blocks, length x length again. A while loop cannot be split so.
    return jax.lax.while_loop(lambda carry: carry[0] < count, body, (jnp.int32(0), state))[1]


def _at(x: Array, index: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(x, index, keepdims=False)


def _put(x: Array, block: Array, index: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(x, block, index, 0)


def _scores(plan: _Plan, mask: _Mask, q: Array, k: Array, i: Array, j: Array) -> Float[Array, "B Hkv G*bq bk"]:
    """Return the scores of query block i and key block j; _MASKED where a query does not see a key."""
    products = _dot("bhqd,bhkd->bhqk", _at(q, i), _at(k, j))
    order = _at(mask.order, j)[:, None, :]
    seen = order <= (i * plan.bq + jnp.arange(plan.bq))[:, None]
    if mask.q_segments is not None and mask.k_segments is not None:
        same = _at(mask.q_segments, i)[:, :, None] == _at(mask.k_segments, j)[:, None, :]
        seen &= same | (order < 0)
    by_head = products.reshape(*products.shape[:2], -1, plan.bq, plan.bk)
    return jnp.where(seen[:, None, None], by_head, _MASKED).reshape(products.shape)


def _dot(equation: str, left: Array, right: Array) -> Array:
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


_QBlocks = Float[Array, "nq B Hkv G*bq d"]
_KBlocks = Float[Array, "nk B Hkv bk d"]
_Residuals = tuple[_QBlocks, _KBlocks, _KBlocks, _Mask, _QBlocks, Float[Array, "nq B Hkv G*bq"]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: _Plan, q: _QBlocks, k: _KBlocks, v: _KBlocks, mask: _Mask) -> _QBlocks:
    return _forward(plan, q, k, v, mask)[0]


def _forward(plan: _Plan, q: _QBlocks, k: _KBlocks, v: _KBlocks, mask: _Mask) -> tuple[_QBlocks, _Residuals]:
    """Return the output, and the logarithm of each query's partition function among the residuals."""

    def step(blocks: _State, i: Array, j: Array) -> _State:
        (out, highest, total), _ = blocks
        scores = _scores(plan, mask, q, k, i, j)
        top = jnp.maximum(highest, scores.max(-1))
        weights, shrink = jnp.exp(scores - top[..., None]), jnp.exp(highest - top)
        mixed = _dot("bhqk,bhkd->bhqd", weights.astype(v.dtype), _at(v, j))
        return (out * shrink[..., None] + mixed, top, total * shrink + weights.sum(-1)), ()

    rows = q.shape[:-1]
    state = (jnp.zeros(q.shape, jnp.float32), jnp.full(rows, _LOWEST, jnp.float32), jnp.zeros(rows, jnp.float32))
    (out, highest, total), _ = _scan_pairs(plan, mask, step, (state, ()))
    # A real query sees at least itself and has a total of 1 or more; one that pads the last block may see nothing.
    total = jnp.maximum(total, jnp.finfo(jnp.float32).tiny)
    out = (out / total[..., None]).astype(q.dtype)
    return out, (q, k, v, mask, out, highest + jnp.log(total))


def _backward(plan: _Plan, residuals: _Residuals, d_out: _QBlocks) -> tuple[_QBlocks, _KBlocks, _KBlocks, None]:
    """Return the gradients. With weights P: dV = P^T dO, dS = P * (dO V^T - rowsum(dO * O)), dQ = dS K, dK = dS^T Q."""
    q, k, v, mask, out, partition = residuals
    inner = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)

    def step(blocks: _State, i: Array, j: Array) -> _State:
        (dq,), (dk, dv) = blocks
        d_block = _at(d_out, i)
        weights = jnp.exp(_scores(plan, mask, q, k, i, j) - _at(partition, i)[..., None])
        d_weights = _dot("bhqd,bhkd->bhqk", d_block, _at(v, j))
        d_scores = (weights * (d_weights - _at(inner, i)[..., None])).astype(q.dtype)
        dq = dq + _dot("bhqk,bhkd->bhqd", d_scores, _at(k, j))
        dk = dk + _dot("bhqk,bhqd->bhkd", d_scores, _at(q, i))
        return (dq,), (dk, dv + _dot("bhqk,bhqd->bhkd", weights.astype(d_out.dtype), d_block))

    zeros = tuple(jnp.zeros(x.shape, jnp.float32) for x in (q, k, v))
    (dq,), (dk, dv) = _scan_pairs(plan, mask, step, (zeros[:1], zeros[1:]))
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


_attend.defvjp(_forward, _backward)
