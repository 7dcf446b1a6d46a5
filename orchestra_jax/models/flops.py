"""Model FLOPs: the arithmetic that a policy's tokens need, without recomputation; what MFU is measured by."""

from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.sizes import num_params


def active_weights(model: DecoderConfig) -> tuple[float, int]:
    """Return the weights that a token is multiplied with: in the layers, without idle experts, and in the head."""
    head = model.hidden_size * model.vocab_size
    return num_params(model) - model.idle_params() - head * (1 if model.tie_word_embeddings else 2), head


def forward_flops(model: DecoderConfig, tokens: float, sampled: float, squares: float) -> float:
    """Return the model FLOPs of one forward pass.

    Two per weight and token (the head's only for sampled tokens, the embedding is a look-up; of a mixture the experts
    that the token has), and causal attention: 2 * tokens * heads * head_dim per layer and token of a sequence for the
    scores and the mix together.

    Args:
        tokens: of all sequences.
        sampled: those of them that carry loss.
        squares: sum over the sequences of the squares of their lengths.
    """
    layers, head = active_weights(model)
    attention = 2 * squares * model.num_heads * model.head_dim * model.num_layers
    return tokens * 2.0 * layers + sampled * 2.0 * head + attention
