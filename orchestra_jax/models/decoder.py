"""Decoders in flax.linen, whatever their family: one function for prefill, extension, decoding and shared prefixes.

`Block` is a layer as most families have it; a family's own block overrides what differs. `Decoder` runs blocks between
the embedding and the final norm. Parameters are the inside of linen's "params" collection:

    embed                           [V, D]
    layers_<i>, or layers           one dict per layer, or one dict whose leaves have a leading layer axis (scan_layers)
        input_norm, post_norm       [D]
        q, k, v, o, gate, up, down  {"kernel": [in, out]}, with bias [out] where `config.bias` names the matrix, and
                                    lora_a [in, r], lora_b [r, out] once `models.lora.attach` has put them there
    norm                            [D]
    lm_head                         [D, V], absent when the embedding is tied
"""

import functools
from typing import Any, cast

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from orchestra_jax.models.attention.base import attention
from orchestra_jax.models.base import Constrain, DecoderConfig, KVCache, LayerKV, Params, Segments
from orchestra_jax.models.rope import Rope, apply_rope, rope_angles


def rms_norm(x: Float[Array, "... D"], scale: Float[Array, " D"], eps: float) -> Float[Array, "... D"]:
    """Return x / sqrt(mean(x^2) + eps) * scale over the last axis, computed in fp32, in x's dtype."""
    x32 = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (x32 * inverse * scale.astype(jnp.float32)).astype(x.dtype)


class Block(nn.Module):
    """One decoder layer: grouped-query attention and a gated MLP, each behind an RMSNorm.

    Tokens are flattened to [B*S, D]: XLA:CPU differentiates matrices faster than 3-D Dense.
    """

    config: DecoderConfig
    constrain: Constrain | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B*S D"],
        past: LayerKV | None,
        rope: Rope,
        past_lengths: Int[Array, " B"] | None,
        segment_ids: Segments | None,
    ) -> tuple[Float[Array, "B*S D"], LayerKV]:
        """Return the layer's output and this chunk's (k, v)."""
        config = self.config
        batch = rope[0].shape[0]
        y = self.norm(x, "input_norm")
        q = apply_rope(self.heads(y, batch, config.num_heads, "q"), *rope)
        k = apply_rope(self.heads(y, batch, config.num_kv_heads, "k"), *rope).transpose(0, 2, 1, 3)
        v = self.heads(y, batch, config.num_kv_heads, "v").transpose(0, 2, 1, 3)
        look = attention
        if self.constrain is not None:
            from orchestra_jax.models.attention.on_mesh import on_mesh

            look = functools.partial(on_mesh, self.constrain)
        y = look(q, k, v, past=past, past_lengths=past_lengths, segment_ids=segment_ids, backend=config.attention)
        x = x + self.dense(y.reshape(x.shape[0], -1), config.hidden_size, "o")
        x = x + self.feed_forward(self.norm(x, "post_norm"))
        if self.constrain is not None:
            x = self.constrain(x, ("batch", "hidden"))
        return x, (k, v)

    def heads(self, y: Float[Array, "B*S D"], batch: int, count: int, name: str) -> Float[Array, "B S count d"]:
        """Return queries ("q"), keys ("k") or values ("v") of `count` heads, before RoPE."""
        return self.dense(y, count * self.config.head_dim, name).reshape(batch, -1, count, self.config.head_dim)

    def feed_forward(self, y: Float[Array, "B*S D"]) -> Float[Array, "B*S D"]:
        """Return the output of the gated MLP."""
        config = self.config
        y = nn.silu(self.dense(y, config.intermediate_size, "gate")) * self.dense(y, config.intermediate_size, "up")
        return self.dense(y, config.hidden_size, "down")

    def dense(self, y: Float[Array, "N in"], features: int, name: str) -> Float[Array, "N out"]:
        """Multiply by this layer's matrix `name`, which may have a bias or adapters."""
        config, kind = self.config, nn.Dense
        if name in config.bias or "lora_a" in self.variables.get("params", {}).get(name, {}):
            from orchestra_jax.models.adapted_dense import AdaptedDense

            kind = AdaptedDense
        return kind(
            features,
            use_bias=name in config.bias,
            dtype=config.dtype,
            param_dtype=jnp.dtype(config.param_dtype),
            kernel_init=nn.initializers.normal(config.initializer_range),
            name=name,
        )(y)

    def norm(self, y: Float[Array, "... n"], name: str) -> Float[Array, "... n"]:
        """Apply RMSNorm with this layer's scale `name`."""
        scale = self.param(name, nn.initializers.ones, (y.shape[-1],), jnp.dtype(self.config.param_dtype))
        return rms_norm(y, scale, self.config.rms_norm_eps)


class Decoder(nn.Module):
    """Blocks up to the final norm; `output_head` and `models.logprobs.token_logprobs` do the rest."""

    config: DecoderConfig
    block: type[Block] = Block
    constrain: Constrain | None = None

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B S"],
        positions: Int[Array, "B S"],
        *,
        segment_ids: Segments | None = None,
        past: KVCache | None = None,
        past_lengths: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B S D"], KVCache]:
        """Run one chunk of every row.

        The chunk may be a whole prompt (no past), an extension, one decoded token (S = 1), or a training sequence
        whose shared prefix is another call's cache: gradients flow through `past`. Nothing is written into `past`.

        Args:
            positions: position of each token in its sequence, for RoPE only (the causal order is the chunk's order).
            segment_ids: packed sequences; 0 is padding. None: each row is one sequence, padded on the right.
            past, past_lengths: keys and values of earlier tokens, valid at j < past_lengths[b]; None means all.

        Returns:
            Hidden states after the final norm (compute dtype), and the keys (after QK-norm and RoPE) and values of
            this chunk, in the layout of `KVCache` with M = S.
        """
        config = self.config
        param_dtype = jnp.dtype(config.param_dtype)
        matrix = nn.initializers.normal(config.initializer_range)
        table = self.param("embed", matrix, (config.vocab_size, config.hidden_size), param_dtype)
        if not config.tie_word_embeddings:
            self.param("lm_head", matrix, (config.hidden_size, config.vocab_size), param_dtype)

        x = jnp.take(table, tokens.reshape(-1), axis=0).astype(config.dtype)
        if self.constrain is not None:
            # Looked up where the table lies; otherwise XLA may gather the whole table first.
            x = self.constrain(self.constrain(x, (None, "embed")), ("batch", "hidden"))
        rope = rope_angles(positions, config.head_dim, config.rope_theta, config.rope_scaling)
        block = self.block
        if config.remat != "none":
            from orchestra_jax.models.deep_stacks import recomputing

            block = recomputing(block, config)
        kv: KVCache
        if config.scan_layers:
            from orchestra_jax.models.deep_stacks import scanned

            layers = scanned(block, config)(config, self.constrain, name="layers")
            x, kv = layers(x, cast(LayerKV | None, past), rope, past_lengths, segment_ids)
        else:
            chunks = []
            for i in range(config.num_layers):
                layer = block(config, self.constrain, name=f"layers_{i}")
                x, chunk = layer(x, None if past is None else cast(LayerKV, past[i]), rope, past_lengths, segment_ids)
                chunks.append(chunk)
            kv = tuple(chunks)
        scale = self.param("norm", nn.initializers.ones, (config.hidden_size,), param_dtype)
        return rms_norm(x, scale, config.rms_norm_eps).reshape(*tokens.shape, -1), kv


def forward(
    params: Params,
    config: DecoderConfig,
    tokens: Int[Array, "B S"],
    positions: Int[Array, "B S"],
    *,
    segment_ids: Segments | None = None,
    past: KVCache | None = None,
    past_lengths: Int[Array, " B"] | None = None,
    constrain: Constrain | None = None,
) -> tuple[Float[Array, "B S D"], KVCache]:
    """Run the family's module (see `Decoder.__call__`) as a function of the plain parameter tree."""
    chex.assert_rank(tokens, 2)
    chex.assert_equal_shape([tokens, positions])
    return cast(
        tuple[Array, KVCache],
        config.module(constrain).apply(
            {"params": params}, tokens, positions, segment_ids=segment_ids, past=past, past_lengths=past_lengths
        ),
    )


def output_head(params: Params, config: DecoderConfig) -> Float[Array, "D V"]:
    """Return the matrix from hidden states to logits, in the parameters' dtype."""
    return cast(Array, params["embed"].T if config.tie_word_embeddings else params["lm_head"])


def logits(params: Params, config: DecoderConfig, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
    """Return all logits in fp32; for sampling and small uses (training uses `token_logprobs`)."""
    head = output_head(params, config).astype(hidden.dtype)
    return jnp.einsum("...d,dv->...v", hidden, head, preferred_element_type=jnp.float32)


@functools.partial(jax.jit, static_argnums=0)
def init_params(config: DecoderConfig, key: PRNGKeyArray) -> dict[str, Any]:
    """Return fresh parameters as a plain tree: matrices normal with std `initializer_range`, norms one."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    return cast(dict[str, Any], config.module().init(key, tokens, tokens)["params"])


def abstract_params(config: DecoderConfig) -> PyTree[jax.ShapeDtypeStruct]:
    """Return the tree of `init_params` with shapes and dtypes only; allocates nothing."""
    return jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))


def empty_cache(config: DecoderConfig, batch: int, length: int) -> KVCache:
    """Return a zeroed cache of `length` entries per row, in the layout and dtype of `forward`'s result."""
    tokens = jax.ShapeDtypeStruct((batch, 1), jnp.int32)
    _, kv = jax.eval_shape(lambda params, ids: forward(params, config, ids, ids), abstract_params(config), tokens)
    # Separate buffers, so that all of them can be donated.
    return cast(KVCache, jax.tree.map(lambda x: jnp.zeros((*x.shape[:-2], length, x.shape[-1]), x.dtype), kv))


def write_cache(
    cache: KVCache,
    kv: KVCache,
    rows: Int[Array, " n"],
    offsets: Int[Array, " n"],
    lengths: Int[Array, " n"],
    *,
    after: Array | None = None,
) -> KVCache:
    """Write chunks into a cache: chunk r's entries s < lengths[r] go to row rows[r] at offsets[r] + s.

    Nothing else changes: padding (s >= lengths[r]), rows at or beyond the cache's batch and entries beyond its length
    are dropped. Row numbers are unique and not negative.

    Args:
        after: hidden states that the same jitted step computed from the old cache. Required for the write to
            happen in place in a donated cache; without it XLA copies the whole cache first, because it may not write
            before the step's attention has read. If its first element is NaN, nothing is written.
    """
    if after is not None:
        # A data dependency, since XLA:CPU drops optimization barriers before it decides on copies.
        lengths = jnp.where(jnp.isnan(after[(0,) * after.ndim]), 0, lengths)
    steps = jnp.arange(jax.tree.leaves(kv)[0].shape[-2])
    capacity = jax.tree.leaves(cache)[0].shape[-2]
    slots = jnp.where(steps < lengths[:, None], offsets[:, None] + steps, capacity)

    def write(target: Float[Array, "*L B Hkv M d"], chunk: Float[Array, "*L n Hkv S d"]) -> Array:
        # Indexing [rows, :, slots] puts the indexed axes first: [n, S, (L,) Hkv, d].
        if chunk.ndim == 5:
            return target.at[:, rows[:, None], :, slots].set(chunk.transpose(1, 3, 0, 2, 4), mode="drop")
        return target.at[rows[:, None], :, slots].set(chunk.transpose(0, 2, 1, 3), mode="drop")

    return cast(KVCache, jax.tree.map(write, cache, kv))
