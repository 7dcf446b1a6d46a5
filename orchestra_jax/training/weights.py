"""The policy's weights outside the update: at the start, as the reference, for the engine, and exported."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.missing import POLICY_FOLDER
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.engines.base import RunEngine
from orchestra_jax.engines.start import start_engine, write_first_model
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.models import checkpoint
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.processes import Processes

if TYPE_CHECKING:
    from orchestra_jax.models.lora import LoRA


def starting_adapters(cfg: RunConfig, model: DecoderConfig, lora: "LoRA") -> dict[str, Any]:
    """Return the adapters that training starts from: those of model.lora.path, or fresh ones.

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
    """Return a frozen copy of the policy for the KL, sharded like it, or in host memory as numpy arrays.

    None without a KL, and with LoRA, whose base is the reference.
    """
    if not _keeps_reference(cfg):
        return None
    dtype = jnp.dtype(cfg.algorithm.reference_dtype)

    def frozen(leaf: Any) -> Any:
        copy = jnp.array(leaf, dtype, copy=True)
        return jax.device_get(copy) if cfg.algorithm.reference_offload else copy  # one after the other

    return jax.tree.map(frozen, params)


def abstract_reference(cfg: RunConfig, params: Any) -> Any:
    """Return the shapes, dtypes and shardings of `starting_reference`, to restore a checkpoint into.

    Args:
        params: shapes, dtypes and shardings of the policy.
    """
    if not _keeps_reference(cfg):
        return None
    dtype = jnp.dtype(cfg.algorithm.reference_dtype)
    if cfg.algorithm.reference_offload:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), params)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding), params)


def _keeps_reference(cfg: RunConfig) -> bool:
    return cfg.algorithm.loss.kl_coef > 0 and not cfg.model.lora.rank


def engine_params(cfg: RunConfig, trained: Any, base: Params | None, lora: "LoRA | None", mesh: Mesh | None) -> Params:
    """Return the policy as the run's engine takes it: a plain tree, adapters merged in.

    Args:
        trained: the policy, or its adapters.
        base: frozen parameters under the adapters, else None.
    """
    params, embedded = trained, cfg.rollout.engine is EngineName.embedded
    if base is not None and lora is not None:
        from orchestra_jax.models.lora import merge

        params = jax.jit(merge, static_argnums=2)(base, trained, lora)
    if jax.process_count() > 1:
        from orchestra_jax.processes.several import on_host

        # Once, by all processes together: an engine may need them again when no other process takes part.
        params = on_host(params, None if embedded else cfg.rollout.serving_dtype)
        return jax.device_put(params, jax.local_devices()[0]) if embedded else params
    if not embedded:
        return params  # gathered part by part on its way out
    if mesh is not None:
        params = jax.device_put(params, jax.local_devices()[0])
    # The update uses up its parameters: an engine that samples meanwhile needs its own.
    return jax.tree.map(jnp.copy, params) if cfg.rollout.max_staleness else params


def start_run_engine(
    cfg: RunConfig,
    model: DecoderConfig,
    params: Params,
    version: int,
    *,
    tokenizer_size: int,
    directory: Path,
    loop: LoopThread,
    processes: Processes,
) -> RunEngine:
    """Start the engine of this process; see `engines.start.start_engine`."""
    with processes.together():
        if processes.first and processes.count > 1:
            write_first_model(cfg.rollout, model, params, directory)
    with processes.together():
        starting = start_engine(
            cfg.rollout,
            model,
            params,
            version,
            tokenizer_size=tokenizer_size,
            directory=directory,
            processes=processes,
        )
        return loop.run(starting)


def export_policy(cfg: RunConfig, model: DecoderConfig, trained: Any, lora: "LoRA | None", tokenizer: Any) -> None:
    """Write the policy so that transformers and SGLang load it, or its adapters so that PEFT loads them."""
    folder = Path(cfg.output_dir) / POLICY_FOLDER
    if lora is None:
        checkpoint.save(folder, model, trained, tokenizer=tokenizer, overwrite=True)
    else:
        from orchestra_jax.models.lora import save_peft

        save_peft(folder, model, trained, lora, str(cfg.model.path), tokenizer=tokenizer, overwrite=True)
    print(f"The policy is in {folder}" + (" (adapters in PEFT's format)." if lora else "."), flush=True)


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
