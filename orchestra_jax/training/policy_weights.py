"""The policy's weights for the engine of the run, their fingerprint, and a frozen copy as the reference of a KL."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.models.base import Params

if TYPE_CHECKING:
    from orchestra_jax.models.lora import LoRA


def engine_params(
    rollout: RolloutConfig, trained: Any, base: Params | None, lora: "LoRA | None", mesh: Mesh | None
) -> Params:
    """Return the policy as the run's engine takes it: a plain tree, with trained adapters merged into their base."""
    params = trained
    if base is not None and lora is not None:
        from orchestra_jax.training.adapters import merged

        params = merged(base, trained, lora)
    if jax.process_count() > 1:
        from orchestra_jax.training.gathered import gathered_params

        return gathered_params(rollout, params)
    if rollout.engine is not EngineName.embedded:
        return params  # gathered part by part on its way out
    if mesh is not None:
        params = jax.device_put(params, jax.local_devices()[0])
    # The update uses up its parameters: an engine that samples meanwhile needs its own.
    return jax.tree.map(jnp.copy, params) if rollout.max_staleness else params


def fingerprint(params: Any) -> str:
    """Return a text that is the same for the same weights, to the bit and however they are sharded.

    All processes must call it together. It is computed where the weights are: sums of integers do not depend on order.
    """
    return repr([int(number) for mark in jax.device_get(_marks(params)) for number in mark])


@jax.jit
def _marks(params: Any) -> list[tuple[jax.Array, jax.Array]]:
    """Return two numbers for each array; as scalars, every process has them."""
    return [_mark(leaf) for leaf in jax.tree.leaves(params)]


def _mark(leaf: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return sums over all elements of a hash of their bits and places (Murmur3's last steps)."""
    word = jnp.dtype(f"uint{8 * leaf.dtype.itemsize}")
    place = jnp.zeros(leaf.shape, jnp.uint32)
    for axis, size in enumerate(leaf.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
    mixed = jax.lax.bitcast_convert_type(leaf, word).astype(jnp.uint32) ^ (place * jnp.uint32(0x9E3779B1))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    mixed ^= mixed >> 16
    return mixed.sum(dtype=jnp.uint32), (mixed * (2 * place + 1)).sum(dtype=jnp.uint32)


def starting_reference(algorithm: AlgorithmConfig, dtype: str, params: Params) -> Any:
    """Return a frozen copy of the policy, or of its adapters, sharded like it, or in host memory as numpy arrays.

    It is stored in the compute `dtype`. Under fresh adapters the frozen base is the reference, and this is not called.
    """

    def frozen(leaf: Any) -> Any:
        copy = jnp.array(leaf, jnp.dtype(dtype), copy=True)
        return jax.device_get(copy) if algorithm.reference_offload else copy  # one after the other

    return jax.tree.map(frozen, params)
