import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.models.attention.base import attention, dense_attention


def normal(seed: int, *shape: int) -> np.ndarray:
    """Return normal numbers; made by jax.random, each shape would be a program to compile."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


run = jax.jit(attention)


def reference(q, k, v, past=None, past_lengths=None, segment_ids=None) -> np.ndarray:
    """One query at a time, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, length, heads, dim = q.shape
    out = np.zeros_like(q)
    for b in range(batch):
        for h in range(heads):
            kv_head = h // (heads // k.shape[1])
            for i in range(length):
                keys, values = [], []
                if past is not None:
                    seen = past[0].shape[2] if past_lengths is None else int(past_lengths[b])
                    keys += list(np.asarray(past[0], np.float64)[b, kv_head, :seen])
                    values += list(np.asarray(past[1], np.float64)[b, kv_head, :seen])
                for j in range(i + 1):
                    if segment_ids is None or segment_ids[b, i] == segment_ids[b, j]:
                        keys.append(k[b, kv_head, j])
                        values.append(v[b, kv_head, j])
                scores = np.array(keys) @ q[b, i, h] / dim**0.5
                weights = np.exp(scores - scores.max())
                out[b, i, h] = weights @ np.array(values) / weights.sum()
    return out


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 1), (2, 2)])
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("kind", ["plain", "past", "past_lengths", "segments"])
def test_matches_the_reference(heads: int, kv_heads: int, length: int, kind: str) -> None:
    q = normal(0, 3, length, heads, 6)
    k, v = normal(1, 3, kv_heads, length, 6), normal(2, 3, kv_heads, length, 6)
    past = (normal(3, 3, kv_heads, 7, 6), normal(4, 3, kv_heads, 7, 6)) if kind.startswith("past") else None
    lengths = jnp.array([0, 3, 7]) if kind == "past_lengths" else None
    segments = (
        jnp.array([[1, 1, 2, 2, 0], [1, 2, 2, 2, 2], [0, 0, 0, 0, 0]])[:, :length] if kind == "segments" else None
    )
    out = run(q, k, v, past=past, past_lengths=lengths, segment_ids=segments)
    np.testing.assert_allclose(out, reference(q, k, v, past, lengths, segments), atol=2e-6)


def test_entries_beyond_the_past_length_change_nothing() -> None:
    q, k, v = normal(0, 2, 3, 4, 8), normal(1, 2, 2, 3, 8), normal(2, 2, 2, 3, 8)
    past = (normal(3, 2, 2, 6, 8), normal(4, 2, 2, 6, 8))
    lengths = np.array([2, 4], np.int32)
    unseen = (np.arange(6) >= lengths[:, None])[:, None, :, None]
    spoilt = jax.tree.map(lambda x: np.where(unseen, np.float32(1e4), x), past)
    expected = run(q, k, v, past=past, past_lengths=lengths)
    np.testing.assert_array_equal(run(q, k, v, past=spoilt, past_lengths=lengths), expected)


def test_large_scores_stay_finite_and_bfloat16_stays_close() -> None:
    q, k, v = normal(0, 2, 4, 4, 8), normal(1, 2, 2, 4, 8), normal(2, 2, 2, 4, 8)
    assert np.isfinite(run(np.float32(1e4) * q, k, v)).all()
    half = run(*(x.astype(jnp.bfloat16) for x in (q, k, v)))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(half, np.float32), run(q, k, v), atol=0.05)


@pytest.mark.parametrize(
    ("length", "past", "blockwise"),
    [(256, 768, False), (512, 0, False), (513, 0, True), (256, 8192, True), (1, 2**20, False)],
)
def test_long_chunks_go_by_blocks_and_short_ones_do_not(length: int, past: int, blockwise: bool) -> None:
    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    q, k, cache = shape(1, length, 2, 8), shape(1, 1, length, 8), shape(1, 1, past, 8)

    def program(method) -> str:
        def run(q, k, v, cache):
            return method(q, k, v, past=(cache, cache) if past else None)

        return str(jax.make_jaxpr(run)(q, k, k, cache))

    assert ("custom_vjp" in program(attention)) == blockwise
    if not blockwise:
        assert program(attention) == program(dense_attention)


def test_errors() -> None:
    q, k = normal(0, 1, 2, 3, 4), normal(1, 1, 2, 2, 4)
    with pytest.raises(ValueError, match=r"Unknown attention backend 'flash'; choose one of auto, xla, cudnn"):
        attention(q, k, k, backend="flash")
    with pytest.raises(ValueError, match="3 query heads"):
        attention(q, k, k)
