"""Log-probabilities and entropies over a large vocabulary, without ever holding the logits of all tokens."""

import functools

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_Outputs = tuple[Float[Array, " T"], Float[Array, " T"]]
_Residuals = tuple[Array, Array, Array, Array, Array]


def token_logprobs(
    hidden: Float[Array, "T D"],
    head: Float[Array, "D V"],
    targets: Int[Array, " T"],
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    vocab_block: int | None = None,
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Return the log-prob of each target and the entropy of each distribution softmax(hidden @ head / temperature).

    The four logits of one token are equal, so that every id has probability 1/4:

    >>> logprobs, entropy = token_logprobs(jnp.ones((1, 2)), jnp.zeros((2, 4)), jnp.array([3]))
    >>> round(float(logprobs[0]), 4), round(float(entropy[0]), 4)
    (-1.3863, 1.3863)

    Products run in hidden's dtype and accumulate in fp32. The backward pass computes the logits again, block by block,
    so memory is O(chunk * vocab_block) beside inputs and gradients instead of O(T * V); the head's gradient accumulates
    in fp32 whatever hidden's dtype is, and is returned in head's dtype (give fp32 parameters to keep it).

    Args:
        hidden, head: final hidden states, and `models.decoder.output_head`.
        temperature: divides the logits; positive, and the one that tokens were sampled at.
        chunk: tokens whose logits exist at once; None or >= T: all of them.
        vocab_block: ids whose logits exist at once; None or >= V: all of them, as a vocabulary split over devices
            needs. On CPU a few hundred, whose logits stay in the core's cache, with all tokens at once are fastest.

    Returns:
        (logprobs, entropy) in nats, fp32; both differentiable in `hidden` and `head`.
    """
    chex.assert_shape(head, (hidden.shape[-1], None))
    chex.assert_shape([hidden, targets], [(None, None), hidden.shape[:1]])
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}; score greedy rollouts at temperature 1.")
    for name, size in (("chunk", chunk), ("vocab_block", vocab_block)):
        if size is not None and size <= 0:
            raise ValueError(f"{name} must be positive, got {size}; pass None to have all at once.")
    chunks = 1 if chunk is None else max(-(-hidden.shape[0] // chunk), 1)
    block = head.shape[1] if vocab_block is None else min(vocab_block, head.shape[1])
    return _score_chunks(hidden, head, targets, float(temperature), chunks, block)


def _logits(hidden: Float[Array, "C D"], head: Float[Array, "D b"], temperature: float) -> Float[Array, "C b"]:
    products = jnp.dot(hidden, head.astype(hidden.dtype), preferred_element_type=jnp.float32)
    return products if temperature == 1.0 else products / temperature


def _score(
    logits: Float[Array, "C V"], targets: Int[Array, " C"]
) -> tuple[Float[Array, " C"], Float[Array, " C"], Float[Array, " C"]]:
    """Return (logprobs, entropy, log of the partition function) of one chunk, from all its logits."""
    highest = logits.max(-1, keepdims=True)
    partition = jnp.log(jnp.exp(logits - highest).sum(-1)) + highest[:, 0]
    chosen = jnp.take_along_axis(logits, targets[:, None], 1)[:, 0]
    # Exponentials of its own: those of the partition function, used twice, would be written to memory by XLA:CPU.
    logp = logits - partition[:, None]
    return chosen - partition, -(jnp.exp(logp) * logp).sum(-1), partition


def _split(x: Float[Array, "T ..."], chunks: int) -> Float[Array, "n C ..."]:
    """Split x into chunks x[i::n], zero-padded: a T split over devices stays split within every chunk."""
    length = -(-x.shape[0] // chunks)
    x = jnp.pad(x, [(0, chunks * length - x.shape[0])] + [(0, 0)] * (x.ndim - 1))
    return jnp.swapaxes(x.reshape(length, chunks, *x.shape[1:]), 0, 1)


def _join(x: Float[Array, "n C ..."], count: int) -> Float[Array, "T ..."]:
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])[:count]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _score_chunks(hidden: Array, head: Array, targets: Array, temperature: float, chunks: int, block: int) -> _Outputs:
    return _forward(hidden, head, targets, temperature, chunks, block)[0]


def _forward(
    hidden: Array, head: Array, targets: Array, temperature: float, chunks: int, block: int
) -> tuple[_Outputs, _Residuals]:
    def step(part: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        tokens, ids = part
        if block == head.shape[1]:
            return _score(_logits(tokens, head, temperature), ids)
        from orchestra_jax.models.vocabulary_blocks import score_by_blocks

        return score_by_blocks(lambda part: _logits(tokens, part, temperature), head, ids, block)

    scores = jax.lax.map(step, (_split(hidden, chunks), _split(targets, chunks)))
    logprobs, entropy, partition = (_join(x, hidden.shape[0]) for x in scores)
    return (logprobs, entropy), (hidden, head, targets, partition, entropy)


def _backward(
    temperature: float, chunks: int, block: int, residuals: _Residuals, grads: _Outputs
) -> tuple[Array, Array, None]:
    hidden, head, targets, partition, entropy = residuals

    def step(d_head: Array, chunk: tuple[Array, ...]) -> tuple[Array, Array]:
        tokens, *columns = chunk
        ids, partition, entropy, d_logprobs, d_entropy = (x[:, None] for x in columns)

        def of_block(d_tokens: Array, first: Array | int, part: Float[Array, "D b"]) -> tuple[Array, Array]:
            # d logp_y / d z_j = [j = y] - p_j and d H / d z_j = -p_j (log p_j + H).
            logp = _logits(tokens, part, temperature) - partition
            reached = jnp.where(jnp.arange(part.shape[1]) == ids - first, d_logprobs, 0.0)
            d_logits = reached - jnp.exp(logp) * (d_logprobs + d_entropy * (logp + entropy))
            d_logits = (d_logits if temperature == 1.0 else d_logits / temperature).astype(tokens.dtype)
            part = part.astype(tokens.dtype)
            d_tokens += jnp.einsum("cv,dv->cd", d_logits, part, preferred_element_type=jnp.float32)
            return d_tokens, jnp.einsum("cd,cv->dv", tokens, d_logits, preferred_element_type=jnp.float32)

        zero = jnp.zeros(tokens.shape, jnp.float32)
        if block == head.shape[1]:
            d_tokens, update = of_block(zero, 0, head)
        else:
            from orchestra_jax.models.vocabulary_blocks import over_vocabulary

            d_tokens, update = over_vocabulary(of_block, zero, head, block)
        return d_head + update, d_tokens.astype(tokens.dtype)

    # Padded tokens carry zero gradients, and so add nothing to the head's.
    parts = tuple(_split(x, chunks) for x in (hidden, targets, partition, entropy, *grads))
    d_head, d_hidden = jax.lax.scan(step, jnp.zeros(head.shape, jnp.float32), parts)
    return _join(d_hidden, hidden.shape[0]), d_head.astype(head.dtype), None


_score_chunks.defvjp(_forward, _backward)
