import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.models.decoder import empty_cache, forward, logits, output_head, write_cache
from orchestra_jax.models.qwen3 import Qwen3Config
from tests.models.trees import drawn_params, to_params, to_tensors

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3_logits.npz"
CONFIG = Qwen3Config.preset("tiny", vocab_size=61, num_layers=2, hidden_size=32, intermediate_size=40, head_dim=12)
SCAN = CONFIG.replace(scan_layers=True)


@functools.cache
def params_of(config: Qwen3Config):
    """Larger than the initialisation, so that attention is far from uniform."""
    params = drawn_params(config.replace(remat="none"))
    # By numpy: outside jit, JAX compiles a program for every operation and shape.
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x) * (1 if x.ndim == config.scan_layers + 1 else 8)), params)


def tokens_of(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, CONFIG.vocab_size, shape, np.int32)


def arange(batch: int, length: int, start: int = 0) -> np.ndarray:
    return np.broadcast_to(np.arange(start, start + length, dtype=np.int32), (batch, length))


@functools.partial(jax.jit, static_argnums=1)
def run(params, config, tokens, positions, **kwargs):
    hidden, kv = forward(params, config, tokens, positions, **kwargs)
    return logits(params, config, hidden), kv


hidden_of = jax.jit(forward, static_argnums=1)
write = jax.jit(write_cache)


@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.parametrize("scan", [False, True])
def test_logits_equal_transformers(name: str, scan: bool) -> None:
    golden = np.load(GOLDEN)
    config = Qwen3Config.from_hf(json.loads(str(golden[f"{name}/config"])), scan_layers=scan)
    prefix = f"{name}/weights/"
    weights = {key[len(prefix) :]: golden[key].astype(np.float32) for key in golden if key.startswith(prefix)}
    tokens = golden[f"{name}/tokens"]
    got, _ = run(to_params(weights, config), config, tokens, arange(*tokens.shape))
    np.testing.assert_allclose(got, golden[f"{name}/logits"], atol=5e-5)


@pytest.mark.parametrize("config", [CONFIG, SCAN])
@pytest.mark.parametrize("size", [1, 4])
def test_cached_chunks_equal_the_full_forward(config: Qwen3Config, size: int) -> None:
    """Rows at different lengths: a prefill of ragged prompts, then chunks on top, padding included."""
    params, tokens = params_of(config), tokens_of(3, 14)
    full, _ = run(params, config, tokens, arange(3, 14))
    full, rows, lengths = np.asarray(full), np.arange(3), np.array([2, 6, 4], np.int32)
    _, kv = run(params, config, tokens[:, :6], arange(3, 6))
    cache = write(empty_cache(config, 3, 14), kv, rows, np.zeros(3, np.int32), lengths)
    for _ in range(8 // size):
        positions = lengths[:, None] + np.arange(size, dtype=np.int32)
        chunk = np.take_along_axis(tokens, positions, axis=1)
        got, kv = run(params, config, chunk, positions, past=cache, past_lengths=lengths)
        want = np.take_along_axis(full, positions[:, :, None], axis=1)
        np.testing.assert_allclose(got, want, atol=2e-4)
        cache = write(cache, kv, rows, lengths, np.full(3, size, np.int32))
        lengths = lengths + np.int32(size)


def test_scan_equals_unrolled() -> None:
    params = params_of(CONFIG)
    stacked = to_params(to_tensors(params, CONFIG), SCAN)
    tokens = tokens_of(2, 9)
    want, kv = run(params, CONFIG, tokens, arange(2, 9))
    got, stacked_kv = run(stacked, SCAN, tokens, arange(2, 9))
    np.testing.assert_allclose(got, want, atol=1e-4)
    assert stacked_kv[0].shape == (2, 2, 2, 9, 12)
    np.testing.assert_allclose(np.asarray(stacked_kv[0])[1], kv[1][0], atol=1e-4)
    assert jax.tree.map(jnp.shape, empty_cache(SCAN, 2, 9)) == jax.tree.map(jnp.shape, stacked_kv)
    assert jax.tree.map(jnp.shape, empty_cache(CONFIG, 2, 9)) == jax.tree.map(jnp.shape, kv)


def test_packed_equals_separate() -> None:
    params, tokens = params_of(CONFIG), tokens_of(1, 12)
    segments = jnp.array([[1] * 5 + [2] * 4 + [0] * 3])
    positions = jnp.array([[*range(5), *range(4), *range(3)]])
    packed = np.asarray(run(params, CONFIG, tokens, positions, segment_ids=segments)[0])
    first, _ = run(params, CONFIG, tokens[:, :5], arange(1, 5))
    second, _ = run(params, CONFIG, tokens[:, 5:9], arange(1, 4))
    np.testing.assert_allclose(packed[:, :5], first, atol=1e-4)
    np.testing.assert_allclose(packed[:, 5:9], second, atol=1e-4)
    assert np.isfinite(packed).all()


@pytest.mark.parametrize("config", [SCAN.replace(remat="full"), CONFIG.replace(remat="dots")])
def test_shared_prefix_gradients_equal_plain_ones(config: Qwen3Config) -> None:
    """One prefix, three continuations: the gradient flows through the shared keys and values."""
    params, prefix, suffix = params_of(config), tokens_of(1, 6), tokens_of(3, 5)
    length = 4  # the prefix is padded to 6

    def score(params, hidden):
        out = jax.nn.log_softmax(logits(params, config, hidden))
        return jnp.take_along_axis(out[:, :-1], suffix[:, 1:, None], axis=2).sum()

    def shared(params):
        _, kv = forward(params, config, prefix, arange(1, 6))
        kv = jax.tree.map(lambda x: jnp.repeat(x, 3, axis=x.ndim - 4), kv)
        hidden, _ = forward(params, config, suffix, arange(3, 5, length), past=kv, past_lengths=jnp.full(3, length))
        return score(params, hidden)

    def plain(params):
        tokens = jnp.concatenate([jnp.repeat(prefix[:, :length], 3, axis=0), suffix], axis=1)
        hidden, _ = forward(params, config, tokens, arange(3, length + 5))
        return score(params, hidden[:, length:])

    got, want = jax.jit(jax.grad(shared))(params), jax.jit(jax.grad(plain))(params)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(np.asarray(a) / scale, np.asarray(b) / scale, atol=1e-4, err_msg=str(path))


def test_bfloat16_compute_keeps_float32_parameters() -> None:
    config = CONFIG.replace(dtype="bfloat16")
    params, tokens = params_of(config), tokens_of(2, 7)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    hidden, kv = hidden_of(params, config, tokens, arange(2, 7))
    assert {hidden.dtype, *(leaf.dtype for leaf in jax.tree.leaves(kv))} == {jnp.dtype("bfloat16")}
    exact, _ = hidden_of(params, CONFIG, tokens, arange(2, 7))
    error = np.abs(np.asarray(hidden, np.float32) - np.asarray(exact))
    assert float(error.mean()) < 0.03
    assert logits(params, config, hidden).dtype == jnp.float32


def test_output_head_and_logits() -> None:
    untied = CONFIG.replace(tie_word_embeddings=False)
    params = params_of(untied)
    assert output_head(params, untied) is params["lm_head"]
    assert output_head(params, untied).shape == output_head(params_of(CONFIG), CONFIG).shape == (32, 61)
    hidden = np.random.default_rng(0).standard_normal((2, 3, 32), np.float32)
    np.testing.assert_allclose(logits(params, untied, hidden), hidden @ np.asarray(params["lm_head"]), atol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, SCAN])
def test_write_cache_touches_valid_entries_only(config: Qwen3Config) -> None:
    full = jax.tree.map(lambda x: x - 1, empty_cache(config, 4, 6))
    # Three chunks of four entries whose value is 10 * chunk + entry; the second row is out of range.
    values = (10 * jnp.arange(3)[:, None] + jnp.arange(4))[:, None, :, None]
    chunk = jax.tree.map(lambda x: jnp.zeros_like(x) + values, empty_cache(config, 3, 4))
    rows, offsets, lengths = jnp.array([2, 4, 0]), jnp.array([1, 0, 4]), jnp.array([3, 4, 4])
    expected = np.full((4, 6), -1.0)
    expected[2, 1:4] = [0, 1, 2]
    expected[0, 4:6] = [20, 21]
    written = write(full, chunk, rows, offsets, lengths)
    for leaf in jax.tree.leaves(written):
        np.testing.assert_array_equal(leaf, np.broadcast_to(expected[:, None, :, None], leaf.shape))


@pytest.mark.parametrize("config", [CONFIG, SCAN])
def test_a_decode_step_updates_the_donated_cache_in_place(config: Qwen3Config) -> None:
    """A copy of the cache in every decode step once made decoding four times slower."""
    params, rows = params_of(config), jnp.arange(8)

    def step(cache, lengths, tokens):
        hidden, kv = forward(params, config, tokens, lengths[:, None], past=cache, past_lengths=lengths)
        return write_cache(cache, kv, rows, lengths, jnp.ones_like(lengths), after=hidden), hidden

    cache = empty_cache(config, 8, 32)
    text = jax.jit(step, donate_argnums=0).lower(cache, rows, rows[:, None]).compile().as_text()
    shape = f"f32[{','.join(map(str, jax.tree.leaves(cache)[0].shape))}]"
    copies = [line for line in text.splitlines() if " copy(" in line and f"= {shape}" in line]
    assert shape in text
    assert not copies
