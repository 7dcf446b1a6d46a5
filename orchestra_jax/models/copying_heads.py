"""Random weights with heads that copy. A small policy needs hundreds of supervised steps to find such heads itself.

To copy a name out of its prompt a decoder needs two heads in turn (Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits"): one that tells each token what stood before it, and one that looks for where the last token
stood before and writes what came next. Weights that begin near such a solution learn it sooner (Trockman & Kolter
2023, "Mimetic Initialization of Self-Attention Layers"). docs/results.md has what it saves.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.rope import rope_angles

_SHARED = 0.5  # length of the direction that all embeddings share, as a part of an embedding's own length
_LENGTH = 1.5  # of what is added to a query or key, in lengths of one that is normed
_FASTEST = 0.2  # pairs that RoPE turns by so many radians a token, or more, tell neighbours apart


def with_copying_heads(params: dict[str, Any], config: DecoderConfig, key: PRNGKeyArray) -> dict[str, Any]:
    """Return fresh parameters whose heads write what they look at, and whose first heads look at the tokens before.

    In every layer a head's output matrix becomes its value matrix, transposed: it adds an image of each token that it
    looks at, which raises that token's logit if the embedding is the output head too. In the first layer the heads that
    share the first keys look one token back, two tokens back, and so on. Training may change all of it.
    """
    shared = jax.random.normal(key, (config.hidden_size,))
    shared = shared / jnp.linalg.norm(shared)
    length = _SHARED * config.initializer_range * config.hidden_size**0.5
    params = {**params, "embed": params["embed"] + (length * shared).astype(params["embed"].dtype)}
    if config.scan_layers:
        layers = jax.vmap(lambda layer: _writing(layer, config))(params["layers"])
        first = _looking_back(jax.tree.map(lambda leaf: leaf[0], layers), config, shared)
        return {**params, "layers": jax.tree.map(lambda leaf, own: leaf.at[0].set(own), layers, first)}
    layers = {name: _writing(params[name], config) for name in params if name.startswith("layers_")}
    return {**params, **layers, "layers_0": _looking_back(layers["layers_0"], config, shared)}


def _writing(layer: dict[str, Any], config: DecoderConfig) -> dict[str, Any]:
    """Return the layer with output matrices that are the heads' value matrices, transposed."""
    values = layer["v"]["kernel"].reshape(-1, config.num_kv_heads, config.head_dim)
    of_heads = jnp.repeat(values, config.num_heads // config.num_kv_heads, axis=1)
    kernel = of_heads.transpose(1, 2, 0).reshape(-1, config.hidden_size)
    return {**layer, "o": {**layer["o"], "kernel": kernel}}


def _looking_back(layer: dict[str, Any], config: DecoderConfig, shared: jax.Array) -> dict[str, Any]:
    """Return the layer with heads that look back, by what the direction that all tokens share adds to query and key.

    The key is the same at every token, before RoPE turns it by the token's position; a query that is turned back by n
    tokens fits best the key n tokens before.
    """
    heads = config.num_heads // config.num_kv_heads
    back = -jnp.arange(1, heads + 1)[None]
    cos, sin = (part[0] for part in rope_angles(back, config.head_dim, config.rope_theta, config.rope_scaling))
    fast = jnp.abs(jnp.arctan2(sin[0], cos[0])) >= _FASTEST
    queries = jnp.concatenate([cos * fast, sin * fast], axis=1)  # [heads, d], in RoPE's halves
    keys = jnp.concatenate([fast, jnp.zeros_like(fast)]).astype(queries.dtype)
    part = config.hidden_size**0.5 * _SHARED / (1 + _SHARED**2) ** 0.5  # the shared part of a token after the norm
    gain = _LENGTH * (config.head_dim / fast.sum()) ** 0.5 / part

    def added(name: str, heads: jax.Array) -> dict[str, Any]:
        kernel = layer[name]["kernel"]
        more = gain * shared[:, None] * heads.reshape(-1)
        return {**layer[name], "kernel": kernel.at[:, : heads.size].add(more.astype(kernel.dtype))}

    return {**layer, "q": added("q", queries), "k": added("k", keys[None])}
