"""cuDNN's fused causal attention, packed rows included. NVIDIA GPUs only.

Rows without segments go through `jax.nn.dot_product_attention`. That knows no segments (jax-ml/jax pull request 29731
would add them), so packed rows call what it calls, which takes the offset and the length of every segment.
"""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Before 0.11.2 jax finds a segment's keys with the stride of the queries: silently wrong keys, unless there are as many
# key heads as query heads (jax-ml/jax pull request 39521).
_GROUPED_SINCE = (0, 11, 2)
_PACKED_MODULE = "jax._src.cudnn.fused_attention_stablehlo"
_USE_XLA = "set model.attention=xla"


def cudnn_attention(
    q: Float[Array, "B S H d"],
    k: Float[Array, "B Hkv S d"],
    v: Float[Array, "B Hkv S d"],
    *,
    segment_ids: Int[Array, "B S"] | None = None,
) -> Float[Array, "B S H d"]:
    """Compute `attention.base.attention` without a past, where `require_support` lets it.

    Each segment must be one run of equal ids, as `rl.batching` packs them. A row of more than `max_segments(S)` runs,
    which cuDNN would have no room for, comes out as NaN: the learner then skips the update and says so.

    Raises:
        ValueError: this jax has no packed cuDNN attention where it is looked for.
    """
    keys, values = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    if segment_ids is None:
        # The padding on the right of a row comes after all of its tokens, so causality hides it.
        return jax.nn.dot_product_attention(q, keys, values, is_causal=True, implementation="cudnn")

    groups = repeats(q.shape[2], k.shape[1])
    if groups > 1:
        keys, values = jnp.repeat(keys, groups, axis=2), jnp.repeat(values, groups, axis=2)
    fused, mask_type = _packed_function()
    offsets, lengths, fits = segment_table(segment_ids, max_segments(q.shape[1]))
    out = fused(
        q,
        keys,
        values,
        q_seqlen=lengths,
        kv_seqlen=lengths,
        q_offsets=offsets,
        kv_offsets=offsets,
        scale=q.shape[-1] ** -0.5,
        mask_type=mask_type,
    )
    return jnp.where(fits[:, None, None, None], out, jnp.nan)


def repeats(heads: int, kv_heads: int) -> int:
    """Return how often each key head of packed rows is repeated, so that this jax finds its keys; 1 where it does."""
    return heads // kv_heads if jax.__version_info__ < _GROUPED_SINCE else 1


def max_segments(length: int) -> int:
    """Return the most runs of equal segment ids (padding counts as one) in a packed row of `length` tokens.

    cuDNN's softmax statistics take 4 * rows * max_segments * heads * length bytes, so the bound is kept to segments of
    256 tokens on average.
    """
    return max(16, length // 256)


def segment_table(
    segment_ids: Int[Array, "B S"], limit: int
) -> tuple[Int[Array, "B limit+1"], Int[Array, "B limit"], Bool[Array, " B"]]:
    """Return (offsets, lengths, whether the row has no more than `limit` segments), as cuDNN takes them.

    A segment is a run of equal ids. Padding is one too: every position is written then, and it sees padding only.
    Offsets are the first position of each segment; both int32 tables are filled up with -1. A row of more segments than
    `limit` is listed as one segment, for jax matches offsets with lengths by counting through all rows.
    """
    length = segment_ids.shape[1]
    positions = jnp.arange(length, dtype=jnp.int32)
    is_start = (positions == 0) | (segment_ids != jnp.roll(segment_ids, 1, axis=1))
    fits = is_start.sum(1) <= limit
    is_start = jnp.where(fits[:, None], is_start, positions == 0)
    starts = jnp.sort(jnp.where(is_start, positions, length), axis=1)
    starts = jnp.pad(starts, ((0, 0), (0, limit + 1)), constant_values=length)[:, : limit + 1]
    lengths = jnp.diff(starts, axis=1)
    return jnp.where(starts < length, starts, -1), jnp.where(lengths > 0, lengths, -1), fits


def require_support(device: Any, dtype: Any, head_dim: int, *, packed: bool) -> None:
    """Raise ValueError, with what to change, if cuDNN cannot attend on this device with these inputs."""
    if device.platform != "gpu" or "cuda" not in device.client.platform_version:
        raise ValueError(
            f"Attention backend 'cudnn' needs an NVIDIA GPU and JAX runs on {device.platform}; {_USE_XLA}."
        )
    if dtype not in (jnp.bfloat16, jnp.float16):
        raise ValueError(
            f"Attention backend 'cudnn' takes bfloat16, not {dtype}; set model.dtype=bfloat16 or model.attention=xla."
        )
    hopper = tuple(int(part) for part in device.compute_capability.split(".")) >= (9, 0)
    largest = 256 if hopper else 128
    if head_dim % 8 or head_dim > largest:
        raise ValueError(
            f"Attention backend 'cudnn' needs a head_dim that is a multiple of 8 and at most {largest} on this GPU, "
            f"not {head_dim}; {_USE_XLA}."
        )
    if packed and not hopper:
        raise ValueError(
            "Attention backend 'cudnn' packs sequences on GPUs of compute capability 9.0 (Hopper) or later, and this "
            f"one has {device.compute_capability}; {_USE_XLA} or do not pack."
        )


def is_supported(device: Any, dtype: Any, head_dim: int, *, packed: bool) -> bool:
    """Return whether cuDNN attends on this device with these inputs, under the jax that is installed."""
    try:
        require_support(device, dtype, head_dim, packed=packed)
        if packed:
            _packed_function()
    except ValueError:
        return False
    return True


def _packed_function() -> tuple[Callable[..., Array], Any]:
    """Return jax's own cuDNN attention with segment offsets, and its mask type for causal segments."""
    try:
        module = importlib.import_module(_PACKED_MODULE)
        return module.dot_product_attention, module.MaskType.PADDING_CAUSAL
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"jax {jax.__version__} has no packed attention in {_PACKED_MODULE}; {_USE_XLA} or install jax 0.11.2."
        ) from error
