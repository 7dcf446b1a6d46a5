import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from orchestra_jax.models.logprobs import token_logprobs
from orchestra_jax.models.sharding import make_mesh

T, D, V = 37, 8, 50


def drawn(seed: int, tokens: int, dim: int, vocab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return hidden states, a head and targets; made by jax.random, each shape would be a program to compile."""
    rng = np.random.default_rng(seed)
    hidden, head = (rng.standard_normal(shape, np.float32) for shape in ((tokens, dim), (dim, vocab)))
    return hidden, head, rng.integers(0, vocab, tokens, np.int32)


def inputs(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return drawn(seed, T, D, V)


def naive(hidden, head, targets, temperature):
    logp = jax.nn.log_softmax(hidden @ head / temperature)
    return jnp.take_along_axis(logp, targets[:, None], 1)[:, 0], -(jnp.exp(logp) * logp).sum(-1)


# With a rest and without; a chunk of 37 tokens and a block of 50 ids are all of them, and so are larger ones.
SIZES = [(chunk, None) for chunk in (None, 1, 5, 36, 100)]
SIZES += [(None, block) for block in (1, 7, 25, 49, 100)] + [(16, block) for block in (7, 25)]


# Temperature 1 divides nothing: once for each way through the code.
CASES = [(*sizes, 0.6) for sizes in SIZES] + [(None, None, 1.0), (5, None, 1.0), (16, 7, 1.0)]


@functools.cache
def scores_and_gradients(score: Callable) -> tuple:
    """Log-probs, entropies, and the gradients in `hidden` and `head` of a weighted sum of them."""
    hidden, head, targets = inputs()
    head[:, 30] *= 3.0  # some tokens' highest logit is in a later block
    weights = np.random.default_rng(9).standard_normal((2, T), np.float32)

    def loss(hidden, head):
        logprobs, entropy = score(hidden, head, targets)
        return weights[0] @ logprobs + weights[1] @ entropy, (logprobs, entropy)

    grads, values = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(hidden, head)
    return values + grads


NAIVE = {temperature: functools.partial(naive, temperature=temperature) for temperature in (0.6, 1.0)}


@pytest.mark.parametrize(("chunk", "vocab_block", "temperature"), CASES)
def test_values_and_gradients_match_naive(chunk: int | None, vocab_block: int | None, temperature: float) -> None:
    score = functools.partial(token_logprobs, temperature=temperature, chunk=chunk, vocab_block=vocab_block)
    for got, want in zip(scores_and_gradients(score), scores_and_gradients(NAIVE[temperature]), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, atol=3e-5, rtol=1e-5)


def test_gradient_of_one_output_only() -> None:
    hidden, head, targets = inputs(1)
    for i in (0, 1):
        got = jax.jit(jax.grad(lambda h, i=i: token_logprobs(h, head, targets, chunk=8)[i].sum()))(hidden)
        want = jax.jit(jax.grad(lambda h, i=i: naive(h, head, targets, 1.0)[i].sum()))(hidden)
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_bfloat16_hidden_accumulates_the_head_gradient_in_float32() -> None:
    hidden, head, _ = (x.astype(jnp.bfloat16) for x in drawn(2, 4096, D, V))
    head = head.astype(np.float32)
    targets = jnp.zeros(4096, jnp.int32)

    def loss(head, hidden, score):
        return score(hidden, head)[0].sum()

    gradient = jax.jit(jax.grad(loss), static_argnums=2)
    got = gradient(head, hidden, lambda h, w: token_logprobs(h, w, targets, temperature=1.0, chunk=16))
    want = gradient(head, hidden.astype(np.float32), lambda h, w: naive(h, w, targets, 1.0))
    assert got.dtype == jnp.float32
    # bfloat16 accumulation over 256 chunks would be off by percents.
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())


@pytest.mark.parametrize("sizes", [{}, {"chunk": 5, "vocab_block": 16}])
def test_products_of_bfloat16_are_summed_in_float32(sizes: dict[str, int]) -> None:
    """Against float64. Of hidden states at right angles to the head all logits are 0, and gradients of logits exact."""
    rng, half, ids = np.random.default_rng(4), D // 2, 64
    hidden = rng.standard_normal((T, D)).astype(jnp.bfloat16)
    head = rng.standard_normal((D, ids)).astype(jnp.bfloat16).astype(np.float32)
    targets = rng.integers(0, ids, T)

    products = hidden.astype(np.float64) @ head.astype(np.float64)
    logp = products - np.log(np.exp(products).sum(-1, keepdims=True))
    logprobs, entropy = jax.jit(functools.partial(token_logprobs, **sizes))(hidden, head, targets)
    np.testing.assert_allclose(logprobs, logp[np.arange(T), targets], atol=1e-5)
    np.testing.assert_allclose(entropy, -(np.exp(logp) * logp).sum(-1), atol=1e-5)

    hidden[:, half:], head[:half] = 0, 0
    gradient = jax.jit(jax.grad(lambda h, w: token_logprobs(h, w, targets, **sizes)[0].sum(), (0, 1)))
    d_hidden, d_head = gradient(hidden, head)
    d_logits = np.eye(ids)[targets] - 1 / ids
    np.testing.assert_allclose(d_head, hidden.astype(np.float64).T @ d_logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(d_hidden, (d_logits @ head.astype(np.float64).T).astype(jnp.bfloat16))


def test_chunks_and_blocks_bound_the_logits() -> None:
    """No array of the compiled gradient holds more logits than one chunk or block."""
    hidden, head = jax.ShapeDtypeStruct((4096, 16), jnp.float32), jax.ShapeDtypeStruct((16, 1000), jnp.float32)
    targets = jax.ShapeDtypeStruct((4096,), jnp.int32)

    def peak(**sizes: int) -> int:
        def loss(hidden, head, targets):
            logprobs, entropy = token_logprobs(hidden, head, targets, **sizes)
            return (logprobs + entropy).sum()

        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, head, targets).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert peak() > 4096 * 1000 * 4
    assert peak(chunk=128) < 4096 * 1000 * 4 / 4
    assert peak(vocab_block=32) < 4096 * 1000 * 4 / 4


@pytest.mark.parametrize("with_gradient", [False, True])
def test_memory_does_not_grow_with_tokens_times_vocabulary(with_gradient: bool) -> None:
    """Qwen3's vocabulary and 4k and 8k tokens; compiled, not run."""
    vocab, dim, chunk = 151_936, 16, 128

    def score(hidden, head, targets):
        logprobs, entropy = token_logprobs(hidden, head, targets, temperature=0.9, chunk=chunk)
        return (logprobs + entropy).sum()

    def memory(tokens: int) -> int:
        hidden = jax.ShapeDtypeStruct((tokens, dim), jnp.bfloat16)
        head = jax.ShapeDtypeStruct((dim, vocab), jnp.float32)
        targets = jax.ShapeDtypeStruct((tokens,), jnp.int32)
        function = jax.grad(score, (0, 1)) if with_gradient else score
        return jax.jit(function).lower(hidden, head, targets).compile().memory_analysis().temp_size_in_bytes

    small, large = memory(4096), memory(8192)
    assert large < 4 * chunk * vocab * 4  # a few arrays of one chunk's logits; all logits would take 5 GB
    assert large - small < 4096 * 1024  # of the 2.5 GB of 4,096 more tokens' logits: 1 kB per token


@pytest.mark.parametrize(("data", "tensor"), [(1, 8), (2, 4)])
def test_a_head_split_by_vocabulary_is_never_gathered(data: int, tensor: int) -> None:
    tokens, dim, vocab = 48, 8, 320
    mesh = make_mesh(data=data, tensor=tensor)
    hidden, head, targets = drawn(3, tokens, dim, vocab)
    weights = np.random.default_rng(4).standard_normal((2, tokens), np.float32)

    def loss(hidden, head, targets):
        logprobs, entropy = token_logprobs(hidden, head, targets, temperature=0.7, chunk=12)
        return weights[0] @ logprobs + weights[1] @ entropy, (logprobs, entropy)

    def put(x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))

    split = put(hidden, "data"), put(head, None, "tensor"), put(targets, "data")
    step = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    program = step.lower(*split).compile().as_text()
    gathered = [line for line in program.splitlines() if "all-gather" in line or "all-to-all" in line]
    assert not [line for line in gathered if str(vocab) in line]

    got, want = step(*split), step(hidden, head, targets)
    assert got[1][1].sharding.spec == PartitionSpec(None, "tensor")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5), got, want)


def test_errors() -> None:
    hidden, head, targets = inputs()
    with pytest.raises(ValueError, match="temperature must be positive"):
        token_logprobs(hidden, head, targets, temperature=0.0)
    with pytest.raises(ValueError, match="chunk must be positive"):
        token_logprobs(hidden, head, targets, temperature=1.0, chunk=0)
    with pytest.raises(ValueError, match="vocab_block must be positive"):
        token_logprobs(hidden, head, targets, temperature=1.0, vocab_block=-1)
