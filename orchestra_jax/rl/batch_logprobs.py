"""Log-probs and entropies of a micro-batch's sampled tokens, from the model's layout of rows to that of the loss."""

import dataclasses
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from orchestra_jax.models.axes import logical_axes
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
    params = _compute_params(params, config, sharding)

    past, past_lengths, positions = None, None, batch.positions
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
        segment_ids=batch.segment_ids,
        past=past,
        past_lengths=past_lengths,
        constrain=sharding,
    )
    head = _compute_head(params, config, sharding)
    size, length = batch.mask.shape[0] // shards, batch.mask.shape[1]

    def score_part(
        hidden: Float[Array, "n D"], tokens: Int[Array, " n"], select: Int[Array, " R"], place: Int[Array, " R"]
    ) -> tuple[Array, Array]:
        # Padding selects the last position; its target would lie one past the end.
        targets = jnp.take(tokens, select + 1, mode="clip")
        scores = token_logprobs(
            hidden[select], head, targets, temperature=temperature, chunk=chunk, vocab_block=vocab_block
        )
        # Padding is placed one past the end, and so dropped.
        empty = jnp.zeros(size * length, scores[0].dtype)
        return empty.at[place].set(scores[0], mode="drop"), empty.at[place].set(scores[1], mode="drop")

    if shards == 1:
        found = score_part(
            hidden.reshape(-1, hidden.shape[-1]), batch.tokens.reshape(-1), batch.select[0], batch.place[0]
        )
    else:
        parts = (hidden.reshape(shards, -1, hidden.shape[-1]), batch.tokens.reshape(shards, -1))
        # Each shard sums its own gradient of the head over its chunks; they are added once, and not per chunk.
        axes = None if sharding is None else sharding.batch.spec[0]
        found = jax.vmap(score_part, spmd_axis_name=axes)(*parts, batch.select, batch.place)
    logprobs, entropy = (x.reshape(batch.mask.shape) for x in found)
    return logprobs, entropy


def _compute_params(params: Params, config: DecoderConfig, sharding: "MeshSharding | None") -> Params:
    """Cast the layers' matrices to the compute dtype, still sharded: FSDP then gathers half the bytes of fp32 masters.

    Norm scales stay as they are, and so does the embedding, whose gradient sums over all tokens of an id.
    """

    def to_compute(path: tuple[Any, ...], leaf: Array) -> Array:
        axes = logical_axes(path, config.axes)
        return leaf if axes is None or "norm" in axes else leaf.astype(config.dtype)

    layers = {name: value for name, value in params.items() if name.startswith("layers")}
    layers = jax.tree_util.tree_map_with_path(to_compute, layers)
    # Pinned before the gather: left alone, the partitioner may gather first and cast then.
    return {**params, **(layers if sharding is None else sharding.pin_params(layers, config.axes))}


def _compute_head(params: Params, config: DecoderConfig, sharding: "MeshSharding | None") -> Float[Array, "D V"]:
    """Return the output matrix in the compute dtype, gathered over FSDP once and not for every chunk of tokens."""
    head = output_head(params, config).astype(config.dtype)
    if sharding is None:
        return head
    whole = dataclasses.replace(sharding, rules=dataclasses.replace(sharding.rules, embed=None))
    tree = sharding.pin_params({"lm_head": head}, config.axes)
    return cast(Array, whole.pin_params(tree, config.axes)["lm_head"])


def _take_rows(values: Array, index: Array, axis: int, shards: int) -> Array:
    """Take `values` at `index` along `axis`, where both are in `shards` parts and indices count within a part."""
    if shards == 1:
        return jnp.take(values, index, axis=axis)
    parts = values.reshape(*values.shape[:axis], shards, -1, *values.shape[axis + 1 :])
    taken = jax.vmap(lambda v, i: jnp.take(v, i, axis=axis), in_axes=(axis, 0), out_axes=axis)(
        parts, index.reshape(shards, -1)
    )
    return taken.reshape(*values.shape[:axis], -1, *values.shape[axis + 1 :])
