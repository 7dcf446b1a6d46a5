"""The loss whose clipped ratio is a weight: cispo."""

import jax
import jax.numpy as jnp

from orchestra_jax.rl.losses.base import Loss, LossInputs, LossOutputs
from orchestra_jax.rl.losses.surrogates import token_ratio


@Loss
def cispo(inputs: LossInputs) -> LossOutputs:
    """Return `-stop_gradient(clip(ratio)) * A * logprob`: a clip bounds a token's weight, never stops its gradient."""
    ratio = token_ratio(inputs)
    low, high = 1 - inputs.cfg.clip_low, 1 + inputs.cfg.clip_high
    clipped = jnp.clip(ratio, low, high)
    tokens = -jax.lax.stop_gradient(clipped) * inputs.advantages * inputs.logprobs
    held = {"low": ratio < low, "high": ratio > high, "dual": jnp.zeros_like(inputs.mask)}
    return LossOutputs(tokens, ratio, held)
