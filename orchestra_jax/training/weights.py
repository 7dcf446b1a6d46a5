"""The policy's weights outside the update: on the mesh, as the reference, for the engine, and for other programs."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from orchestra_jax.models import checkpoint
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.lora import LoRA, merge, save_peft


def reference_copy(params: Params, dtype: str, *, offload: bool) -> Any:
    """A frozen copy of the policy for the KL, sharded like it, or in host memory as numpy arrays."""
    copy = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.dtype(dtype), copy=True), params)
    return jax.device_get(copy) if offload else copy


def whole_policy(trained: Any, base: Params | None, lora: LoRA | None) -> Params:
    """The policy as a plain tree: what is trained, or the base with the adapters merged in."""
    return trained if base is None or lora is None else jax.jit(merge, static_argnums=2)(base, trained, lora)


def for_engine(params: Params, mesh: Mesh | None) -> Params:
    """The parameters as an engine on one device takes them."""
    return params if mesh is None else jax.device_put(params, jax.local_devices()[0])


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
