"""Corrections for an engine whose log-probs differ from the learner's: weights of tokens, masks of sequences.

The ratio w = exp(old - rollout) of learner to engine is taken per token, as a sequence's product, or as its geometric
mean; weights truncate it (TIS) or keep a range of it (IcePop), masks take whole sequences out. verl's `rollout_corr`,
slime's MIS, SkyRL's `off_policy_correction` and prime-rl's masks have the same parts.

Axes: B sequences, T tokens.
"""

import math

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from orchestra_jax.config.algorithm import LossConfig
from orchestra_jax.config.choices import Importance, RatioLevel
from orchestra_jax.rl.losses.masked import MAX_LOG_RATIO, gap_metrics, masked_mean


def correction(
    old: Float[Array, "B T"], rollout: Float[Array, "B T"] | None, mask: Bool[Array, "B T"], cfg: LossConfig
) -> tuple[Float[Array, "B T"], dict[str, Float[Array, ""]]]:
    """Return the weights of the token losses, and metrics of the gap between the learner's and the rollout's log-probs.

    Raises:
        ValueError: there is something to correct, and no rollout log-probs.
    """
    if rollout is None:
        if cfg.importance is not Importance.none:
            raise ValueError(f"importance={cfg.importance} needs rollout_logprobs: pass them or set importance=none.")
        if cfg.masks:
            raise ValueError("A mask of sequences needs rollout_logprobs: pass them, or set its bounds to null.")
        return jnp.ones_like(old), {}
    floor, cap = cfg.importance_range
    raw = jnp.exp(jnp.clip(_at_level(old - rollout, mask, cfg.importance_level), -MAX_LOG_RATIO, MAX_LOG_RATIO))
    inside = (raw >= floor) & (raw <= cap)
    corrected, zeroed = raw, jnp.zeros_like(mask)
    if cfg.importance is Importance.tis:
        corrected = jnp.minimum(raw, cap)
    elif cfg.importance is Importance.icepop:
        corrected, zeroed = jnp.where(inside, raw, 0.0), ~inside
    masked, fractions = _masked_sequences(old - rollout, mask, cfg)
    corrected = jnp.where(mask & ~masked[:, None], corrected, 0.0)
    metrics = gap_metrics(old - rollout, corrected, mask) | fractions
    metrics["icepop_fraction"] = masked_mean(zeroed.astype(raw.dtype), mask)
    weights = jnp.ones_like(raw) if cfg.importance is Importance.none else corrected
    return jnp.where(masked[:, None], 0.0, weights), metrics


def _at_level(log_ratio: Float[Array, "B T"], mask: Bool[Array, "B T"], level: RatioLevel) -> Float[Array, "B T"]:
    if level is RatioLevel.token:
        return log_ratio
    total = log_ratio.sum(axis=-1, keepdims=True)
    if level is RatioLevel.geometric:
        total = total / jnp.maximum(mask.sum(axis=-1, keepdims=True), 1)
    return jnp.broadcast_to(total, mask.shape)


def _masked_sequences(
    log_ratio: Float[Array, "B T"], mask: Bool[Array, "B T"], cfg: LossConfig
) -> tuple[Bool[Array, " B"], dict[str, Float[Array, ""]]]:
    """Return the sequences that a bound takes out, and their share of the sequences with a token, by bound."""
    there = mask.any(axis=-1)
    product = log_ratio.sum(axis=-1)
    geometric = product / jnp.maximum(mask.sum(axis=-1), 1)
    lowest = jnp.where(mask, log_ratio, jnp.inf).min(axis=-1)
    found = {
        "geometric": _outside(geometric, cfg.mask_geometric_low, cfg.mask_geometric_high),
        "product": _outside(product, cfg.mask_product_low, cfg.mask_product_high),
        "veto": _outside(lowest, cfg.mask_veto, None),
    }
    masked = found["geometric"] | found["product"] | found["veto"]
    shares = {name: masked_mean(out.astype(product.dtype), there) for name, out in (found | {"": masked}).items()}
    return masked, {f"sequence_masked_{name}".rstrip("_"): share for name, share in shares.items()}


def _outside(log_values: Float[Array, " B"], low: float | None, high: float | None) -> Bool[Array, " B"]:
    """Return whether exp(log_values) is outside [low, high], compared as logs: a product over 32k tokens overflows."""
    below = log_values < (math.log(low) if low else -math.inf)
    return below | (log_values > (math.inf if high is None else math.log(high)))
