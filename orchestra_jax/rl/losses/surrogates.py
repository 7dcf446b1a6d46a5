"""The losses of this package: clipped surrogates with a ratio per token or per sequence (Eq. 4 and its relatives)."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from orchestra_jax.config.choices import Aggregation
from orchestra_jax.rl.losses.base import Loss, LossInputs, LossOutputs
from orchestra_jax.rl.losses.masked import MAX_LOG_RATIO


@Loss
def grpo(inputs: LossInputs) -> LossOutputs:
    """Use a ratio per token and the mean over all tokens, as in the authors' training script."""
    return clipped_surrogate(inputs, token_ratio(inputs))


# Its sum is divided by a constant, so that length does not weigh; goes with `group_advantages(normalize_std=False)`.
dr_grpo = Loss(grpo.tokens, Aggregation.constant)

# Differs from grpo in settings only: `clip_high > clip_low` is its "clip-higher".
dapo = Loss(grpo.tokens)


def _gspo(inputs: LossInputs) -> LossOutputs:
    """Use `exp(mean of log-ratios)` for all tokens of a trajectory; its clip range is small, about 3e-4 and 4e-4."""
    lengths = jnp.maximum(inputs.mask.sum(axis=-1, keepdims=True), 1) / inputs.share
    return clipped_surrogate(inputs, _along_rows(lengths, inputs))


def _sequence(inputs: LossInputs) -> LossOutputs:
    """Use the trajectory ratio of Eq. 4, `exp(sum of log-ratios)`, for all tokens of a trajectory."""
    return clipped_surrogate(inputs, _along_rows(jnp.ones((len(inputs.mask), 1)), inputs))


gspo = Loss(_gspo, Aggregation.sequence, sequence_ratio=True)
sequence = Loss(_sequence, Aggregation.sequence, sequence_ratio=True)


@Loss
def cispo(inputs: LossInputs) -> LossOutputs:
    """Return `-stop_gradient(clip(ratio)) * A * logprob`: a clip bounds a token's weight, never stops its gradient."""
    ratio = token_ratio(inputs)
    low, high = 1 - inputs.cfg.clip_low, 1 + inputs.cfg.clip_high
    clipped = jnp.clip(ratio, low, high)
    tokens = -jax.lax.stop_gradient(clipped) * inputs.advantages * inputs.logprobs
    held = {"low": ratio < low, "high": ratio > high, "dual": jnp.zeros_like(inputs.mask)}
    return LossOutputs(tokens, ratio, held)


def token_ratio(inputs: LossInputs) -> Float[Array, "B T"]:
    """Return the ratio of new to old policy, token by token; its log is held within [-20, 20]."""
    return jnp.exp(jnp.clip(inputs.logprobs - inputs.old_logprobs, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def clipped_surrogate(inputs: LossInputs, ratio: Float[Array, "B T"]) -> LossOutputs:
    """Return `-min(r A, clip(r) A)`, at most `-A dual_clip` where A < 0, and the tokens whose gradient a clip stops."""
    cfg, adv = inputs.cfg, inputs.advantages
    low, high = 1 - cfg.clip_low, 1 + cfg.clip_high
    tokens = -jnp.minimum(ratio * adv, jnp.clip(ratio, low, high) * adv)
    dual = jnp.zeros_like(inputs.mask)
    if cfg.dual_clip is not None:
        dual = (adv < 0) & (tokens > -adv * cfg.dual_clip)
        tokens = jnp.where(dual, -adv * cfg.dual_clip, tokens)
    held = {"low": (ratio < low) & (adv < 0), "high": (ratio > high) & (adv > 0), "dual": dual}
    return LossOutputs(tokens, ratio, held)


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
