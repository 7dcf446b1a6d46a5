"""Checkpoints of the policy as folders that transformers and SGLang load."""

from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.checkpoint.safetensors import save

__all__ = ["load", "save"]


def load(folder: str | Path, mesh: Mesh | None = None, **options: Any) -> tuple[DecoderConfig, dict[str, Any]]:
    """Read a checkpoint: its config and its parameters, placed on `mesh`; `models.checkpoint.reading.read` has more."""
    from orchestra_jax.models.checkpoint.reading import read

    return read(folder, mesh, **options)
