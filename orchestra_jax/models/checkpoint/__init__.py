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
    """Read a checkpoint: its config and its parameters, placed on `mesh`; see `models.checkpoint.reading.read`."""
    from orchestra_jax.models.checkpoint.reading import read

    return read(folder, mesh, rules, family, **overrides)
