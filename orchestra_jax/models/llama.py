"""Llama's dense models, and two families that differ from them only in numbers and biases: Mistral and Qwen2 (2.5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from orchestra_jax.models.base import Constrain, DecoderConfig, sizes
from orchestra_jax.models.decoder import Decoder
from orchestra_jax.models.rope_scaling import RopeScaling

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
        "smollm2-135m": sizes(576, 1536, 30, 9, 3, 64, **_SMOLLM2),
        "smollm2-360m": sizes(960, 2560, 32, 15, 5, 64, **_SMOLLM2),
        "smollm2-1.7b": sizes(2048, 8192, 24, 32, 32, 64, **(_SMOLLM2 | {"rope_theta": 130000.0})),
        "llama-3.2-1b": sizes(
            2048, 8192, 16, 32, 8, 64, **_LLAMA3, tie_word_embeddings=True, rope_scaling=_stretched(32.0)
        ),
        "llama-3.2-3b": sizes(
            3072, 8192, 28, 24, 8, 128, **_LLAMA3, tie_word_embeddings=True, rope_scaling=_stretched(32.0)
        ),
        "llama-3.1-8b": sizes(4096, 14336, 32, 32, 8, 128, **_LLAMA3, rope_scaling=_stretched(8.0)),
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
        "mistral-7b-v0.3": sizes(
            4096, 14336, 32, 32, 8, 128, vocab_size=32768, rms_norm_eps=1e-5, max_position_embeddings=32768
        ),
    }


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
        "qwen2.5-0.5b": sizes(896, 4864, 24, 14, 2, 64, **_QWEN2),
        "qwen2.5-1.5b": sizes(1536, 8960, 28, 12, 2, 128, **_QWEN2),
        "qwen2.5-3b": sizes(2048, 11008, 36, 16, 2, 128, **_QWEN2),
        "qwen2.5-7b": sizes(3584, 18944, 28, 28, 4, 128, **_QWEN2_UNTIED),
        "qwen2.5-14b": sizes(5120, 13824, 48, 40, 8, 128, **_QWEN2_UNTIED),
        "qwen2.5-32b": sizes(5120, 27648, 64, 40, 8, 128, **_QWEN2_UNTIED),
    }
