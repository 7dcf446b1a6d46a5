"""The adapters of LoRA at the start of a run, and merged into their base; loaded only by a run that has them."""

from typing import Any

import jax

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.lora import LoRA, init_adapters, load_peft, merge


def starting_adapters(path: str | None, seed: int, model: DecoderConfig, lora: LoRA) -> dict[str, Any]:
    """Return the adapters that training starts from.

    Args:
        path: the setting model.lora.path; None: fresh adapters.
        seed: seed of fresh ones.

    Raises:
        ConfigError: the folder cannot be read, or its adapters are of another rank, alpha, matrices or layers.
    """
    if path is None:
        return init_adapters(jax.random.key(seed), model, lora)
    try:
        found, adapters = load_peft(path, model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.lora.path: {error}") from error
    if found != lora:
        raise ConfigError(
            f"The adapters in model.lora.path={path} are not those of model.lora: set rank={found.rank} "
            f"alpha={found.alpha:g} targets=[{','.join(found.targets)}] layers={found.layers}."
        )
    return adapters


def merged(base: Params, adapters: Any, lora: LoRA) -> Params:
    """Return the policy as one plain tree."""
    found: Params = jax.jit(merge, static_argnums=2)(base, adapters, lora)
    return found
