"""The policy's weights outside the update: as the reference, and for the engine."""

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.models.base import DecoderConfig, Params

if TYPE_CHECKING:  # needed with adapters only
    from orchestra_jax.models.lora import LoRA


def _keeps_reference(cfg: RunConfig) -> bool:
    return cfg.algorithm.loss.kl_coef > 0 and not cfg.model.lora.rank


def starting_adapters(cfg: RunConfig, model: DecoderConfig, lora: "LoRA") -> dict[str, Any]:
    """The adapters that training starts from: those of model.lora.path, or fresh ones.

    Raises:
        ConfigError: the folder cannot be read, or its adapters are of another rank, alpha, matrices or layers.
    """
    from orchestra_jax.models.lora import init_adapters, load_peft

    if cfg.model.lora.path is None:
        return init_adapters(jax.random.key(cfg.seed), model, lora)
    try:
        found, adapters = load_peft(cfg.model.lora.path, model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.lora.path: {error}") from error
    if found != lora:
        raise ConfigError(
            f"The adapters in model.lora.path={cfg.model.lora.path} are not those of model.lora: set rank={found.rank} "
            f"alpha={found.alpha:g} targets=[{','.join(found.targets)}] layers={found.layers}."
        )
    return adapters


def starting_reference(cfg: RunConfig, params: Params) -> Any:
    """A frozen copy of the policy for the KL, sharded like it, or in host memory as numpy arrays.

    None without a KL, and under LoRA's adapters, whose base is there anyway.
    """
    if not _keeps_reference(cfg):
        return None
    dtype = jnp.dtype(cfg.algorithm.reference_dtype)

    def frozen(leaf: Any) -> Any:
        copy = jnp.array(leaf, dtype, copy=True)
        return jax.device_get(copy) if cfg.algorithm.reference_offload else copy  # one after the other

    return jax.tree.map(frozen, params)


def abstract_reference(cfg: RunConfig, params: Any) -> Any:
    """What `starting_reference` of `params` looks like, for a checkpoint to be restored into; takes no memory.

    Args:
        params: shapes, dtypes and shardings of the policy.
    """
    if not _keeps_reference(cfg):
        return None
    dtype = jnp.dtype(cfg.algorithm.reference_dtype)
    if cfg.algorithm.reference_offload:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), params)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding), params)


def engine_params(cfg: RunConfig, trained: Any, base: Params | None, lora: "LoRA | None", mesh: Mesh | None) -> Params:
    """The policy as the engine of the run takes it: a plain tree, adapters merged in.

    Args:
        trained: the policy, or its adapters.
        base: what the adapters change, else None.
    """
    params = trained
    if base is not None and lora is not None:
        from orchestra_jax.models.lora import merge

        params = jax.jit(merge, static_argnums=2)(base, trained, lora)
    if jax.process_count() > 1:
        # Once, all processes together: an engine may need them again when no other process takes part.
        params = on_host(params, cfg.rollout.serving_dtype if cfg.rollout.engine is EngineName.sglang else None)
        if cfg.rollout.engine is EngineName.embedded:
            params = jax.device_put(params, jax.local_devices()[0])
        return params
    if cfg.rollout.engine is EngineName.sglang:
        return params  # gathered part by part on its way out
    if mesh is not None:
        params = jax.device_put(params, jax.local_devices()[0])
    # The update uses up its parameters: an engine that samples meanwhile needs its own.
    return jax.tree.map(jnp.copy, params) if cfg.rollout.max_staleness else params


def on_host(params: Params, dtype: str | None) -> Params:
    """Whole parameters in this process's host memory, gathered one layer's tensor after the other.

    Args:
        dtype: they are cast to it on the devices, before they travel; None: they keep their own.
    """

    def gathered(leaf: jax.Array) -> np.ndarray:
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    def whole(leaf: jax.Array) -> np.ndarray:
        kept = jnp.dtype(dtype or leaf.dtype)
        if leaf.ndim < 3:
            return gathered(_cut(leaf, None, kept))
        out = np.empty(leaf.shape, kept)  # stacked layers
        for layer in range(len(out)):
            out[layer] = gathered(_cut(leaf, layer, kept))
        return out

    with jax.transfer_guard("allow"):  # explicit, but JAX does not count it as such
        return jax.tree.map(whole, params)


@functools.partial(jax.jit, static_argnums=2)
def _cut(param: jax.Array, layer: int | None, dtype: jnp.dtype) -> jax.Array:
    return (param if layer is None else jax.lax.dynamic_index_in_dim(param, layer, keepdims=False)).astype(dtype)


def fingerprint(params: Any) -> str:
    """The same text for the same weights, to the bit and however they are sharded; another one for others.

    All processes must call it together. It is counted where the weights are: integers add up to the same in any order.
    """
    return repr([int(number) for mark in jax.device_get(_marks(params)) for number in mark])


@jax.jit
def _marks(params: Any) -> list[tuple[jax.Array, jax.Array]]:
    """Two numbers for each array; as scalars, every process has them."""
    return [_mark(leaf) for leaf in jax.tree.leaves(params)]


def _mark(leaf: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums over all elements of a hash of their bits and places (Murmur3's last steps)."""
    word = jnp.dtype(f"uint{8 * leaf.dtype.itemsize}")
    place = jnp.zeros(leaf.shape, jnp.uint32)
    for axis, size in enumerate(leaf.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
    mixed = jax.lax.bitcast_convert_type(leaf, word).astype(jnp.uint32) ^ (place * jnp.uint32(0x9E3779B1))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    mixed ^= mixed >> 16
    return mixed.sum(dtype=jnp.uint32), (mixed * (2 * place + 1)).sum(dtype=jnp.uint32)
