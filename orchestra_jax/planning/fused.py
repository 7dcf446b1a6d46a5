"""A stand-in for cuDNN's attention, which is built on its GPU: the same arrays in memory, and no arithmetic.

The kernel reads queries, keys and values and writes its output and the softmax statistics; backward it reads those and
the output's gradient and writes three gradients. Scores stay on the chip. Its FLOPs are added to what is compiled.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from orchestra_jax.models.attention.cudnn import max_segments, repeats
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.gpus import Gpu

_HOPPER = (9, 0)
# Products of two matrices: two forward (scores, mix), and backward these scores again and four gradients.
_FORWARD, _BACKWARD = 2, 5
# Attention in pieces runs forward once more than that of a layer that is recomputed: three times and back, not two.
SHARED = (3 * _FORWARD + _BACKWARD) / (2 * _FORWARD + _BACKWARD)


def uses_cudnn(model: DecoderConfig, gpu: Gpu) -> bool:
    """Return whether a run of this model has cuDNN's attention on this GPU."""
    return model.attention == "cudnn" or (
        model.attention == "auto" and model.dtype == "bfloat16" and gpu.capability >= _HOPPER
    )


def attention_flops(model: DecoderConfig, length: int, rows: float) -> float:
    """Return the FLOPs of the kernels on `rows` causal rows, forward and backward; with remat, forward twice."""
    product = 2.0 * rows * model.num_heads * model.head_dim * length**2 / 2
    return model.num_layers * product * (_FORWARD * (1 if model.remat == "none" else 2) + _BACKWARD)


def stand_in_attention(
    q: Float[Array, "B S H d"],
    k: Float[Array, "B Hkv S d"],
    v: Float[Array, "B Hkv S d"],
    *,
    segment_ids: Int[Array, "B S"] | None = None,
) -> Float[Array, "B S H d"]:
    """Take and return arrays like `models.attention.cudnn.cudnn_attention`; the values mean nothing."""
    keys, values = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    batch, length, heads, _ = q.shape
    segments = 1
    if segment_ids is not None:
        # Packed rows: cuDNN gets a copy of keys and values per query head, and keeps statistics per segment.
        groups, segments = repeats(heads, k.shape[1]), max_segments(length)
        keys, values = (jnp.repeat(x, groups, axis=2) if groups > 1 else x for x in (keys, values))
    return _kernel((batch, segments, heads, length), q, keys, values)


def _forward(statistics: tuple[int, ...], q: Array, k: Array, v: Array) -> tuple[Array, tuple[Array, ...]]:
    """Read q, k and v; write the output and the softmax statistics, whose shape is given."""
    q, k, v = jax.lax.optimization_barrier((q, k, v))
    group = q.shape[2] // k.shape[2]  # query heads of a key head
    out = q + jnp.repeat(k + v, group, axis=2)
    softmax = jnp.broadcast_to(q[0, 0, 0, 0].astype(jnp.float32), statistics)
    out, softmax = jax.lax.optimization_barrier((out, softmax))
    return out, (q, k, v, out, softmax)


def _backward(statistics: tuple[int, ...], kept: tuple[Array, ...], d_out: Array) -> tuple[Array, Array, Array]:
    """Read what the forward pass kept and the output's gradient; write the gradients of q, k and v."""
    # The barriers make XLA hold all of these arrays in memory at once, as the kernel does.
    q, k, v, out, softmax, d_out = jax.lax.optimization_barrier((*kept, d_out))
    per_token = softmax.max(1).transpose(0, 2, 1)[..., None].astype(q.dtype)  # over segments: [B, S, H, 1]
    dq = q + out + d_out + per_token
    batch, length, key_heads, width = k.shape
    per_key_head = dq.reshape(batch, length, key_heads, q.shape[2] // key_heads, width).sum(3)
    return jax.lax.optimization_barrier((dq, k + per_key_head, v + per_key_head))


_kernel = jax.custom_vjp(lambda statistics, q, k, v: _forward(statistics, q, k, v)[0], nondiff_argnums=(0,))
_kernel.defvjp(_forward, _backward)
