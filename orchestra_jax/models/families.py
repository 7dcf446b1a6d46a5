"""Model families by name, and the architecture of a run that starts from random weights."""

from typing import Any

from orchestra_jax.config.registry import Registry
from orchestra_jax.config.schema import ModelConfig
from orchestra_jax.models.base import DecoderConfig

ModelFamily = type[DecoderConfig]

# A name is the `model_type` of Hugging Face's config.json.
FAMILIES: Registry[ModelFamily] = Registry(
    "model family",
    "model.family",
    group="orchestra_jax.models",
    kind=DecoderConfig,
    builtin={
        "llama": "orchestra_jax.models.llama:LlamaConfig",
        "mistral": "orchestra_jax.models.llama:MistralConfig",
        "qwen2": "orchestra_jax.models.llama:Qwen2Config",
        "qwen3": "orchestra_jax.models.qwen3:Qwen3Config",
        "qwen3_moe": "orchestra_jax.models.qwen3_moe:Qwen3MoeConfig",
    },
)


def preset_config(model: ModelConfig, **overrides: Any) -> DecoderConfig:
    """Return the architecture of a run that starts from random weights: a preset of its family, by default Qwen3."""
    settings = run_settings(model)
    family = settings.pop("family") or FAMILIES.get("qwen3")
    return family.preset(model.preset, **settings, **overrides)


def run_settings(model: ModelConfig) -> dict[str, Any]:
    """Return a run's family and numerics, as keyword arguments of `read_config` and `checkpoint.load`."""
    numerics = ("dtype", "param_dtype", "scan_layers", "remat", "attention")
    family = FAMILIES.get(model.family) if model.family else None
    return {"family": family, **{name: getattr(model, name) for name in numerics}}
