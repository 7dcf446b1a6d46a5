"""Names and layouts of Hugging Face's Qwen3 tensors, as pure functions to and from our parameter tree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from orchestra_jax.models.config import Qwen3Config
from orchestra_jax.models.qwen3 import Params, abstract_params

_NORMS = {
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
_MATRICES = {name: f"self_attn.{name}_proj" for name in "qkvo"} | {
    name: f"mlp.{name}_proj" for name in ("gate", "up", "down")
}


@dataclass(frozen=True)
class Source:
    """Where a parameter comes from.

    Attributes:
        names: the tensor, or one tensor per layer in the order of a stacked parameter's leading axis.
        transpose: whether the tensor is [out, in] where the parameter is [in, out].
        stacked: whether the parameter has a leading layer axis.
    """

    names: tuple[str, ...]
    transpose: bool = False
    stacked: bool = False


def sources(config: Qwen3Config) -> dict[str, Any]:
    """A tree shaped like the parameters, with a `Source` for every leaf."""

    def block(layers: range, stacked: bool) -> dict[str, Any]:
        def source(name: str, transpose: bool) -> Source:
            return Source(tuple(f"model.layers.{i}.{name}.weight" for i in layers), transpose, stacked)

        norms = {ours: source(theirs, False) for ours, theirs in _NORMS.items()}
        return norms | {ours: {"kernel": source(theirs, True)} for ours, theirs in _MATRICES.items()}

    tree: dict[str, Any] = {"embed": Source(("model.embed_tokens.weight",)), "norm": Source(("model.norm.weight",))}
    if not config.tie_word_embeddings:
        tree["lm_head"] = Source(("lm_head.weight",), transpose=True)
    if config.scan_layers:
        return tree | {"layers": block(range(config.num_layers), True)}
    return tree | {f"layers_{i}": block(range(i, i + 1), False) for i in range(config.num_layers)}


def to_params(tensors: Mapping[str, np.ndarray], config: Qwen3Config) -> dict[str, Any]:
    """Parameters (numpy, in the tensors' dtype) from Hugging Face tensors; tensors of other names are ignored.

    Raises:
        ValueError: a tensor is missing or has another shape than the config says.
    """

    def convert(source: Source, expected: jax.ShapeDtypeStruct) -> np.ndarray:
        missing = [name for name in source.names if name not in tensors]
        if missing:
            raise ValueError(f"The checkpoint has no tensor {missing[0]!r}; check that it is a complete Qwen3 model.")
        parts = [tensors[name].T if source.transpose else tensors[name] for name in source.names]
        shape = expected.shape[1:] if source.stacked else expected.shape
        for name, part in zip(source.names, parts, strict=True):
            if part.shape != shape:
                raise ValueError(
                    f"Tensor {name!r} has shape {tensors[name].shape}, but the config needs "
                    f"{shape[::-1] if source.transpose else shape}; give the config of this very checkpoint."
                )
        return np.stack(parts) if source.stacked else parts[0]

    tree: dict[str, Any] = jax.tree.map(convert, sources(config), abstract_params(config))
    return tree


def to_tensors(params: Params, config: Qwen3Config) -> dict[str, np.ndarray]:
    """Hugging Face tensors (contiguous numpy, in the parameters' dtype); a tied head is not repeated."""
    tensors: dict[str, np.ndarray] = {}

    def convert(source: Source, param: Any) -> None:
        array = np.asarray(param)
        for name, part in zip(source.names, array if source.stacked else [array], strict=True):
            tensors[name] = np.ascontiguousarray(part.T if source.transpose else part)

    jax.tree.map(convert, sources(config), dict(params))
    return tensors
