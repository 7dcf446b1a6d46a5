"""Random weights with heads that copy, which a small policy else needs hundreds of supervised steps to find.

To copy a name a decoder needs a head that tells each token what stood before it, and one that looks for where the last
token stood before (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). Weights that begin near
such a solution learn it sooner (Trockman & Kolter 2023, "Mimetic Initialization of Self-Attention Layers").
"""

import jax
import jax.numpy as jnp

from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.rope import rope_angles

_SHARED = 0.5  # length of the direction that all embeddings share, as a part of an embedding's own length


def with_copying_heads(params: Params, config: DecoderConfig, key: jax.Array) -> Params:
    """Return fresh parameters whose heads write what they look at, and whose first heads look at the tokens before.

    In every layer a head's output matrix becomes its value matrix, transposed: it adds an image of each token that it
    looks at, which raises that token's logit if the embedding is the output head too. In the first layer the heads that
    share the first keys look one token back, two tokens back, and so on.
    """
    group, dim, size = config.num_heads // config.num_kv_heads, config.head_dim, config.hidden_size
    shared = jax.random.normal(key, (size,))
    # The key is the same at every token, before RoPE turns it by the token's position: a query that is turned back by n
    # tokens fits best the key n tokens before.
    cos, sin = rope_angles(-jnp.arange(1, group + 1), dim, config.rope_theta, config.rope_scaling)
    fast = jnp.abs(jnp.arctan2(sin[0], cos[0])) >= 0.2  # pairs that RoPE turns fast tell neighbours apart
    queries, keys = jnp.concatenate([cos * fast, sin * fast], 1), jnp.concatenate([fast, 0 * fast])  # RoPE's halves
    # A normed token then adds 1.5 times the length that a normed query or key has.
    gain = 1.5 * (dim / fast.sum()) ** 0.5 * (1 + _SHARED**2) ** 0.5 / (size * _SHARED)

    def changed(path: tuple[object, ...], leaf: jax.Array) -> jax.Array:
        layer, _, matrix = jax.tree_util.keystr(path, simple=True, separator="/").partition("/")
        if layer == "embed":
            return leaf + (_SHARED * config.initializer_range * shared).astype(leaf.dtype)
        if matrix == "o/kernel":
            values = params[layer]["v"]["kernel"].reshape(-1, size, config.num_kv_heads, dim)
            return jnp.repeat(values, group, axis=2).transpose(0, 2, 3, 1).reshape(leaf.shape)
        if matrix in ("q/kernel", "k/kernel") and layer in ("layers", "layers_0"):
            heads = (queries if matrix[0] == "q" else keys).reshape(-1)
            place = (0,) * config.scan_layers + (slice(None), slice(len(heads)))
            return leaf.at[place].add((gain * shared[:, None] * heads).astype(leaf.dtype))
        return leaf

    return jax.tree_util.tree_map_with_path(changed, params)
