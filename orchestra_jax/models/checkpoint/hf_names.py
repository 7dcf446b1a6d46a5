"""Names and layouts of Hugging Face's tensors, as a tree shaped like our parameters."""

import itertools
from dataclasses import dataclass
from typing import Any, cast

import jax

from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.decoder import abstract_params

TURNED = ("kernel", "lm_head")  # parameters that are [in, out] where their tensors are [out, in]


@dataclass(frozen=True)
class Source:
    """The tensors of a parameter in Hugging Face's files: one, or one for each place along its leading axes."""

    names: tuple[str, ...]  # the last leading axis is the fastest
    transpose: bool = False  # True where the tensor is [out, in] and the parameter [in, out]
    stack: tuple[int, ...] = ()  # sizes of the leading axes (layers, experts)

    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return the name of every tensor and its place along the leading axes."""
        places = itertools.product(*(range(size) for size in self.stack))
        return list(zip(self.names, places, strict=True))


def sources(config: DecoderConfig) -> dict[str, Any]:
    """Return a tree shaped like the parameters, with a `Source` for every leaf.

    Raises:
        ValueError: the family has no tensor name for one of its parameters.
    """

    def source(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Source:
        keys = [key.key for key in path]
        place, _, layer = keys[0].partition("_") if keys[0].startswith("layers") else ("", "", "")
        name = "/".join(keys[1:] if place else keys)
        if name not in config.tensor_names:
            raise ValueError(f"{type(config).__name__}.tensor_names has no name for the parameter {name!r}; add one.")
        template = config.tensor_names[name]
        stacked = {"layer": config.num_layers} if place == "layers" and not layer else {}
        stacked |= {axis: size for axis, size in config.stack.items() if f"{{{axis}}}" in template}
        places = itertools.product(*(range(size) for size in stacked.values()))
        names = tuple(template.format(**{"layer": layer, **dict(zip(stacked, at, strict=True))}) for at in places)
        return Source(names, keys[-1] in TURNED, tuple(stacked.values()))

    return cast(dict[str, Any], jax.tree_util.tree_map_with_path(source, abstract_params(config)))
