"""Checkpoints of the policy as folders that transformers and SGLang load."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.checkpoint.safetensors import save

if TYPE_CHECKING:  # needed to read a checkpoint only
    from orchestra_jax.models.families import ModelFamily
    from orchestra_jax.models.sharding import ShardingRules

__all__ = ["load", "save"]


def load(
    folder: str | Path,
    mesh: Mesh | None = None,
    *,
    rules: "ShardingRules | None" = None,
    family: "ModelFamily | None" = None,
    **overrides: Any,
) -> tuple[DecoderConfig, dict[str, Any]]:
    """Read a checkpoint; with several processes, each reads only the shards of its own devices.

    Args:
        folder: holds config.json and the safetensors files; or a model's id on the hub.
        mesh: devices for the parameters; None: JAX's default device.
        rules: rules that split them over the mesh; None: the default `ShardingRules`.
        family: the model's family; None: the registered one that config.json names.
        overrides: fields of the config, such as scan_layers, remat or attention, which config.json does not hold.
            `param_dtype` casts while reading and is the files' own dtype if absent (the widest, if they mix);
            `dtype` is `param_dtype` if absent.

    Returns:
        The config and the parameters, as `models.decoder.init_params` shapes them.

    Raises:
        FileNotFoundError: the folder, its config.json or one of its files is missing.
        ValueError: an unknown family, a damaged file, missing or unexpected tensors, a wrong shape or dtype, or
            a tied checkpoint whose own head differs from its embedding. A head that is equal is ignored.
    """
    from orchestra_jax.models.checkpoint.reading import read

    return read(folder, mesh, rules, family, **overrides)
