"""Parameters from Hugging Face's tensors and back, without a checkpoint folder."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.checkpoint.hf_names import Source, sources
from orchestra_jax.models.checkpoint.safetensors import host_tensors
from orchestra_jax.models.decoder import abstract_params


def drawn_params(config: DecoderConfig, seed: int = 0) -> dict[str, Any]:
    """Parameters distributed as those of `init_params`, by numpy: JAX would compile a program for every shape."""
    rng = np.random.default_rng(seed)

    def draw(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if (name := path[-1].key).endswith(("norm", "bias")):
            return jnp.asarray(np.full(leaf.shape, name != "bias", leaf.dtype))
        values = np.float32(config.initializer_range) * rng.standard_normal(leaf.shape, np.float32)
        return jnp.asarray(values.astype(leaf.dtype))

    return jax.tree_util.tree_map_with_path(draw, _shapes(config))


_shapes = functools.cache(abstract_params)


def to_params(tensors: Mapping[str, np.ndarray], config: DecoderConfig) -> dict[str, Any]:
    """Parameters (numpy, in the tensors' dtype); tensors of other names are ignored."""

    def convert(source: Source) -> np.ndarray:
        parts = [tensors[name].T if source.transpose else tensors[name] for name in source.names]
        return np.stack(parts).reshape(*source.stack, *parts[0].shape) if source.stack else parts[0]

    return jax.tree.map(convert, sources(config))


def to_tensors(params: Params, config: DecoderConfig) -> dict[str, np.ndarray]:
    """Hugging Face's tensors (contiguous numpy, in the parameters' dtype); a tied head is not repeated."""
    return {tensor.name: tensor.to_host() for tensor in host_tensors(config, params)}


def assert_same(got: Any, want: Any) -> None:
    """Two trees hold the same arrays, to the bit."""

    def same(a: Any, b: Any) -> None:
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()

    jax.tree.map(same, got, want)
