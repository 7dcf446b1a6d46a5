"""The losses with a clipped ratio per token: grpo and its relatives."""

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
