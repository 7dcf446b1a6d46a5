"""Log-probabilities and entropies over a large vocabulary, without ever holding all tokens' logits."""

import functools

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
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Log-probability of each target and entropy of each distribution softmax(hidden @ head / temperature).

    Products run in hidden's dtype and accumulate in fp32. The backward pass recomputes the logits chunk by chunk, so
    memory is O(chunk * V) instead of O(T * V); the head's gradient accumulates in fp32 whatever hidden's dtype is, and
    is returned in head's dtype (give fp32 parameters to keep it).

    Args:
        hidden: final hidden states.
        head: output matrix, see `models.qwen3.output_head`.
        targets: the token id to score at each position.
        temperature: divides the logits; positive, and the one that tokens were sampled at.
        chunk: tokens whose logits exist at once; None or >= T: all of them.

    Returns:
        (logprobs, entropy) in nats, fp32; both differentiable in `hidden` and `head`.

    Raises:
        ValueError: temperature or chunk not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}; score greedy rollouts at temperature 1.")
    if chunk is not None and chunk <= 0:
        raise ValueError(f"chunk must be positive, got {chunk}; pass None for a single chunk.")
    chunks = 1 if chunk is None else max(-(-hidden.shape[0] // chunk), 1)
    return _score_chunks(hidden, head, targets, float(temperature), chunks)


def _logits(hidden: Float[Array, "C D"], head: Float[Array, "D V"], temperature: float) -> Float[Array, "C V"]:
    products = jnp.dot(hidden, head.astype(hidden.dtype), preferred_element_type=jnp.float32)
    return products if temperature == 1.0 else products / temperature


def _is_target(targets: Int[Array, " C"], vocab: int) -> Array:
    return jnp.arange(vocab) == targets[:, None]


def _score(
    logits: Float[Array, "C V"], targets: Int[Array, " C"]
) -> tuple[Float[Array, " C"], Float[Array, " C"], Float[Array, " C"]]:
    """(logprobs, entropy, log of the partition function) of one chunk."""
    highest = logits.max(-1, keepdims=True)
    weights = jnp.exp(logits - highest)
    total = weights.sum(-1)
    partition = jnp.log(total) + highest[:, 0]
    # A masked sum instead of a gather: it fuses with the other sums and suits a head split over its vocabulary.
    chosen = jnp.where(_is_target(targets, logits.shape[-1]), logits, 0.0).sum(-1)
    return chosen - partition, partition - (weights * logits).sum(-1) / total, partition


def _grad_logits(
    logits: Float[Array, "C V"],
    targets: Int[Array, " C"],
    partition: Float[Array, " C"],
    entropy: Float[Array, " C"],
    d_logprobs: Float[Array, " C"],
    d_entropy: Float[Array, " C"],
) -> Float[Array, "C V"]:
    """d logp_y / d z_j = [j = y] - p_j and d H / d z_j = -p_j (log p_j + H)."""
    logp = logits - partition[:, None]
    hit = jnp.where(_is_target(targets, logits.shape[-1]), d_logprobs[:, None], 0.0)
    return hit - jnp.exp(logp) * (d_logprobs[:, None] + d_entropy[:, None] * (logp + entropy[:, None]))


def _grads(
    d_logits: Float[Array, "C V"], hidden: Float[Array, "C D"], head: Float[Array, "D V"], temperature: float
) -> tuple[Float[Array, "C D"], Float[Array, "D V"]]:
    """Gradients of hidden (its dtype) and head (fp32)."""
    d_logits = (d_logits if temperature == 1.0 else d_logits / temperature).astype(hidden.dtype)
    d_hidden = jnp.einsum("cv,dv->cd", d_logits, head.astype(hidden.dtype), preferred_element_type=jnp.float32)
    d_head = jnp.einsum("cd,cv->dv", hidden, d_logits, preferred_element_type=jnp.float32)
    return d_hidden.astype(hidden.dtype), d_head


def _split(x: Float[Array, "T ..."], chunks: int) -> Float[Array, "n C ..."]:
    """Chunk i is x[i::n], zero-padded: a T split over devices stays split within every chunk."""
    length = -(-x.shape[0] // chunks)
    x = jnp.pad(x, [(0, chunks * length - x.shape[0])] + [(0, 0)] * (x.ndim - 1))
    return jnp.swapaxes(x.reshape(length, chunks, *x.shape[1:]), 0, 1)


def _join(x: Float[Array, "n C ..."], count: int) -> Float[Array, "T ..."]:
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])[:count]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _score_chunks(hidden: Array, head: Array, targets: Array, temperature: float, chunks: int) -> _Outputs:
    return _forward(hidden, head, targets, temperature, chunks)[0]


def _forward(
    hidden: Array, head: Array, targets: Array, temperature: float, chunks: int
) -> tuple[_Outputs, _Residuals]:
    def step(part: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        return _score(_logits(part[0], head, temperature), part[1])

    scores = jax.lax.map(step, (_split(hidden, chunks), _split(targets, chunks)))
    logprobs, entropy, partition = (_join(x, hidden.shape[0]) for x in scores)
    return (logprobs, entropy), (hidden, head, targets, partition, entropy)


def _backward(temperature: float, chunks: int, residuals: _Residuals, grads: _Outputs) -> tuple[Array, Array, None]:
    hidden, head, targets, partition, entropy = residuals

    def step(d_head: Array, part: tuple[Array, ...]) -> tuple[Array, Array]:
        tokens, *rest = part
        d_logits = _grad_logits(_logits(tokens, head, temperature), *rest)
        d_tokens, update = _grads(d_logits, tokens, head, temperature)
        return d_head + update, d_tokens

    # Padded tokens carry zero gradients, and so add nothing to the head's.
    parts = tuple(_split(x, chunks) for x in (hidden, targets, partition, entropy, *grads))
    d_head, d_hidden = jax.lax.scan(step, jnp.zeros(head.shape, jnp.float32), parts)
    return _join(d_hidden, hidden.shape[0]), d_head.astype(head.dtype), None


_score_chunks.defvjp(_forward, _backward)
