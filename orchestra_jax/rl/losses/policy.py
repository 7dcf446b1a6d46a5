"""The loss of a batch: token losses, importance correction, KL to a reference, aggregation, and the metrics.

Axes: B sequences, T tokens. A row is one sequence: its ratio and its mean are taken over the row's masked tokens.
"""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from orchestra_jax.config.algorithm import LossConfig
from orchestra_jax.config.choices import KL, Aggregation, Importance
from orchestra_jax.rl.losses.base import LOSSES, LossInputs, aggregation_of

_MAX_LOG_RATIO = 20.0  # exp(20) is far outside every range and squares safely in float32


def kl_estimate(new: Float[Array, "B T"], ref: Float[Array, "B T"], kl: KL) -> Float[Array, "B T"]:
    """Per-token estimate of KL(new || ref) from tokens of the new policy, with d = ref - new.

    k1 = -d (unbiased; its own gradient is 0 in expectation), k2 = d^2 / 2, k3 = exp(d) - d - 1; d is held within
    [-20, 20] for k3.
    """
    d = ref - new
    if kl == KL.k1:
        return -d
    if kl == KL.k2:
        return d**2 / 2
    bounded = jnp.clip(d, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return jnp.exp(bounded) - bounded - 1


def _aggregate(
    values: Float[Array, "B T"], mask: Bool[Array, "B T"], cfg: LossConfig, denominator: Float[Array, ""] | float | None
) -> Float[Array, ""]:
    """Sum over tokens (or over each sequence's token mean), divided by the aggregation's normaliser."""
    kept = jnp.where(mask, values, 0.0)
    lengths = mask.sum(axis=-1)
    aggregation = aggregation_of(cfg)
    if aggregation is Aggregation.sequence:
        total, normaliser = (kept.sum(axis=-1) / jnp.maximum(lengths, 1)).sum(), (lengths > 0).sum()
    else:
        total, normaliser = kept.sum(), lengths.sum()
        if aggregation is Aggregation.constant:
            normaliser = jnp.asarray(mask.size if cfg.constant is None else cfg.constant)
    if denominator is not None:
        normaliser = jnp.asarray(denominator)
    return total / jnp.where(normaliser > 0, normaliser, 1)


def _masked_mean(values: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Float[Array, ""]:
    return jnp.where(mask, values, 0.0).sum() / jnp.maximum(mask.sum(), 1)


def masked_percentiles(
    values: Float[Array, "B T"], mask: Bool[Array, "B T"], percents: Sequence[float]
) -> tuple[Float[Array, ""], ...]:
    """`np.percentile(values[mask], percents)`, interpolated between neighbours; 0 where nothing is masked in."""
    last = jnp.maximum(mask.sum() - 1, 0)
    ordered = jnp.sort(jnp.where(mask, values, jnp.inf), axis=None)
    place = jnp.asarray(percents, ordered.dtype) / 100 * last
    below = jnp.floor(place).astype(jnp.int32)
    low, high = ordered[below], ordered[jnp.minimum(below + 1, last)]
    found = jnp.where(mask.any(), low + (high - low) * (place - below), 0.0)
    return tuple(found[index] for index in range(len(percents)))


def _importance_weights(
    old: Float[Array, "B T"], rollout: Float[Array, "B T"] | None, mask: Bool[Array, "B T"], cfg: LossConfig
) -> tuple[Float[Array, "B T"], dict[str, Float[Array, ""]]]:
    """Weights of the token losses, and how far the learner's and the rollout's log-probs are apart."""
    if rollout is None:
        if cfg.importance is not Importance.none:
            raise ValueError(f"importance={cfg.importance} needs rollout_logprobs: pass them or set importance=none.")
        return jnp.ones_like(old), {}
    floor, cap = cfg.importance_range
    raw = jnp.exp(jnp.clip(old - rollout, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    inside = (raw >= floor) & (raw <= cap)
    corrected, zeroed = raw, jnp.zeros_like(mask)
    if cfg.importance is Importance.tis:
        corrected = jnp.minimum(raw, cap)
    elif cfg.importance is Importance.icepop:
        corrected, zeroed = jnp.where(inside, raw, 0.0), mask & ~inside
    corrected = jnp.where(mask, corrected, 0.0)
    gap, squares = jnp.abs(old - rollout), (corrected**2).sum() * mask.sum()
    metrics = {
        "mismatch_mean": _masked_mean(gap, mask),
        "mismatch_max": jnp.where(mask, gap, 0.0).max(initial=0.0),
        "importance_ess": corrected.sum() ** 2 / jnp.where(squares > 0, squares, 1.0),
        "icepop_fraction": _masked_mean(zeroed.astype(raw.dtype), mask),
    }
    return (jnp.ones_like(raw) if cfg.importance is Importance.none else corrected), metrics


def _ratio_metrics(ratio: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> dict[str, Float[Array, ""]]:
    """Mean, maximum and percentiles of a ratio without gradient: the derivative of the sort need not be traced."""
    percentiles = masked_percentiles(ratio, mask, (1, 50, 99))
    return {
        "ratio_mean": _masked_mean(ratio, mask),
        "ratio_max": jnp.where(mask, ratio, 0.0).max(initial=0.0),
        **dict(zip(("ratio_p01", "ratio_p50", "ratio_p99"), percentiles, strict=True)),
    }


def _clean(values: Float[Array, "B T"], kept: Bool[Array, "B T"]) -> Float[Array, "B T"]:
    """At least float32, 0 where masked whatever stands there."""
    values = jnp.asarray(values)
    return jnp.where(kept, values.astype(jnp.promote_types(values.dtype, jnp.float32)), 0.0)


def _constant(values: Float[Array, "B T"], kept: Bool[Array, "B T"]) -> Float[Array, "B T"]:
    return jax.lax.stop_gradient(_clean(values, kept))


def policy_loss(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Float[Array, "B T"] | Float[Array, " B"],
    mask: Bool[Array, "B T"],
    cfg: LossConfig,
    *,
    rollout_logprobs: Float[Array, "B T"] | None = None,
    ref_logprobs: Float[Array, "B T"] | None = None,
    denominator: Float[Array, ""] | float | None = None,
    kl_scale: Float[Array, ""] | float = 1.0,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Loss to minimise, and its metrics; all arithmetic is at least float32.

    Per token: the loss that `cfg.loss` names (Eq. 4 for "sequence"), times the importance weight; then
    `kl_coef * KL(new || ref)` is added and `cfg.aggregation` applied. Only `logprobs` carry a gradient. Masked
    positions may hold anything, NaN included: they change nothing and their gradient is exactly 0, and a row or batch
    without a token adds 0.

    Args:
        logprobs: of the policy being trained, at the sampling temperature.
        old_logprobs: of the policy at the start of the step (the learner's own, or the rollout's).
        advantages: one per sequence, [B], or [B, T]; sequence-level losses expect them constant along a row.
        mask: tokens that the policy sampled and that carry loss.
        cfg: the loss.
        rollout_logprobs: the engine's log-probs; needed when `cfg.importance` is not "none", measured when given.
        ref_logprobs: of the reference policy; needed when `cfg.kl_coef` is not 0, measured when given.
        denominator: replaces the normaliser of the aggregation: the number of masked tokens for "token", of sequences
            with a masked token for "sequence", `cfg.constant` for "constant". Given the whole batch's figure, the
            losses and gradients of its micro-batches add up exactly to those of the batch.
        kl_scale: multiplies `cfg.kl_coef`; a schedule passes it, so that a new value compiles nothing.

    Returns:
        loss: scalar.
        metrics: scalars without gradient. All fractions, means, maxima and percentiles are over the masked tokens of
            this call. policy_loss; tokens, sequences (counts); ratio_mean, ratio_max, ratio_p01, ratio_p50, ratio_p99;
            clip_fraction_low / _high (ratio below / above the range where that stops the gradient: A < 0 / A > 0;
            cispo: at any A), clip_fraction_dual (a loss may have others); approx_kl (k3 estimate of KL(old || new)).
            With rollout_logprobs: mismatch_mean and mismatch_max of |old - rollout| in nats; importance_ess, (sum w)^2
            / (n sum w^2) in [0, 1] of the weights in use (of the plain w for "none"); icepop_fraction (tokens zeroed).
            With ref_logprobs: kl_ref (token mean of k3), kl_loss (before kl_coef).

    Raises:
        ConfigError: there is no loss of that name.
        ValueError: `rollout_logprobs` or `ref_logprobs` is missing for what `cfg` asks.
    """
    given = [values for values in (rollout_logprobs, ref_logprobs) if values is not None]
    chex.assert_rank(mask, 2)
    chex.assert_equal_shape([logprobs, old_logprobs, mask, *given])
    kept = jnp.asarray(mask).astype(bool)
    advantages = jnp.asarray(advantages)
    if advantages.ndim == 1:
        advantages = advantages[:, None]
    adv = _constant(jnp.broadcast_to(advantages, kept.shape), kept)
    new, old = _clean(logprobs, kept), _constant(old_logprobs, kept)

    found = LOSSES.get(cfg.loss).tokens(LossInputs(new, old, adv, kept, cfg))
    ratio = found.ratio
    rollout = None if rollout_logprobs is None else _constant(rollout_logprobs, kept)
    weight, metrics = _importance_weights(old, rollout, kept, cfg)
    objective = _aggregate(found.tokens * weight, kept, cfg, denominator)
    loss = objective
    if ref_logprobs is not None:
        ref = _constant(ref_logprobs, kept)
        kl_loss = _aggregate(kl_estimate(new, ref, cfg.kl), kept, cfg, denominator)
        loss = loss + cfg.kl_coef * kl_scale * kl_loss
        metrics |= {"kl_ref": _masked_mean(kl_estimate(new, ref, KL.k3), kept), "kl_loss": kl_loss}
    elif cfg.kl_coef != 0:
        raise ValueError(f"kl_coef={cfg.kl_coef} needs ref_logprobs: pass the reference's or set kl_coef to 0.")

    metrics |= {
        "policy_loss": objective,
        "tokens": kept.sum().astype(ratio.dtype),
        "sequences": kept.any(axis=-1).sum().astype(ratio.dtype),
        **_ratio_metrics(jax.lax.stop_gradient(ratio), kept),
        **{f"clip_fraction_{k}": _masked_mean(v.astype(ratio.dtype), kept) for k, v in found.clipped.items()},
        "approx_kl": _masked_mean(kl_estimate(old, new, KL.k3), kept),
    }
    return loss, jax.lax.stop_gradient(metrics)
