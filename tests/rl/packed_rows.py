"""Random sequences, and an optimizer that records, for the tests of packing and sharding."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from orchestra_jax.rl.batching import TokenSequence

VOCAB = 32


def random_sequences(seed: int, count: int, longest: int = 20) -> list[TokenSequence]:
    """Sequences of 3 to `longest` tokens: a prompt, then sampled and observed tokens by turns."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        length = int(rng.integers(3, longest + 1))
        prompt = int(rng.integers(1, length))
        sampled = tuple(i >= prompt and (i - prompt) % 4 != 2 for i in range(length))
        behaviour = tuple(float(rng.normal(-3.3, 0.3)) if s else 0.0 for s in sampled)
        tokens = tuple(rng.integers(1, VOCAB, length).tolist())
        found.append(TokenSequence(tokens, sampled, behaviour, prompt - 1, float(rng.normal())))
    return found


def recorder() -> optax.GradientTransformation:
    """Keeps the gradient as its state and changes no parameter."""
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    return optax.GradientTransformation(zeros, lambda grads, state, params=None: (zeros(grads), grads))


def recording_sgd() -> optax.GradientTransformation:
    """Momentum SGD whose first state is the last gradient."""
    record = optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params), lambda grads, state, params=None: (grads, grads)
    )
    return optax.chain(record, optax.sgd(0.002, momentum=0.9))


def assert_trees_close(found, expected, rtol: float = 1e-4) -> None:
    """Equal up to `rtol` of the largest element of each leaf."""
    largest = jax.tree.map(lambda leaf: np.abs(np.asarray(leaf, np.float32)).max(), expected)
    assert all(size > 0 for size in jax.tree.leaves(largest))
    found, expected = (
        jax.tree.map(lambda leaf, size: np.asarray(leaf, np.float32) / size, tree, largest)
        for tree in (found, expected)
    )
    chex.assert_trees_all_close(found, expected, rtol=rtol, atol=rtol)
