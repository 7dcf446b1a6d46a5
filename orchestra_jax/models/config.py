"""Shape and numerics of a Qwen3 dense model, to and from Hugging Face's config.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

REMAT_POLICIES = ("none", "full", "dots")


@dataclass(frozen=True)
class Qwen3Config:
    """A Qwen3 dense decoder.

    Attributes:
        vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim: sizes; `head_dim`
            is independent of hidden_size / num_heads.
        rope_theta: base of the rotary frequencies.
        rms_norm_eps: epsilon of every RMSNorm.
        tie_word_embeddings: whether the output head is the embedding, transposed.
        max_position_embeddings: longest sequence the model was made for, in tokens.
        initializer_range: standard deviation of freshly initialised matrices.
        dtype: compute dtype; norms, softmax and rotations are fp32 inside.
        param_dtype: storage dtype of the parameters.
        scan_layers: scan one layer over stacked parameters (fast GPU compilation) instead of unrolling (fast CPU).
        remat: what the backward pass recomputes in a layer: "none", "full" (all of it) or "dots" (all but the
            outputs of weight matrix products).
        attention: backend of `models.attention.attention`.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 40960
    initializer_range: float = 0.02
    dtype: str = "float32"
    param_dtype: str = "float32"
    scan_layers: bool = False
    remat: str = "none"
    attention: str = "xla"

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads}); change one."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even, since RoPE rotates two halves.")
        if self.remat not in REMAT_POLICIES:
            raise ValueError(f"Unknown remat policy {self.remat!r}; choose one of {', '.join(REMAT_POLICIES)}.")

    @classmethod
    def from_hf(cls, source: str | Path | Mapping[str, Any], **overrides: Any) -> Self:
        """Reads a transformers 4 or 5 `config.json` (its path, its directory or its content).

        Raises:
            FileNotFoundError: no config.json at `source`.
            ValueError: not a Qwen3 dense model, or a feature this decoder does not have.
        """
        if isinstance(source, Mapping):
            hf = source
        else:
            path = Path(source)
            path = path / "config.json" if path.is_dir() else path
            if not path.is_file():
                raise FileNotFoundError(f"No Hugging Face config at {path}; pass a model directory or its config.json.")
            hf = json.loads(path.read_text())
        if hf.get("model_type") != "qwen3":
            raise ValueError(
                f"model_type {hf.get('model_type')!r} is not supported; give a Qwen3 dense model ('qwen3')."
            )
        # transformers 4 wrote rope_theta and rope_scaling, transformers 5 writes rope_parameters.
        rope = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type != "default":
            raise ValueError(f"RoPE scaling {rope_type!r} is not supported; remove it from the model's config.json.")
        unsupported = {"attention_bias": False, "use_sliding_window": False, "hidden_act": "silu"}
        for key, only in unsupported.items():
            if hf.get(key, only) != only:
                raise ValueError(f"{key}={hf[key]!r} is not supported; this decoder has only {key}={only!r}.")
        fields: dict[str, Any] = {
            "vocab_size": hf["vocab_size"],
            "hidden_size": hf["hidden_size"],
            "intermediate_size": hf["intermediate_size"],
            "num_layers": hf["num_hidden_layers"],
            "num_heads": hf["num_attention_heads"],
            "num_kv_heads": hf.get("num_key_value_heads") or hf["num_attention_heads"],
            "head_dim": hf.get("head_dim") or 128,  # transformers' default for Qwen3, not hidden_size / heads
            "rope_theta": float(rope.get("rope_theta") or hf.get("rope_theta") or 10000.0),
            "rms_norm_eps": hf.get("rms_norm_eps", 1e-6),
            "tie_word_embeddings": hf.get("tie_word_embeddings", False),
            "max_position_embeddings": hf.get("max_position_embeddings", 32768),
            "initializer_range": hf.get("initializer_range", 0.02),
        }
        return cls(**(fields | overrides))

    def to_hf(self) -> dict[str, Any]:
        """The content of a `config.json` that transformers 4 and 5 and SGLang read; `dtype` is that of the params."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_position_embeddings": self.max_position_embeddings,
            "initializer_range": self.initializer_range,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "tie_word_embeddings": self.tie_word_embeddings,
            "torch_dtype": self.param_dtype,
            "use_cache": True,
        }

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """A named size: "tiny" and "small" (give `vocab_size`), or a released Qwen3 model such as "qwen3-8b".

        Raises:
            ValueError: unknown name, or no vocabulary size where the preset has none.
        """
        if name not in _PRESETS:
            raise ValueError(f"Unknown Qwen3 preset {name!r}; choose one of {', '.join(_PRESETS)}.")
        fields = _PRESETS[name] | overrides
        if "vocab_size" not in fields:
            raise ValueError(f"Preset {name!r} has no vocabulary of its own; pass vocab_size=len(tokenizer).")
        return cls(**fields)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return replace(self, **changes)


def _released(hidden: int, mlp: int, layers: int, heads: int, *, tied: bool) -> dict[str, Any]:
    return {
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": tied,
    }


def _from_scratch(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
    }


_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": _from_scratch(96, 256, 3, 4, 2, 24),
    "small": _from_scratch(256, 704, 6, 8, 4, 32),
    "qwen3-0.6b": _released(1024, 3072, 28, 16, tied=True),
    "qwen3-1.7b": _released(2048, 6144, 28, 16, tied=True),
    "qwen3-4b": _released(2560, 9728, 36, 32, tied=True),
    "qwen3-8b": _released(4096, 12288, 36, 32, tied=False),
    "qwen3-14b": _released(5120, 17408, 40, 40, tied=False),
    "qwen3-32b": _released(5120, 25600, 64, 64, tied=False),
}
