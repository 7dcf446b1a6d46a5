"""Run the model on a micro-batch's rows, and return log-probs and entropies in the layout of the loss."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.decoder import forward, output_head
from orchestra_jax.models.logprobs import token_logprobs
from orchestra_jax.rl.batching import MicroBatch

if TYPE_CHECKING:  # needed on a mesh only
    from orchestra_jax.models.sharding import MeshSharding


def batch_logprobs(
    params: Params,
    config: DecoderConfig,
    batch: MicroBatch,
    *,
    temperature: float,
    chunk: int | None = None,
    vocab_block: int | None = None,
    sharding: "MeshSharding | None" = None,
) -> tuple[Float[Array, "N L"], Float[Array, "N L"]]:
    """Return log-probs and entropies of the sampled tokens at the sampling temperature, and 0 at all other places.

    Shared prefixes run once; the rows continue their keys and values, through which gradients flow.

    Args:
        chunk, vocab_block: tokens of a batch shard, and ids, whose logits exist at once; None for all.
        sharding: the mesh that parameters and batch are split over; None for one device.

    Raises:
        ValueError: the batch does not have one part for each batch shard of the mesh.
    """
    shards = batch.shards
    if sharding is not None and shards != sharding.batch_shards:
        raise ValueError(f"The micro-batch has {shards} part(s), the mesh {sharding.batch_shards} batch shard(s).")
    as_stored = sharding is None and {config.dtype, *(str(p.dtype) for p in jax.tree.leaves(params))} == {"float32"}
    if not as_stored:
        from orchestra_jax.rl.mesh_logprobs import compute_params

        params = compute_params(params, config, sharding)

    past, past_lengths, positions, ids = None, None, batch.positions, batch.segment_ids
    if batch.prefix.shape[1]:
        prefix_positions = jnp.broadcast_to(jnp.arange(batch.prefix.shape[1]), batch.prefix.shape)
        _, kv = forward(params, config, batch.prefix, prefix_positions, constrain=sharding)
        past = jax.tree.map(lambda leaf: _take_rows(leaf, batch.prefix_row, leaf.ndim - 4, shards), kv)
        past_lengths = _take_rows(batch.prefix_lengths, batch.prefix_row, 0, shards)
        positions = positions + past_lengths[:, None]
    hidden, _ = forward(
        params,
        config,
        batch.tokens,
        positions,
        segment_ids=ids if batch.source is None or ids is None else (batch.source, ids),
        past=past,
        past_lengths=past_lengths,
        constrain=sharding,
    )
    head = output_head(params, config)
    if not as_stored:
        from orchestra_jax.rl.mesh_logprobs import compute_head

        head = compute_head(head, config, sharding)
        # Sequences that sampled the same words after the same prompt add up their gradients there, in fp32.
        hidden = hidden if batch.source is None else hidden.astype(jnp.float32)
    length = batch.mask.shape[1]
    size = (batch.tokens if batch.row_of is not None else batch.mask).shape[0] // shards

    def score_part(
        hidden: Float[Array, "n D"], tokens: Int[Array, " n"], select: Int[Array, " R"], place: Int[Array, " R"]
    ) -> tuple[Array, Array]:
        # Padding selects the last position; its target would lie one past the end.
        targets = jnp.take(tokens, select + 1, mode="clip")
        selected = hidden[select].astype(config.dtype)
        scores = token_logprobs(selected, head, targets, temperature=temperature, chunk=chunk, vocab_block=vocab_block)
        # Padding is placed one past the end, and so dropped.
        empty = jnp.zeros(size * length, scores[0].dtype)
        return empty.at[place].set(scores[0], mode="drop"), empty.at[place].set(scores[1], mode="drop")

    if shards == 1:
        rows = hidden.reshape(-1, hidden.shape[-1])
        found = score_part(rows, batch.tokens.reshape(-1), batch.select[0], batch.place[0])
    else:
        from orchestra_jax.rl.mesh_logprobs import score_parts

        found = score_parts(score_part, hidden, batch, sharding)
    logprobs, entropy = (x.reshape(-1, length) for x in found)
    if batch.row_of is not None:
        taken = (_take_rows(x, batch.row_of, 0, shards) for x in (logprobs, entropy))
        logprobs, entropy = (jnp.where(batch.mask > 0, x, 0.0) for x in taken)
    return logprobs, entropy


def _take_rows(values: Array, index: Array, axis: int, shards: int) -> Array:
    """Take `values` at `index` along `axis`, where both are in `shards` parts and indices count within a part."""
    if shards == 1 and values.dtype != jnp.bfloat16:
        return jnp.take(values, index, axis=axis)
    from orchestra_jax.rl.mesh_logprobs import take_in_parts

    return take_in_parts(values, index, axis, shards)
