"""The parts of log-probs that fp32 on one device does not need: casts to bf16, split parameters, rows in shards."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.sharding import MeshSharding, logical_axes
from orchestra_jax.rl.batching import MicroBatch


def compute_params(params: Params, config: DecoderConfig, sharding: MeshSharding | None) -> Params:
    """Cast the layers' matrices to the compute dtype, still sharded: FSDP then gathers half the bytes of fp32 masters.

    Norm scales stay as they are. The embedding is fp32 also where it is stored in bf16: its gradient is a sum over all
    tokens of an id, which in bf16 grows no more at 256 times its terms.
    """

    def to_compute(path: tuple[Any, ...], leaf: Array) -> Array:
        axes = logical_axes(path, config.axes)
        return leaf if axes is None or "norm" in axes else leaf.astype(config.dtype)

    embed = params["embed"].astype(jnp.promote_types(params["embed"].dtype, jnp.float32))
    layers = {name: value for name, value in params.items() if name.startswith("layers")}
    layers = jax.tree_util.tree_map_with_path(to_compute, layers)
    # Pinned before the gather: left alone, the partitioner may gather first and cast then.
    return {**params, "embed": embed, **(layers if sharding is None else sharding.pin_params(layers, config.axes))}


def compute_head(
    head: Float[Array, "D V"], config: DecoderConfig, sharding: MeshSharding | None
) -> Float[Array, "D V"]:
    """Return the output matrix in the compute dtype, gathered over FSDP once and not for every chunk of tokens."""
    head = head.astype(config.dtype)
    if sharding is None:
        return head
    whole = dataclasses.replace(sharding, rules=dataclasses.replace(sharding.rules, embed=None))
    tree = sharding.pin_params({"lm_head": head}, config.axes)
    return cast(Array, whole.pin_params(tree, config.axes)["lm_head"])


def take_in_parts(values: Array, index: Array, axis: int, shards: int) -> Array:
    """Take `values` at `index` along `axis`, where both are in `shards` parts and indices count within a part.

    Gradients of what is taken several times are added up in fp32.
    """
    wide = values.astype(jnp.float32) if values.dtype == jnp.bfloat16 else values
    parts = wide.reshape(*values.shape[:axis], shards, -1, *values.shape[axis + 1 :])
    taken = jax.vmap(lambda v, i: jnp.take(v, i, axis=axis), in_axes=(axis, 0), out_axes=axis)(
        parts, index.reshape(shards, -1)
    )
    return taken.reshape(*values.shape[:axis], -1, *values.shape[axis + 1 :]).astype(values.dtype)


def score_parts(
    score_part: Callable[..., tuple[Array, Array]],
    hidden: Float[Array, "B T D"],
    batch: MicroBatch,
    sharding: MeshSharding | None,
) -> tuple[Array, Array]:
    """Run `score_part(hidden, tokens, select, place)` on every part of the batch."""
    parts = (hidden.reshape(batch.shards, -1, hidden.shape[-1]), batch.tokens.reshape(batch.shards, -1))
    # Each shard sums its own gradient of the head over its chunks; they are added once, and not per chunk.
    axes = None if sharding is None else sharding.batch.spec[0]
    return jax.vmap(score_part, spmd_axis_name=axes)(*parts, batch.select, batch.place)
