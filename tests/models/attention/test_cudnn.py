"""The cuDNN backend: on a CPU all but the kernel, for which something stands in that reads memory as it does."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.cudnn import fused_attention_stablehlo as fused

from orchestra_jax.models.attention import cudnn as module
from orchestra_jax.models.attention.base import attention, dense_attention
from orchestra_jax.models.attention.cudnn import cudnn_attention, max_segments, require_support, segment_table

# The second row has 17 runs, and 16 is the limit of rows as short as these.
IDS = [[1] * 9 + [2] * 1 + [3] * 20 + [0] * 2, [1, 2] * 8 + [5] * 16, [4] * 32, [1] * 16 + [0] * 16]
FITS = np.array([0, 2, 3])

# Compiled as a whole: without jit JAX would compile each operation by itself, at each shape.
dense = jax.jit(dense_attention)
table_of = jax.jit(segment_table, static_argnums=1)


def inputs(heads: int, kv_heads: int, dim: int, length: int = 32, dtype: Any = jnp.float32) -> tuple[jax.Array, ...]:
    shapes = [(len(IDS), length, heads, dim)] + 2 * [(len(IDS), kv_heads, length, dim)]
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.standard_normal(shape, np.float32), dtype) for shape in shapes)


def device(platform: str = "gpu", version: str = "PJRT cuda 12090", capability: str = "9.0") -> Any:
    return SimpleNamespace(
        platform=platform, client=SimpleNamespace(platform_version=version), compute_capability=capability
    )


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=3, max_size=3), st.sampled_from([1, 4, 9])
)
def test_segment_table_lists_every_run(rows: list[list[int]], limit: int) -> None:
    offsets, lengths, fits = table_of(jnp.array(rows, jnp.int32), limit)
    assert offsets.dtype == lengths.dtype == jnp.int32
    for row, found, sizes, fit in zip(rows, offsets.tolist(), lengths.tolist(), fits.tolist(), strict=True):
        starts = [i for i in range(7) if i == 0 or row[i] != row[i - 1]]
        assert fit == (len(starts) <= limit)
        starts = starts if fit else [0]
        padding = [-1] * (limit - len(starts))
        assert found == [*starts, -1, *padding]
        assert sizes == [b - a for a, b in zip(starts, [*starts[1:], 7], strict=True)] + padding


def test_errors_name_the_fix() -> None:
    q, k, v = inputs(4, 2, 8)
    with pytest.raises(ValueError, match=r"needs an NVIDIA GPU and JAX runs on cpu; set model\.attention=xla"):
        attention(q, k, v, backend="cudnn")
    with pytest.raises(ValueError, match="NVIDIA GPU"):
        attention(q, k, v, past=(k, v), backend="cudnn")
    with pytest.raises(ValueError, match="NVIDIA GPU"):
        require_support(device(version="PJRT rocm 60300"), jnp.bfloat16, 128, packed=False)
    with pytest.raises(ValueError, match=r"takes bfloat16, not float32; set model\.dtype=bfloat16"):
        require_support(device(), q.dtype, 128, packed=False)
    with pytest.raises(ValueError, match="at most 256 on this GPU, not 100"):
        require_support(device(), jnp.bfloat16, 100, packed=False)
    with pytest.raises(ValueError, match="at most 128 on this GPU, not 256"):
        require_support(device(capability="8.0"), jnp.bfloat16, 256, packed=False)
    with pytest.raises(ValueError, match=r"\(Hopper\) or later, and this one has 8\.6; .*do not pack"):
        require_support(device(capability="8.6"), jnp.bfloat16, 128, packed=True)
    for capability, packed in (("8.6", False), ("9.0", True), ("10.0", True)):
        require_support(device(capability=capability), jnp.bfloat16, 128, packed=packed)


def test_a_jax_without_the_packed_function_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fused, "MaskType")
    with pytest.raises(
        ValueError, match=r"no packed attention in jax\._src.*; set model\.attention=xla or install jax"
    ):
        cudnn_attention(*inputs(2, 2, 8), segment_ids=jnp.array(IDS))


def as_cudnn_reads(query: Any, key: Any, value: Any, *, scale: float, mask_type: Any, **tables: Any) -> jax.Array:
    """Causal attention of each segment, found in flat memory at the element offsets that jax computes from `tables`."""
    assert mask_type is fused.MaskType.PADDING_CAUSAL
    names = ("q_seqlen", "kv_seqlen", "q_offsets", "kv_offsets")
    fixed = fused._fix_seqlen_offsets(*(tables[name] for name in names), query, key)
    sizes, _, q_offsets, k_offsets = (np.asarray(x).ravel() for x in fixed)
    groups = query.shape[2] // key.shape[2]
    # Reading past the end gives zeros here, anything on a GPU.
    memory = [np.append(x, np.zeros(np.size(query))) for x in (query, key, value)]
    out = np.full(query.size, np.nan)
    for size, q_at, k_at in zip(sizes, q_offsets, k_offsets, strict=False):
        places = ((q_at, query), (k_at, key), (k_at, value))
        q, k, v = (
            flat[at : at + size * x[0, 0].size].reshape(size, *x.shape[2:])
            for flat, (at, x) in zip(memory, places, strict=True)
        )
        scores = scale * np.einsum("ihd,jhd->hij", q, k.repeat(groups, 1))
        weights = np.exp(np.where(np.tri(size, dtype=bool), scores, -np.inf))
        part = np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v.repeat(groups, 1))
        out[q_at : q_at + part.size] = part.ravel()
    return jnp.asarray(out.reshape(query.shape), jnp.float32)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (2, 2)])
def test_packed_rows_reach_the_kernel_whole_and_in_order(
    heads: int, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "dot_product_attention", as_cudnn_reads)
    q, k, v = inputs(heads, kv_heads, 8)
    ids = jnp.array(IDS)
    out = cudnn_attention(q, k, v, segment_ids=ids)
    out = np.asarray(out)
    np.testing.assert_allclose(out[FITS], np.asarray(dense(q, k, v, segment_ids=ids))[FITS], atol=2e-6)
    assert max_segments(32) == 16
    assert np.isnan(out[1]).all()


def test_keys_are_repeated_exactly_where_jax_misplaces_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """jax-ml/jax pull request 39521, on the jax that is installed."""
    monkeypatch.setattr(fused, "dot_product_attention", as_cudnn_reads)
    monkeypatch.setattr(module, "_GROUPED_SINCE", (0, 0, 0))
    q, k, v = inputs(4, 2, 8)
    ids = jnp.array(IDS)
    out, want = (np.asarray(method(q, k, v, segment_ids=ids))[FITS] for method in (cudnn_attention, dense))
    assert np.allclose(out, want, atol=2e-6) == (jax.__version_info__ >= (0, 11, 2))


@pytest.mark.parametrize("packed", [False, True])
def test_gradients_lower_to_cudnn_without_a_gpu(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(fused, "check_compute_capability", lambda capability: True)
    ids = jnp.array(IDS) if packed else None

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return cudnn_attention(q, k, v, segment_ids=ids).astype(jnp.float32).sum()

    arrays = inputs(4, 2, 8, dtype=jnp.bfloat16)
    program = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("__cudnn$fmhaSoftmax(") == program.count("__cudnn$fmhaSoftmaxBackward(") == 1
    assert ("PADDING_CAUSAL" in program) == packed
    assert "x32x32x" not in program  # no mask or bias of all pairs


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (4, 4)])
def test_parity_on_a_gpu(heads: int, kv_heads: int, packed: bool) -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    if packed and float(jax.devices()[0].compute_capability) < 9.0:
        pytest.skip("packing needs compute capability 9.0")
    length = 512
    arrays = inputs(heads, kv_heads, 128, length, jnp.bfloat16)
    runs = [[100, 13, 300, 99], [512], [256, 256], [1, 510, 1]]
    ids = jnp.array([np.repeat(np.arange(len(row)), row) for row in runs]) if packed else None
    weights = jax.random.normal(jax.random.key(1), arrays[0].shape)

    def run(arrays: tuple[jax.Array, ...], method: Any) -> Any:
        def loss(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            out = method(*arrays, segment_ids=ids).astype(jnp.float32)
            return (out * weights).sum(), out

        grads, out = jax.jit(jax.grad(loss, has_aux=True))(arrays)
        return jax.tree.map(lambda x: np.asarray(x, np.float32), (out, grads))

    def cudnn(*arrays: jax.Array, segment_ids: jax.Array | None) -> jax.Array:
        return attention(*arrays, segment_ids=segment_ids, backend="cudnn")

    with jax.default_matmul_precision("highest"):
        exact = run(tuple(x.astype(jnp.float32) for x in arrays), dense_attention)
    got = run(arrays, cudnn)
    jax.tree.map(lambda a, b: np.testing.assert_array_less(np.linalg.norm(a - b), 0.02 * np.linalg.norm(b)), got, exact)


def test_auto_takes_cudnn_for_long_rows_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fused_attention(q: Any, k: Any, v: Any, *, segment_ids: Any) -> Any:
        asked.append(q.shape[1])
        return dense_attention(q, k, v, segment_ids=segment_ids)

    monkeypatch.setattr(module, "cudnn_attention", fused_attention)
    auto = jax.jit(functools.partial(attention, backend="auto", device=device()))
    for length, expected in ((256, jax.jit(attention)), (1024, dense)):
        q, k, v = inputs(4, 2, 8, length, jnp.bfloat16)
        np.testing.assert_array_equal(auto(q, k, v), expected(q, k, v))
    assert asked == [1024]
    # Which one is taken shows in the trace.
    trace = functools.partial(jax.eval_shape, functools.partial(attention, backend="auto", device=device()))
    ones = jnp.ones((4, 1024), jnp.int32)
    trace(q, k, v, past=(k, v))  # the mask of a chunk with a past is not cuDNN's
    jax.eval_shape(functools.partial(attention, backend="auto"), q, k, v)  # on this CPU
    old = functools.partial(attention, backend="auto", device=device(capability="8.0"))
    jax.eval_shape(old, q, k, v, segment_ids=ones)
    trace(*inputs(4, 2, 8, 1024))  # in fp32
    monkeypatch.delattr(fused, "MaskType")  # a jax that has no packed attention where it is looked for
    trace(q, k, v, segment_ids=ones)
    assert asked == [1024]
