import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.models.logprobs import token_logprobs

T, D, V = 37, 8, 50


def inputs(seed: int = 0) -> tuple[jax.Array, jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 3)
    return (
        jax.random.normal(keys[0], (T, D)),
        jax.random.normal(keys[1], (D, V)),
        jax.random.randint(keys[2], (T,), 0, V),
    )


def naive(hidden, head, targets, temperature):
    logp = jax.nn.log_softmax(hidden @ head / temperature)
    return jnp.take_along_axis(logp, targets[:, None], 1)[:, 0], -(jnp.exp(logp) * logp).sum(-1)


@pytest.mark.parametrize("chunk", [None, 1, 5, 36, 37, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_match_naive(chunk: int | None, temperature: float) -> None:
    hidden, head, targets = inputs()
    weights = jax.random.normal(jax.random.key(9), (2, T))

    def ours(hidden, head):
        logprobs, entropy = token_logprobs(hidden, head, targets, temperature=temperature, chunk=chunk)
        return weights[0] @ logprobs + weights[1] @ entropy, (logprobs, entropy)

    def theirs(hidden, head):
        logprobs, entropy = naive(hidden, head, targets, temperature)
        return weights[0] @ logprobs + weights[1] @ entropy, (logprobs, entropy)

    grads, values = jax.jit(jax.grad(ours, (0, 1), has_aux=True))(hidden, head)
    expected_grads, expected = jax.grad(theirs, (0, 1), has_aux=True)(hidden, head)
    for got, want in zip(values + grads, expected + expected_grads, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, atol=3e-5, rtol=1e-5)


def test_gradient_of_one_output_only() -> None:
    hidden, head, targets = inputs(1)
    for i in (0, 1):
        got = jax.grad(lambda h, i=i: token_logprobs(h, head, targets, temperature=1.0, chunk=8)[i].sum())(hidden)
        want = jax.grad(lambda h, i=i: naive(h, head, targets, 1.0)[i].sum())(hidden)
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_bfloat16_hidden_accumulates_the_head_gradient_in_float32() -> None:
    keys = jax.random.split(jax.random.key(2), 2)
    hidden = jax.random.normal(keys[0], (4096, D)).astype(jnp.bfloat16)
    head = jax.random.normal(keys[1], (D, V)).astype(jnp.bfloat16).astype(jnp.float32)
    targets = jnp.zeros(4096, jnp.int32)

    def loss(head, hidden, score):
        return score(hidden, head)[0].sum()

    got = jax.grad(loss)(head, hidden, lambda h, w: token_logprobs(h, w, targets, temperature=1.0, chunk=16))
    want = jax.grad(loss)(head, hidden.astype(jnp.float32), lambda h, w: naive(h, w, targets, 1.0))
    assert got.dtype == jnp.float32
    # bfloat16 accumulation over 256 chunks would be off by percents.
    np.testing.assert_allclose(got, want, atol=2e-3 * float(jnp.abs(want).max()))


def test_chunks_bound_the_logits() -> None:
    """No array of the compiled gradient holds more than one chunk of logits."""
    hidden, head = jax.ShapeDtypeStruct((4096, 16), jnp.float32), jax.ShapeDtypeStruct((16, 1000), jnp.float32)
    targets = jax.ShapeDtypeStruct((4096,), jnp.int32)

    def peak(chunk: int | None) -> int:
        def loss(hidden, head, targets):
            logprobs, entropy = token_logprobs(hidden, head, targets, temperature=1.0, chunk=chunk)
            return (logprobs + entropy).sum()

        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, head, targets).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert peak(None) > 4096 * 1000 * 4
    assert peak(128) < 4096 * 1000 * 4 / 4


def test_errors() -> None:
    hidden, head, targets = inputs()
    with pytest.raises(ValueError, match="temperature must be positive"):
        token_logprobs(hidden, head, targets, temperature=0.0)
    with pytest.raises(ValueError, match="chunk must be positive"):
        token_logprobs(hidden, head, targets, temperature=1.0, chunk=0)
