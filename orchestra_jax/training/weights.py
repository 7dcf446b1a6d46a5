"""The policy's weights outside the update: on the mesh, as the reference, for the engine, and for other programs."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.models import checkpoint
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.lora import LoRA, merge, save_peft


def keeps_reference(cfg: RunConfig) -> bool:
    """Whether a copy of the starting policy is kept for the KL; under LoRA's adapters it is there anyway."""
    return cfg.algorithm.loss.kl_coef > 0 and not cfg.model.lora.rank


def starting_reference(cfg: RunConfig, params: Params) -> Any:
    """A frozen copy of the policy for the KL, sharded like it, or in host memory as numpy arrays."""
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
    dtype = jnp.dtype(cfg.algorithm.reference_dtype)
    if cfg.algorithm.reference_offload:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), params)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding), params)


def engine_params(cfg: RunConfig, trained: Any, base: Params | None, lora: LoRA | None, mesh: Mesh | None) -> Params:
    """The policy as the engine of the run takes it: a plain tree, adapters merged in.

    Args:
        trained: the policy, or its adapters.
        base: what the adapters change, else None.
    """
    params = trained if base is None or lora is None else jax.jit(merge, static_argnums=2)(base, trained, lora)
    if cfg.rollout.engine is EngineName.sglang:
        return params  # gathered part by part on its way out
    if mesh is not None:
        params = jax.device_put(params, jax.local_devices()[0])
    # The update uses up its parameters: an engine that samples meanwhile needs its own.
    return jax.tree.map(jnp.copy, params) if cfg.rollout.max_staleness else params


def export(
    folder: Path, config: DecoderConfig, trained: Any, lora: LoRA | None, *, base: str | None, tokenizer: Any
) -> None:
    """Writes the policy so that transformers and SGLang load it, or its adapters so that PEFT does.

    Args:
        folder: made, or replaced.
        base: where the adapters' base came from, for PEFT's config.
    """
    if lora is not None:
        save_peft(folder, config, trained, lora, str(base), overwrite=True)
    else:
        checkpoint.save(folder, config, trained, tokenizer=tokenizer, overwrite=True)
