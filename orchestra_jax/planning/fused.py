"""A stand-in for cuDNN's attention, which is built on its GPU: the same arrays in memory, and no arithmetic.

The kernel reads queries, keys and values and writes its output and the softmax statistics; backward it reads those and
the output's gradient and writes three gradients. Scores stay on the chip. Its FLOPs are added to what is compiled.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from orchestra_jax.models.attention.cudnn import max_segments, repeats
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.planning.gpus import Gpu

_HOPPER = (9, 0)
# Products of two matrices: two forward (scores, mix), and backward these scores again and four gradients.
_FORWARD, _BACKWARD = 2, 5


def uses_cudnn(model: DecoderConfig, gpu: Gpu) -> bool:
    """Whether a run of this model has cuDNN's attention on this GPU."""
    return model.attention == "cudnn" or (
        model.attention == "auto" and model.dtype == "bfloat16" and gpu.capability >= _HOPPER
    )


def attention_flops(model: DecoderConfig, length: int, rows: int) -> float:
    """FLOPs of the kernels on `rows` causal rows, forward and backward; with remat the forward pass runs twice."""
    product = 2.0 * rows * model.num_heads * model.head_dim * length**2 / 2
    return model.num_layers * product * (_FORWARD * (1 if model.remat == "none" else 2) + _BACKWARD)


def in_its_place(
    q: Float[Array, "B S H d"],
    k: Float[Array, "B Hkv S d"],
    v: Float[Array, "B Hkv S d"],
    *,
    segment_ids: Int[Array, "B S"] | None = None,
) -> Float[Array, "B S H d"]:
    """What `models.attention.cudnn.cudnn_attention` takes and gives; the values mean nothing."""
    keys, values = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    batch, length, heads, _ = q.shape
    segments = 1
    if segment_ids is not None:
        groups, segments = repeats(heads, k.shape[1]), max_segments(length)
        keys, values = (jnp.repeat(x, groups, axis=2) if groups > 1 else x for x in (keys, values))
    return _kernel((batch, segments, heads, length), q, keys, values)


def _forward(shape: tuple[int, ...], q: Array, k: Array, v: Array) -> tuple[Array, tuple[Array, ...]]:
    q, k, v = jax.lax.optimization_barrier((q, k, v))
    out = q + jnp.repeat(k + v, q.shape[2] // k.shape[2], axis=2)
    statistics = jnp.broadcast_to(q[0, 0, 0, 0].astype(jnp.float32), shape)
    out, statistics = jax.lax.optimization_barrier((out, statistics))
    return out, (q, k, v, out, statistics)


def _backward(shape: tuple[int, ...], residuals: tuple[Array, ...], d_out: Array) -> tuple[Array, Array, Array]:
    q, k, v, out, statistics, d_out = jax.lax.optimization_barrier((*residuals, d_out))
    total = statistics.max(1).transpose(0, 2, 1)[..., None].astype(q.dtype)
    dq = q + out + d_out + total
    groups = (*k.shape[:3], q.shape[2] // k.shape[2], k.shape[3])
    mixed = dq.reshape(*k.shape[:2], *groups[2:]).sum(3)
    return jax.lax.optimization_barrier((dq, k + mixed, v + mixed))


_kernel = jax.custom_vjp(lambda shape, q, k, v: _forward(shape, q, k, v)[0], nondiff_argnums=(0,))
_kernel.defvjp(_forward, _backward)
