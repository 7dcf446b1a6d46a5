"""Qwen3's mixtures of experts: Qwen3's attention, and in every layer a router and many small MLPs in place of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, cast

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from orchestra_jax.models.base import Constrain, DecoderConfig, sizes
from orchestra_jax.models.decoder import Decoder
from orchestra_jax.models.experts import expert_mlps, route
from orchestra_jax.models.qwen3 import Qwen3Block, Qwen3Config

_EXPERT = "model.layers.{layer}.mlp.experts.{expert}"
_released = partial(sizes, kv_heads=4, head_dim=128, vocab_size=151936)


class _Matrices(nn.Module):
    """One matrix of every expert of a layer."""

    config: "Qwen3MoeConfig"
    inputs: int
    outputs: int

    @nn.compact
    def __call__(self) -> Float[Array, "E in out"]:
        config = self.config
        matrix = nn.initializers.normal(config.initializer_range)
        shape = (config.num_experts, self.inputs, self.outputs)
        return self.param("kernel", matrix, shape, jnp.dtype(config.param_dtype)).astype(config.dtype)


class Qwen3MoeBlock(Qwen3Block):
    """A layer whose parameters have, in place of gate, up and down:

    router                      {"kernel": [D, E]}
    experts_gate, experts_up    {"kernel": [E, D, F]}
    experts_down                {"kernel": [E, F, D]}

    On a mesh every device computes what its own experts add to its own tokens, and the parts are summed.
    """

    def feed_forward(self, y: Float[Array, "B*S D"]) -> Float[Array, "B*S D"]:
        config = cast(Qwen3MoeConfig, self.config)
        logits = self.dense(y, config.num_experts, "router")
        shares, chosen = route(logits, config.experts_per_token, normalise=config.norm_topk_prob)
        wide = partial(_Matrices, config, config.hidden_size, config.expert_size)
        gate, up = wide(name="experts_gate")(), wide(name="experts_up")()
        down = _Matrices(config, config.expert_size, config.hidden_size, name="experts_down")()

        def own(*arguments: Array) -> Float[Array, "1 n D"]:
            return expert_mlps(*arguments, num_experts=config.num_experts)[None]

        arguments = (y, shares, chosen, jnp.arange(config.num_experts), gate, up, down)
        if self.constrain is None:
            return own(*arguments)[0]
        tokens, matrices = ("batch", None), ("experts", None, None)
        axes = (tokens, tokens, tokens, ("experts",), matrices, matrices, matrices)
        return self.constrain.on_own_parts(own, arguments, axes, ("experts", "batch", None)).sum(0)


@dataclass(frozen=True)
class Qwen3MoeConfig(Qwen3Config):
    """A Qwen3 decoder all of whose layers are mixtures of experts.

    Attributes:
        expert_size: width of one expert's MLP; `intermediate_size` is the width of a dense layer, and there is none.
        num_experts: experts of each layer.
        experts_per_token: experts that a token is sent to.
        norm_topk_prob: whether the shares of a token's experts add up to 1.
    """

    expert_size: int = 768
    num_experts: int = 128
    experts_per_token: int = 8
    norm_topk_prob: bool = True

    model_type: ClassVar[str] = "qwen3_moe"
    architecture: ClassVar[str] = "Qwen3MoeForCausalLM"
    fixed: ClassVar[Mapping[str, Any]] = {**Qwen3Config.fixed, "decoder_sparse_step": 1, "mlp_only_layers": []}
    tensor_names: ClassVar[Mapping[str, str]] = {
        **Qwen3Config.tensor_names,
        "router/kernel": "model.layers.{layer}.mlp.gate.weight",
        **{f"experts_{name}/kernel": f"{_EXPERT}.{name}_proj.weight" for name in ("gate", "up", "down")},
    }
    axes: ClassVar[Mapping[str, tuple[str | None, ...]]] = {
        "router": ("embed", None),
        "experts_gate": ("experts", "embed", None),
        "experts_up": ("experts", "embed", None),
        "experts_down": ("experts", None, "embed"),
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {**DecoderConfig.presets["tiny"], "expert_size": 64, "num_experts": 8, "experts_per_token": 2},
        "small": {**DecoderConfig.presets["small"], "expert_size": 176, "num_experts": 16, "experts_per_token": 4},
        "qwen3-30b-a3b": _released(2048, 6144, 48, 32, expert_size=768),
        "qwen3-235b-a22b": _released(4096, 12288, 94, 64, expert_size=1536),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"experts_per_token ({self.experts_per_token}) must be 1 to num_experts ({self.num_experts}); change "
                "one."
            )

    @property
    def stack(self) -> Mapping[str, int]:
        return {"expert": self.num_experts}

    def idle_params(self, tokens: int = 1) -> float:
        unused = (1 - self.experts_per_token / self.num_experts) ** tokens
        return unused * self.num_layers * self.num_experts * 3 * self.hidden_size * self.expert_size

    def module(self, constrain: Constrain | None = None) -> Decoder:
        return Decoder(self, Qwen3MoeBlock, constrain)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], **overrides: Any) -> Self:
        fields = {
            "expert_size": hf.get("moe_intermediate_size", 768),
            "num_experts": hf.get("num_experts") or hf.get("num_local_experts") or 128,  # transformers 4 and 5
            "experts_per_token": hf.get("num_experts_per_tok", 8),
            "norm_topk_prob": hf.get("norm_topk_prob", False),
        }
        dense = hf.get("mlp_only_layers") or []
        return super().from_hf({**hf, "mlp_only_layers": dense}, **(fields | overrides))

    def to_hf(self) -> dict[str, Any]:
        return super().to_hf() | {
            "moe_intermediate_size": self.expert_size,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.experts_per_token,
            "norm_topk_prob": self.norm_topk_prob,
        }
