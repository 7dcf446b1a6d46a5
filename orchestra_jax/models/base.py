"""The interface of a model family: sizes and numerics, its module, its names on disk, its axes.

A family is a subclass of `DecoderConfig`; `models.families` finds it by name and docs/add_a_model.md shows how to add
one. Parameters of every family are a plain pytree whose layers are called "layers_<i>", or "layers" where the leaves
have a leading layer axis (scan_layers); a matrix of a layer is a dict with the leaf "kernel", [in, out].
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import flax.linen as nn
from jaxtyping import Array, Float, Int

from orchestra_jax.config.choices import Remat

if TYPE_CHECKING:  # needed on a mesh and for stretched models only
    from orchestra_jax.models.rope_scaling import RopeScaling
    from orchestra_jax.models.sharding import MeshSharding as Constrain
else:
    Constrain = Any

Params = Mapping[str, Any]
LayerKV = tuple[Float[Array, "B Hkv M d"], Float[Array, "B Hkv M d"]]
# Unrolled: one (k, v) of [B, Hkv, M, d] per layer. scan_layers: a single (k, v) of [L, B, Hkv, M, d].
Segments = Int[Array, "B S"] | tuple[Int[Array, "B U"], Int[Array, "B U"]]  # see `models.attention.base`
KVCache = tuple[LayerKV, ...] | tuple[Float[Array, "L B Hkv M d"], Float[Array, "L B Hkv M d"]]


def sizes(
    hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, head_dim: int, **others: Any
) -> dict[str, Any]:
    """Return the fields of a preset."""
    return {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        **others,
    }


_FROM_SCRATCH = {"rope_theta": 10000.0, "tie_word_embeddings": True, "max_position_embeddings": 32768}


@dataclass(frozen=True)
class DecoderConfig(ABC):
    """A decoder of one family. Instances are hashable and go into jitted functions as static arguments.

    Attributes:
        vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim: sizes; `head_dim`
            is independent of hidden_size / num_heads.
        rope_theta: base of the rotary frequencies.
        rope_scaling: stretching of these frequencies to longer texts; None for none.
        bias: names of a layer's matrices that have a bias ("q").
        rms_norm_eps: epsilon of every RMSNorm.
        tie_word_embeddings: whether the output head is the embedding, transposed.
        max_position_embeddings: longest sequence the model was made for, in tokens.
        initializer_range: standard deviation of freshly initialised matrices.
        dtype: compute dtype; norms, softmax and rotations are fp32 inside.
        param_dtype: storage dtype of the parameters.
        scan_layers: scan one layer over stacked parameters (fast GPU compilation) instead of unrolling (fast CPU).
        remat: part of a layer that the backward pass recomputes: "none", "full", "dots" (all but matrix products).
        attention: backend of `models.attention.base.attention`, by name or as a function.

    A family sets:
        model_type, architecture: Hugging Face's names of the family, in config.json.
        fixed: fields of config.json that change the arithmetic, with the only value that the family computes.
        tensor_names: Hugging Face's tensor of every parameter, by the parameter's path without its layer
            ("q/kernel"); "{layer}" stands for the layer's number, a name of `stack` for that along a leading axis.
        axes: logical sharding axes of parameters that `models.sharding.PARAM_AXES` lacks, by name.
        presets: named sizes.
        default_head_dim: head_dim where config.json names none; None: hidden_size / num_heads.
        always_limited: every layer has a sliding window unless config.json says that it has none.
        optional_bias: matrices that have a bias if config.json says attention_bias; empty: the key is not read.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 1e6
    rope_scaling: "RopeScaling | None" = None
    bias: tuple[str, ...] = ()
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 40960
    initializer_range: float = 0.02
    dtype: str = "float32"
    param_dtype: str = "float32"
    scan_layers: bool = False
    remat: str = "none"
    attention: str | Callable[..., Array] = "auto"

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    fixed: ClassVar[Mapping[str, Any]] = {"hidden_act": "silu"}
    tensor_names: ClassVar[Mapping[str, str]] = {
        "embed": "model.embed_tokens.weight",
        "lm_head": "lm_head.weight",
        "norm": "model.norm.weight",
        "input_norm": "model.layers.{layer}.input_layernorm.weight",
        "post_norm": "model.layers.{layer}.post_attention_layernorm.weight",
        **{f"{name}/kernel": f"model.layers.{{layer}}.self_attn.{name}_proj.weight" for name in "qkvo"},
        **{f"{name}/kernel": f"model.layers.{{layer}}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
        **{f"{name}/bias": f"model.layers.{{layer}}.self_attn.{name}_proj.bias" for name in "qkvo"},
    }
    axes: ClassVar[Mapping[str, tuple[str | None, ...]]] = {}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": sizes(96, 256, 3, 4, 2, 24, **_FROM_SCRATCH),
        "reader": sizes(96, 256, 3, 4, 2, 24, **_FROM_SCRATCH | {"tie_word_embeddings": False}),
        "small": sizes(256, 704, 6, 8, 4, 32, **_FROM_SCRATCH),
    }
    default_head_dim: ClassVar[int | None] = None
    always_limited: ClassVar[bool] = False
    optional_bias: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads}); change one."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even, since RoPE rotates two halves.")
        if self.remat not in tuple(Remat):
            raise ValueError(f"Unknown remat policy {self.remat!r}; choose one of {', '.join(Remat)}.")

    @property
    def stack(self) -> Mapping[str, int]:
        """Names and sizes of leading axes whose parameters are a tensor each on disk ("expert")."""
        return {}

    def idle_params(self, tokens: int = 1) -> float:
        """Return the parameters that none of so many tokens passes, on average: experts that no token chose."""
        return 0.0

    @abstractmethod
    def module(self, constrain: Constrain | None = None) -> nn.Module:
        """Return the decoder up to its final norm; `constrain` is the sharding of activations between layers."""

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], **overrides: Any) -> Self:
        """Make the config from the content of a transformers 4 or 5 `config.json`; a ValueError says what it lacks."""
        from orchestra_jax.models.hf_config import decoder_fields

        return cls(**(decoder_fields(cls, hf) | overrides))

    def to_hf(self) -> dict[str, Any]:
        """Return a `config.json` that transformers 4 and 5 and SGLang read; its dtype is that of the parameters."""
        scaled = self.rope_scaling and self.rope_scaling.to_hf()
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            **self.fixed,
            **({"attention_bias": bool(self.bias)} if self.optional_bias else {}),
            "attention_dropout": 0.0,
            "max_position_embeddings": self.max_position_embeddings,
            "initializer_range": self.initializer_range,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_theta": self.rope_theta, **(scaled or {"rope_type": "default"})},
            **({"rope_scaling": scaled} if scaled else {}),  # transformers 4 reads this
            "tie_word_embeddings": self.tie_word_embeddings,
            "torch_dtype": self.param_dtype,
            "use_cache": True,
            # Families that may have a sliding window say that they have none.
            **({"sliding_window": None} if self.always_limited or "use_sliding_window" in self.fixed else {}),
        }

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Return a named size: "tiny", "reader" or "small" (give `vocab_size`), or a released one: "qwen3-8b"."""
        if name not in cls.presets:
            raise ValueError(f"Unknown {cls.model_type} preset {name!r}; choose one of {', '.join(cls.presets)}.")
        fields = {**cls.presets[name], **overrides}
        if "vocab_size" not in fields:
            raise ValueError(f"Preset {name!r} has no vocabulary of its own; pass vocab_size=len(tokenizer).")
        return cls(**fields)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return replace(self, **changes)
