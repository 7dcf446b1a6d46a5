"""Tunix's own Qwen3 on a checkpoint that orchestra_jax wrote. Runs in .venv-tunix only."""

import json
from pathlib import Path

import jax.numpy as jnp
from tunix.models.qwen3 import model as qwen3
from tunix.models.qwen3.params import create_model_from_safe_tensors


def load(folder: Path) -> tuple[qwen3.Qwen3, qwen3.ModelConfig]:
    """The fp32 model and its configuration."""
    hf = json.loads((folder / "config.json").read_text())
    config = qwen3.ModelConfig(
        num_layers=hf["num_hidden_layers"],
        vocab_size=hf["vocab_size"],
        embed_dim=hf["hidden_size"],
        hidden_dim=hf["intermediate_size"],
        num_heads=hf["num_attention_heads"],
        head_dim=hf["head_dim"],
        num_kv_heads=hf["num_key_value_heads"],
        rope_theta=int(hf["rope_theta"]),
        norm_eps=hf["rms_norm_eps"],
        use_tied_embedding=hf["tie_word_embeddings"],
    )
    return create_model_from_safe_tensors(str(folder), config, dtype=jnp.float32), config
