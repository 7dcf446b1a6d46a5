"""Blockwise attention against the dense path, which test_base.py holds against a reference in NumPy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from orchestra_jax.models.attention import blockwise
from orchestra_jax.models.attention.base import attention, dense_attention
from orchestra_jax.models.attention.blockwise import blockwise_attention
from orchestra_jax.models.sharding import MeshSharding, make_mesh
from orchestra_jax.planning.hlo import program_cost

B, DIM = 2, 8


@dataclass(frozen=True)
class Case:
    length: int
    heads: int = 4
    kv_heads: int = 2
    past: int = 0
    past_lengths: tuple[int, int] | None = None
    segments: tuple[tuple[int, int], ...] | None = None  # (id, tokens) runs of row 0; row 1 has them reversed

    def inputs(self, dtype: Any = jnp.float32) -> tuple[tuple[jax.Array, ...], dict[str, jax.Array]]:
        """(q, k, v and, where there is one, the past's k and v), and what has no gradient."""
        shapes = [(B, self.length, self.heads, DIM)] + 2 * [(B, self.kv_heads, self.length, DIM)]
        shapes += 2 * [(B, self.kv_heads, self.past, DIM)] if self.past else []
        rng = np.random.default_rng(self.length)
        arrays = tuple(jnp.asarray(rng.standard_normal(shape, np.float32), dtype) for shape in shapes)
        masks = {}
        if self.past_lengths is not None:
            masks["past_lengths"] = jnp.array(self.past_lengths)
        if self.segments is not None:
            row = np.concatenate([np.full(tokens, name) for name, tokens in self.segments])
            masks["segment_ids"] = jnp.asarray(np.stack([row, row[::-1]]), jnp.int32)
        return arrays, masks


CASES = {
    "blocks that divide": Case(32, heads=2),
    "an odd length": Case(37),
    "one block and a bit": Case(9, heads=3, kv_heads=1),
    "segments": Case(45, heads=3, kv_heads=1, segments=((1, 16), (2, 3), (3, 20), (0, 6))),
    "segments in any order": Case(30, segments=((3, 4), (0, 5), (1, 9), (3, 7), (0, 1), (2, 4))),
    "all padding but one": Case(20, segments=((1, 1), (0, 19))),
    "past": Case(21, past=13),
    "past lengths": Case(21, heads=2, past=30, past_lengths=(0, 17)),
    "a past longer than the chunk": Case(3, heads=8, past=41, past_lengths=(41, 8)),
    "segments after a past": Case(27, past=13, past_lengths=(5, 13), segments=((1, 8), (2, 11), (0, 8))),
}


def gradients(method: Callable[..., jax.Array], arrays: tuple[jax.Array, ...], masks: dict[str, jax.Array]) -> Any:
    """(output, gradients of all arrays) of a sum with random weights, in float32."""
    weights = np.random.default_rng(7).standard_normal(arrays[0].shape, np.float32)

    def loss(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, *past = arrays
        out = method(q, k, v, past=tuple(past) or None, **masks).astype(jnp.float32)
        return (out * weights).sum(), out

    grads, out = jax.jit(jax.grad(loss, has_aux=True))(arrays)
    return jax.tree.map(lambda x: np.asarray(x, np.float32), (out, grads))


def blocks_of_8(*args: Any, **kwargs: Any) -> jax.Array:
    return blockwise_attention(*args, **kwargs, block=8)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_and_gradients_match_the_dense_path(case: Case) -> None:
    arrays, masks = case.inputs()
    got, want = gradients(blocks_of_8, arrays, masks), gradients(dense_attention, arrays, masks)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-6, rtol=1e-5), got, want)


@pytest.mark.parametrize("name", ["segments after a past", "an odd length"])
def test_bfloat16_is_as_accurate_as_the_dense_path(name: str) -> None:
    arrays, masks = CASES[name].inputs(jnp.bfloat16)
    exact = gradients(dense_attention, tuple(x.astype(jnp.float32) for x in arrays), masks)
    got, dense = gradients(blocks_of_8, arrays, masks), gradients(dense_attention, arrays, masks)

    def compare(got: np.ndarray, dense: np.ndarray, exact: np.ndarray) -> None:
        scale = np.linalg.norm(exact)
        assert np.linalg.norm(got - exact) < 1.25 * np.linalg.norm(dense - exact) < 0.02 * scale

    jax.tree.map(compare, got, dense, exact)


def test_entries_beyond_the_past_length_change_nothing() -> None:
    (q, k, v, *past), masks = CASES["past lengths"].inputs()
    unseen = (jnp.arange(30) >= masks["past_lengths"][:, None])[:, None, :, None]
    spoilt = [jnp.where(unseen, 1e30, x) for x in past]
    run = jax.jit(blocks_of_8)
    np.testing.assert_array_equal(run(q, k, v, past=spoilt, **masks), run(q, k, v, past=past, **masks))


def test_large_scores_stay_finite() -> None:
    (q, *rest), _ = CASES["an odd length"].inputs()
    out, grads = gradients(blocks_of_8, (1e4 * q, *rest), {})
    assert all(np.isfinite(x).all() for x in (out, *grads))


def test_blocks_that_no_query_sees_are_not_computed() -> None:
    """NaN spreads from any block that is computed, even where it is masked: 0 * NaN is NaN."""
    (q, k, v), _ = Case(32).inputs()
    out, (dq, *_) = gradients(blocks_of_8, (q, k, v.at[:, :, 16:].set(jnp.nan)), {})
    for x in (out, dq):
        assert np.isfinite(x[:, :16]).all()
        assert np.isnan(x[:, 16:]).all()

    (q, k, v, past_k, past_v), masks = Case(
        32, past=32, past_lengths=(3, 16), segments=((1, 8), (2, 16), (1, 8))
    ).inputs()
    spoilt = (q, k, v.at[:, :, 8:24].set(jnp.nan), past_k, past_v.at[:, :, 16:].set(jnp.nan))
    out, (dq, dk, *_) = gradients(blocks_of_8, spoilt, masks)
    assert np.isfinite(out[:, :8]).all()
    assert np.isfinite(dq[:, :8]).all()
    assert np.isfinite(dk[:, :, :8]).all()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("with_gradient", [False, True])
def test_memory_grows_with_the_length_and_not_with_its_square(packed: bool, with_gradient: bool) -> None:
    heads, kv_heads, dim = 2, 1, 16

    def memory(method: Callable[..., jax.Array], length: int) -> int:
        def run(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> jax.Array:
            return method(q, k, v, segment_ids=ids if packed else None)

        def loss(*args: jax.Array) -> jax.Array:
            return (run(*args) ** 2).sum()

        q = jax.ShapeDtypeStruct((1, length, heads, dim), jnp.float32)
        k = jax.ShapeDtypeStruct((1, kv_heads, length, dim), jnp.float32)
        ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
        function = jax.grad(loss, argnums=(0, 1, 2)) if with_gradient else run
        return jax.jit(function).lower(q, k, k, ids).compile().memory_analysis().temp_size_in_bytes

    scores = 4 * heads * 8192**2
    assert memory(dense_attention, 8192) > scores
    small, large = memory(attention, 4096), memory(attention, 8192)
    assert large < scores / 50
    assert large < 2.1 * small


def test_batch_and_heads_stay_split_over_devices() -> None:
    case = Case(40, heads=4, kv_heads=2, past=16, past_lengths=(3, 16), segments=((1, 10), (2, 17), (0, 13)))
    (q, k, v, *past), masks = case.inputs()
    mesh = make_mesh(data=2, tensor=2, fsdp=1, devices=jax.devices()[:4])

    def put(x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))

    arrays = (put(q, "data", None, "tensor"), *(put(x, "data", "tensor") for x in (k, v, *past)))
    split = {name: put(x, "data") for name, x in masks.items()}

    def loss(arrays: tuple[jax.Array, ...], masks: dict[str, jax.Array]) -> jax.Array:
        q, k, v, *past = arrays
        return (blocks_of_8(q, k, v, past=tuple(past), **masks) ** 2).sum()

    step = jax.jit(jax.value_and_grad(loss))
    program = step.lower(arrays, split).compile().as_text()
    assert "all-reduce" in program
    for collective in ("all-gather", "all-to-all", "collective-permute"):
        assert collective not in program
    got, want = step(arrays, split), step((q, k, v, *past), masks)
    assert [x.sharding.spec for x in got[1]] == [x.sharding.spec for x in arrays]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), got, want)


def test_gradients_inside_a_rematerialised_scan() -> None:
    """As in a decoder with scan_layers and remat."""
    (q, k, v), masks = CASES["segments"].inputs()

    def loss(k: jax.Array, method: Callable[..., jax.Array]) -> jax.Array:
        def layer(x: jax.Array, scale: jax.Array) -> tuple[jax.Array, None]:
            return x + jax.checkpoint(lambda x: method(x * scale, k, v, **masks))(x), None

        return (jax.lax.scan(layer, q, jnp.array([1.0, 0.5]))[0] ** 2).sum()

    got, want = (jax.jit(jax.grad(loss), static_argnums=1)(k, m) for m in (blocks_of_8, dense_attention))
    np.testing.assert_allclose(got, want, atol=2e-4, rtol=1e-5)


# --- what is skipped on a mesh ----------------------------------------------------------------------------------------

ROW = 1024  # tokens: 16 blocks of 64, 136 pairs


def packed_row(seed: int) -> np.ndarray:
    """Segments of about 100 tokens, at other places in every row."""
    cuts = np.sort(np.random.default_rng(seed).choice(np.arange(1, ROW), 9, replace=False))
    return np.searchsorted(cuts, np.arange(ROW), side="right").astype(np.int32) + 1


def connected(rows: np.ndarray, block: int = 64) -> int:
    """Pairs of blocks in which a query of any of the rows sees a key, counted by hand."""
    blocks = rows.reshape(len(rows), -1, block)
    count = blocks.shape[1]
    return sum(any(np.isin(row[i], row[j]).any() for row in blocks) for i in range(count) for j in range(i + 1))


@pytest.mark.skipif(jax.device_count() != 8, reason="needs the 8 virtual devices of conftest.py")
def test_a_device_skips_what_its_own_rows_do_not_connect(monkeypatch: pytest.MonkeyPatch):
    visits: list[int] = []
    scores = blockwise._scores

    def counted(*args: Any) -> jax.Array:
        jax.debug.callback(lambda: visits.append(1))
        return scores(*args)

    monkeypatch.setattr(blockwise, "_scores", counted)
    rows = np.stack([packed_row(seed) for seed in range(8)])
    rng = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(rng.standard_normal(shape, np.float32))
        for shape in ((8, ROW, 2, DIM), (8, 1, ROW, DIM), (8, 1, ROW, DIM))
    )

    def run(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> jax.Array:
        return blockwise_attention(q, k, v, segment_ids=ids, block=64)

    sharding = MeshSharding(make_mesh(fsdp=8))
    axes = (("batch", None, "kv_heads", None), *2 * [("batch", "kv_heads", None, None)], ("batch", None))
    split = jax.jit(lambda *arrays: sharding.on_own_parts(run, arrays, axes, axes[0]))
    spread = [jax.device_put(x, sharding.batch) for x in (q, k, v, rows)]
    out = split(*spread)
    jax.effects_barrier()
    own = [connected(row[None]) for row in rows]
    assert len(visits) == sum(own)
    # As if all rows were one device's: what any of them connects, all would compute.
    assert connected(rows) * 8 > 1.5 * sum(own)
    np.testing.assert_allclose(out, jax.jit(dense_attention)(q, k, v, segment_ids=jnp.asarray(rows)), atol=2e-6)
    # Nothing is asked of another device.
    assert program_cost(split.lower(*spread).compile().as_text()).collectives == ()
