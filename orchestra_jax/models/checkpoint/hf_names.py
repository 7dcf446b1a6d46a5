"""Names and layouts of Hugging Face's tensors, as a tree shaped like our parameters."""

from dataclasses import dataclass
from typing import Any, cast

import jax

from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.decoder import abstract_params


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


def sources(config: DecoderConfig) -> dict[str, Any]:
    """A tree shaped like the parameters, with a `Source` for every leaf.

    Raises:
        ValueError: the family has no tensor name for one of its parameters.
    """

    def source(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Source:
        keys = [key.key for key in path]
        place, _, layer = keys[0].partition("_") if keys[0].startswith("layers") else ("", "", "")
        name = "/".join(keys[1:] if place else keys)
        if name not in config.tensor_names:
            raise ValueError(f"{type(config).__name__}.tensor_names has no name for the parameter {name!r}; add one.")
        stacked = place == "layers" and not layer
        layers = range(config.num_layers) if stacked else (layer,)
        names = tuple(config.tensor_names[name].format(layer=i) for i in layers)
        return Source(names, keys[-1] in ("kernel", "lm_head"), stacked)

    return cast(dict[str, Any], jax.tree_util.tree_map_with_path(source, abstract_params(config)))
