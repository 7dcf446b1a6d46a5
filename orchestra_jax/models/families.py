"""Model families by name, and the family of a checkpoint."""

import json
from pathlib import Path
from typing import Any

from orchestra_jax.config.registry import Registry
from orchestra_jax.config.schema import ModelConfig
from orchestra_jax.io import hub
from orchestra_jax.models.base import DecoderConfig

ModelFamily = type[DecoderConfig]

# A name is the `model_type` of Hugging Face's config.json.
FAMILIES: Registry[ModelFamily] = Registry(
    "model family",
    "model.family",
    group="orchestra_jax.models",
    builtin={
        "llama": "orchestra_jax.models.llama:LlamaConfig",
        "mistral": "orchestra_jax.models.llama:MistralConfig",
        "qwen2": "orchestra_jax.models.llama:Qwen2Config",
        "qwen3": "orchestra_jax.models.qwen3:Qwen3Config",
        "qwen3_moe": "orchestra_jax.models.qwen3_moe:Qwen3MoeConfig",
    },
)


def read_config(source: str | Path, family: ModelFamily | None = None, **overrides: Any) -> DecoderConfig:
    """Read the architecture of a checkpoint.

    Args:
        source: a model directory, its config.json, or the model's id on the hub.
        family: the family that reads it; None: the registered one that config.json names.
        overrides: fields of the config that config.json does not hold, such as scan_layers, remat or attention.

    Raises:
        FileNotFoundError: no config.json at `source`.
        ValueError: an unknown family, or a feature that the family does not compute.
    """
    path = hub.local(source, "model", ("config.json",))
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"No Hugging Face config at {path}; pass a model directory or its config.json.")
    hf = json.loads(path.read_text())
    if family is None:
        name = str(hf.get("model_type"))
        if name not in FAMILIES.names():
            known = ", ".join(FAMILIES.names())
            raise ValueError(
                f"model_type {name!r} of {path} is not supported; give a model of one of {known}, or set "
                "model.family=module:attribute of your own."
            )
        family = FAMILIES.get(name)
    return family.from_hf(hf, **overrides)


def preset_config(model: ModelConfig, **overrides: Any) -> DecoderConfig:
    """Return the architecture of a run that starts from random weights: a preset of its family, by default Qwen3.

    Raises:
        ValueError: an unknown family or preset, or no vocabulary size where the preset has none.
    """
    settings = run_settings(model)
    family = settings.pop("family") or FAMILIES.get("qwen3")
    return family.preset(model.preset, **settings, **overrides)


def run_settings(model: ModelConfig) -> dict[str, Any]:
    """Return the family and the numerics of a run's model, as keyword arguments of `read_config` and `checkpoint.load`.

    Raises:
        ConfigError: an unknown family.
    """
    numerics = ("dtype", "param_dtype", "scan_layers", "remat", "attention")
    family = FAMILIES.get(model.family) if model.family else None
    return {"family": family, **{name: getattr(model, name) for name in numerics}}
