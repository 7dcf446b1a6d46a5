"""The losses with one ratio for a whole trajectory: Eq. 4 and gspo."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from orchestra_jax.config.choices import Aggregation
from orchestra_jax.rl.losses.base import Loss, LossInputs, LossOutputs
from orchestra_jax.rl.losses.masked import MAX_LOG_RATIO
from orchestra_jax.rl.losses.surrogates import clipped_surrogate


def _gspo(inputs: LossInputs) -> LossOutputs:
    """Use `exp(mean of log-ratios)` for all tokens of a trajectory; its clip range is small, about 3e-4 and 4e-4."""
    lengths = jnp.maximum(inputs.mask.sum(axis=-1, keepdims=True), 1) / inputs.share
    return clipped_surrogate(inputs, _along_rows(lengths, inputs))


def _sequence(inputs: LossInputs) -> LossOutputs:
    """Use the trajectory ratio of Eq. 4, `exp(sum of log-ratios)`, for all tokens of a trajectory."""
    return clipped_surrogate(inputs, _along_rows(jnp.ones((len(inputs.mask), 1)), inputs))


gspo = Loss(_gspo, Aggregation.sequence, sequence_ratio=True)
sequence = Loss(_sequence, Aggregation.sequence, sequence_ratio=True, sums_tokens=True)


def _along_rows(divisor: Float[Array, "B 1"], inputs: LossInputs) -> Float[Array, "B T"]:
    """Return `exp(sum of log-ratios / divisor)` of each trajectory at all of its tokens; the log is within [-20, 20].

    A trajectory that forked has several rows, which may lie in several micro-batches. Each row has the ratio of the
    whole trajectory, and the gradient of its own part divided by its share: means over the trajectory's tokens then add
    up to the gradient of the whole.

    With `token_form` the gradient of token t of T is that of its own log-ratio times T / divisor. Summed over tokens of
    equal weight this is the same, but the weight of a token now acts on its own gradient.
    """
    differences = inputs.logprobs - inputs.old_logprobs
    own = differences.sum(axis=-1, keepdims=True)
    whole = jax.lax.stop_gradient(own + inputs.other_log_ratios) + (own - jax.lax.stop_gradient(own)) / inputs.share
    log_ratio = jnp.broadcast_to(whole / divisor, inputs.mask.shape)
    if inputs.cfg.token_form:
        own = differences * inputs.mask.sum(axis=-1, keepdims=True) / inputs.share / divisor
        log_ratio = jax.lax.stop_gradient(log_ratio) + own - jax.lax.stop_gradient(own)
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
