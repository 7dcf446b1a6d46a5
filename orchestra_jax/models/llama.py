"""Llama's dense models, and two families that differ from them only in numbers and biases: Mistral and Qwen2 (2.5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from orchestra_jax.models.base import Constrain, DecoderConfig
from orchestra_jax.models.decoder import Decoder
from orchestra_jax.models.rope_scaling import RopeScaling


def _sizes(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, **others: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "intermediate_size": mlp, "num_layers": layers}
    return {**sizes, "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": hidden // heads, **others}


_SMOLLM2 = {
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "rope_theta": 1e5,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
}
_LLAMA3 = {"vocab_size": 128256, "rope_theta": 5e5, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072}
_QWEN2 = {"vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 32768}
_QWEN2_UNTIED = _QWEN2 | {"vocab_size": 152064, "tie_word_embeddings": False}


def _stretched(factor: float) -> RopeScaling:
    return RopeScaling("llama3", factor, original_length=8192, slow=1.0, fast=4.0)


@dataclass(frozen=True)
class LlamaConfig(DecoderConfig):
    """A Llama decoder: `Block` as it stands. SmolLM2 is a Llama too."""

    model_type: ClassVar[str] = "llama"
    architecture: ClassVar[str] = "LlamaForCausalLM"
    fixed: ClassVar[Mapping[str, Any]] = {"hidden_act": "silu", "mlp_bias": False}
    optional_bias: ClassVar[tuple[str, ...]] = ("q", "k", "v", "o")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **DecoderConfig.presets,
        "smollm2-135m": _sizes(576, 1536, 30, 9, 3, **_SMOLLM2),
        "smollm2-360m": _sizes(960, 2560, 32, 15, 5, **_SMOLLM2),
        "smollm2-1.7b": _sizes(2048, 8192, 24, 32, 32, **(_SMOLLM2 | {"rope_theta": 130000.0})),
        "llama-3.2-1b": _sizes(
            2048, 8192, 16, 32, 8, **_LLAMA3, tie_word_embeddings=True, rope_scaling=_stretched(32.0)
        ),
        "llama-3.2-3b": _sizes(
            3072, 8192, 28, 24, 8, **_LLAMA3, tie_word_embeddings=True, rope_scaling=_stretched(32.0)
        ),
        "llama-3.1-8b": _sizes(4096, 14336, 32, 32, 8, **_LLAMA3, rope_scaling=_stretched(8.0)),
    }

    def module(self, constrain: Constrain | None = None) -> Decoder:
        return Decoder(self, constrain=constrain)


@dataclass(frozen=True)
class MistralConfig(LlamaConfig):
    """A Mistral decoder without a sliding window (7B from version 0.2 on)."""

    model_type: ClassVar[str] = "mistral"
    architecture: ClassVar[str] = "MistralForCausalLM"
    fixed: ClassVar[Mapping[str, Any]] = DecoderConfig.fixed
    always_limited: ClassVar[bool] = True
    optional_bias: ClassVar[tuple[str, ...]] = ()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **DecoderConfig.presets,
        "mistral-7b-v0.3": _sizes(
            4096, 14336, 32, 32, 8, vocab_size=32768, rms_norm_eps=1e-5, max_position_embeddings=32768
        ),
    }

    def to_hf(self) -> dict[str, Any]:
        return super().to_hf() | {"sliding_window": None}


@dataclass(frozen=True)
class Qwen2Config(LlamaConfig):
    """A Qwen2 or Qwen2.5 decoder: queries, keys and values have a bias."""

    bias: tuple[str, ...] = ("q", "k", "v")

    model_type: ClassVar[str] = "qwen2"
    architecture: ClassVar[str] = "Qwen2ForCausalLM"
    fixed: ClassVar[Mapping[str, Any]] = {"hidden_act": "silu", "use_sliding_window": False}
    optional_bias: ClassVar[tuple[str, ...]] = ()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **DecoderConfig.presets,
        "qwen2.5-0.5b": _sizes(896, 4864, 24, 14, 2, **_QWEN2),
        "qwen2.5-1.5b": _sizes(1536, 8960, 28, 12, 2, **_QWEN2),
        "qwen2.5-3b": _sizes(2048, 11008, 36, 16, 2, **_QWEN2),
        "qwen2.5-7b": _sizes(3584, 18944, 28, 28, 4, **_QWEN2_UNTIED),
        "qwen2.5-14b": _sizes(5120, 13824, 48, 40, 8, **_QWEN2_UNTIED),
        "qwen2.5-32b": _sizes(5120, 27648, 64, 40, 8, **_QWEN2_UNTIED),
    }

    def to_hf(self) -> dict[str, Any]:
        return super().to_hf() | {"sliding_window": None}
