"""Attention on a mesh: each device looks at its own rows and heads."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array

from orchestra_jax.models.attention.base import attention
from orchestra_jax.models.base import LayerKV, Segments
from orchestra_jax.models.sharding import MeshSharding


def on_mesh(
    sharding: MeshSharding,
    q: Array,
    k: Array,
    v: Array,
    *,
    past: LayerKV | None,
    past_lengths: Array | None,
    segment_ids: Segments | None,
    backend: str | Callable[..., Array],
) -> Array:
    """Compute `attention.base.attention` of the rows and heads of each device, which need no other device."""
    device = sharding.mesh.devices.flat[0]

    def own(q: Array, k: Array, v: Array, past: Any, lengths: Any, ids: Any) -> Array:
        return attention(q, k, v, past=past, past_lengths=lengths, segment_ids=ids, backend=backend, device=device)

    queries = ("batch", None, "kv_heads", None)  # split as their key heads are
    keys = ("batch", "kv_heads", None, None)
    axes = (queries, keys, keys, keys, ("batch",), ("batch", None))
    return sharding.on_own_parts(own, (q, k, v, past, past_lengths, segment_ids), axes, queries)
