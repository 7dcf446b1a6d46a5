"""A mixture of experts: the router's choice, and the experts' MLPs on the tokens that chose them.

Every token gets all the experts it chose, none is dropped for lack of room, and all shapes are static: the choices are
sorted by expert and cut into blocks of rows of one expert each. A loop takes a few blocks at a time, so that it
computes what was chosen and holds their activations only; the backward pass computes these again. `jax.lax.ragged_dot`
is not used: on CPUs and GPUs XLA multiplies all rows by all experts for it (jax 0.10.2).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_SMALLEST, _LARGEST = 8, 512  # rows of a block
_TOGETHER = 8  # blocks of a step of the loop: one alone has too few rows for a GPU


class Blocks(NamedTuple):
    """The rows of every block; a step of the loop takes g blocks.

    Attributes:
        tokens: the token's number for each row; padding has numbers beyond the end, a different one in each row.
        expert: the number of each block's expert, counted from the first own one.
        used: number of steps whose blocks hold a token; they come first.
    """

    tokens: Int[Array, "steps g rows"]
    expert: Int[Array, "steps g"]
    used: Int[Array, ""]


def route(logits: Float[Array, "N E"], count: int, *, normalise: bool) -> tuple[Float[Array, "N k"], Int[Array, "N k"]]:
    """Return the `count` likeliest experts of every token and their shares of it, in fp32.

    Args:
        normalise: make the shares of a token add up to 1; else they are the softmax over all experts.
    """
    shares, chosen = jax.lax.top_k(jax.nn.softmax(logits.astype(jnp.float32), axis=-1), count)
    return (shares / shares.sum(-1, keepdims=True) if normalise else shares), chosen


def expert_mlps(
    y: Float[Array, "N D"],
    shares: Float[Array, "N k"],
    chosen: Int[Array, "N k"],
    own: Int[Array, " e"],
    gate: Float[Array, "e D F"],
    up: Float[Array, "e D F"],
    down: Float[Array, "e F D"],
    *,
    num_experts: int,
) -> Float[Array, "N D"]:
    """Return the sum of share * MLP(token) over the experts that a token chose, as far as they are among `own`.

    Args:
        own: ascending numbers of the experts whose matrices are given, without a gap.
        num_experts: experts of the whole layer.
    """
    # 1. Sort the choices by expert and cut them into blocks of rows of one expert each.
    rows = _block_rows(chosen.size, num_experts)
    blocks, choice = _cut(chosen.reshape(-1) - own[0], gate.shape[0], rows, chosen.shape[1], len(y))
    # 2. Look up the share of each row; padding has the share 0.
    row_shares = jnp.append(shares.reshape(-1), 0.0)[choice]
    # 3. Run the blocks. A device that has all experts uses nearly all of them. One that has some uses a part, and how
    #    many is known only when it runs.
    every = gate.shape[0] == num_experts
    return _run(every, y, row_shares, gate, up, down, blocks)


def _block_rows(count: int, num_experts: int) -> int:
    """Return a power of two near a quarter of an expert's mean share: about an eighth of the rows is padding then."""
    quarter = max(1.0, count / (4 * num_experts))
    return min(_LARGEST, max(_SMALLEST, 1 << round(math.log2(quarter))))


def _cut(
    local: Int[Array, " A"], experts: int, rows: int, per_token: int, tokens: int
) -> tuple[Blocks, Int[Array, "steps g rows"]]:
    """Return the blocks, and for each of their rows the number of its choice (0 .. A-1, and A for padding).

    Args:
        local: expert of each choice, counted from the first own one; outside 0 .. experts-1: another device's.
        experts: own experts.
        rows: rows of a block.
        per_token: choices of a token.
        tokens: N.
    """
    # The own choices, sorted by expert: those of expert e are order[first_row[e] : first_row[e] + sizes[e]].
    count = len(local)
    local = jnp.where((local >= 0) & (local < experts), local, experts)
    order = jnp.argsort(local)
    sizes = jnp.bincount(local, length=experts)
    # Each expert has blocks of its own; those of expert e end before block number ends[e].
    blocks = -(-sizes // rows)
    ends, first_row = jnp.cumsum(blocks), jnp.cumsum(sizes) - sizes
    # Room for the most blocks that any choice needs, several of them to a step.
    most = min(count, (count + experts * (rows - 1)) // rows)
    together = min(most, _TOGETHER)
    steps = -(-most // together)
    number = jnp.arange(steps * together).reshape(steps, together)
    # The expert of each block, and which of this expert's choices each row is.
    expert = jnp.minimum((number[..., None] >= ends).sum(-1), experts - 1)
    row = (number - (ends - blocks)[expert])[..., None] * rows + jnp.arange(rows)
    real = row < sizes[expert][..., None]
    choice = jnp.where(real, order[jnp.where(real, first_row[expert][..., None] + row, 0)], count)
    token = jnp.where(real, choice // per_token, tokens + jnp.arange(rows))
    return Blocks(token, expert, -(-ends[-1] // together)), choice


def _take(y: Float[Array, "N D"], tokens: Int[Array, "g rows"]) -> Float[Array, "g rows D"]:
    return y.at[tokens].get(mode="fill", fill_value=0)


def _add(total: Float[Array, "N D"], tokens: Int[Array, " rows"], change: Float[Array, "rows D"]) -> Array:
    # No token chooses an expert twice, so a block has each at most once: sums have one order on a GPU too.
    return total.at[tokens].add(change, mode="drop", unique_indices=True)


_product = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(
    every: bool,
    y: Float[Array, "N D"],
    shares: Float[Array, "steps g rows"],
    gate: Float[Array, "e D F"],
    up: Float[Array, "e D F"],
    down: Float[Array, "e F D"],
    blocks: Blocks,
) -> Float[Array, "N D"]:
    """Add up the outputs of all blocks.

    Args:
        every: go through all steps that there may be, not only through the used ones.
    """

    def step(i: Array, total: Array) -> Array:
        tokens, e = blocks.tokens[i], blocks.expert[i]
        x = _take(y, tokens)
        hidden = jax.nn.silu(x @ gate[e]) * (x @ up[e])
        out = shares[i][..., None] * _product(hidden, down[e])
        added: Array = jax.lax.fori_loop(0, len(e), lambda j, total: _add(total, tokens[j], out[j]), total)
        return added

    steps = len(blocks.expert) if every else blocks.used
    total: Array = jax.lax.fori_loop(0, steps, step, jnp.zeros(y.shape, jnp.float32))
    return total.astype(y.dtype)


Residuals = tuple[Array, Array, Array, Array, Array, Blocks]


def _forward(every: bool, *inputs: *Residuals) -> tuple[Array, Residuals]:
    return _run(every, *inputs), inputs


def _backward(every: bool, residuals: Residuals, gradient: Float[Array, "N D"]) -> tuple[Array | None, ...]:
    """Return the gradients of all inputs; each block's hidden layer is computed again.

    A block's output is share * (silu(x gate) * (x up)) down.
    """
    y, shares, gate, up, down, blocks = residuals

    def step(i: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        tokens, e = blocks.tokens[i], blocks.expert[i]
        x, d_out, share = _take(y, tokens), _take(gradient, tokens), shares[i][..., None]
        # Back through `down` to the hidden layer, and through `gate` and `up` to the token.
        gated, pull = jax.vjp(lambda a, b: jax.nn.silu(a) * b, x @ gate[e], x @ up[e])
        d_plain = _product(d_out, down[e].mT)  # gradient of the hidden layer, were the share 1
        d_gated, d_upped = pull((share * d_plain).astype(gated.dtype))
        d_x = _product(d_gated, gate[e].mT) + _product(d_upped, up[e].mT)
        # The share and the matrices.
        d_share = jnp.sum(d_plain * gated.astype(jnp.float32), -1)
        shared = (share * gated.astype(jnp.float32)).astype(gated.dtype)
        d_matrices = (_product(x.mT, d_gated), _product(x.mT, d_upped), _product(shared.mT, d_out))

        def add(j: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
            """Add block j's gradients: of its tokens, its shares and the three matrices of its expert."""
            d_y, d_shares, *sums = totals
            sums = [total.at[e[j]].add(change[j]) for total, change in zip(sums, d_matrices, strict=True)]
            return _add(d_y, tokens[j], d_x[j]), d_shares.at[i, j].set(d_share[j]), *sums

        added: tuple[Array, ...] = jax.lax.fori_loop(0, len(e), add, totals)
        return added

    inputs = residuals[:5]
    steps = len(blocks.expert) if every else blocks.used
    totals = jax.lax.fori_loop(0, steps, step, tuple(jnp.zeros(x.shape, jnp.float32) for x in inputs))
    return *(total.astype(x.dtype) for total, x in zip(totals, inputs, strict=True)), None


_run.defvjp(_forward, _backward)
