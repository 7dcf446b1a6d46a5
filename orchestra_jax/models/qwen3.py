"""Qwen3's dense models: a decoder whose queries and keys are normed in every head before RoPE."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array, Float

from orchestra_jax.models.base import Constrain, DecoderConfig, sizes
from orchestra_jax.models.decoder import Block, Decoder

_released = functools.partial(sizes, kv_heads=8, head_dim=128, vocab_size=151936)


class Qwen3Block(Block):
    """Adds q_norm and k_norm [d] to a layer's parameters."""

    def heads(self, y: Float[Array, "B*S D"], batch: int, count: int, name: str) -> Float[Array, "B S count d"]:
        found = super().heads(y, batch, count, name)
        return found if name == "v" else self.norm(found, f"{name}_norm")


@dataclass(frozen=True)
class Qwen3Config(DecoderConfig):
    """A Qwen3 dense decoder."""

    model_type: ClassVar[str] = "qwen3"
    architecture: ClassVar[str] = "Qwen3ForCausalLM"
    fixed: ClassVar[Mapping[str, Any]] = {"hidden_act": "silu", "use_sliding_window": False}
    optional_bias: ClassVar[tuple[str, ...]] = ("q", "k", "v", "o")
    tensor_names: ClassVar[Mapping[str, str]] = {
        **DecoderConfig.tensor_names,
        "q_norm": "model.layers.{layer}.self_attn.q_norm.weight",
        "k_norm": "model.layers.{layer}.self_attn.k_norm.weight",
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **DecoderConfig.presets,
        "qwen3-0.6b": _released(1024, 3072, 28, 16, tie_word_embeddings=True),
        "qwen3-1.7b": _released(2048, 6144, 28, 16, tie_word_embeddings=True),
        "qwen3-4b": _released(2560, 9728, 36, 32, tie_word_embeddings=True),
        "qwen3-8b": _released(4096, 12288, 36, 32, tie_word_embeddings=False),
        "qwen3-14b": _released(5120, 17408, 40, 40, tie_word_embeddings=False),
        "qwen3-32b": _released(5120, 25600, 64, 64, tie_word_embeddings=False),
    }
    default_head_dim: ClassVar[int | None] = 128  # transformers' default for Qwen3, not hidden_size / heads

    def module(self, constrain: Constrain | None = None) -> Decoder:
        return Decoder(self, Qwen3Block, constrain)
