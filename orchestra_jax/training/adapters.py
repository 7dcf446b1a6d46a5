"""The adapters of LoRA at the start of a run, and merged into their base; loaded only by a run that has them."""

from typing import Any

import jax

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.lora import LoRA, init_adapters, load_peft, merge


def starting_adapters(
    path: str | None, seed: int, model: DecoderConfig, lora: LoRA, *, kl: bool = False
) -> dict[str, Any]:
    """Return the adapters that training starts from.

    Args:
        path: the setting model.lora.path; None: fresh adapters.
        seed: seed of fresh ones.
        kl: a run begins that has a KL.

    Raises:
        ConfigError: the folder cannot be read, its adapters are of another rank, alpha, matrices or layers, or the KL
            would be to a base that lacks them.
    """
    if path is None:
        return init_adapters(jax.random.key(seed), model, lora)
    if kl:
        raise ConfigError(
            "Under adapters the KL's reference is their base, and not what model.lora.path has learned: set "
            "algorithm.loss.kl_coef=0, or model.lora.path=null."
        )
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
