"""The loss of a batch: token losses, importance correction, KL to a reference, aggregation, and the metrics.

KL and aggregation are here; `surrogates.clipped_surrogate` clips the ratio, `correction` weighs and masks. The settings
are those of `LossConfig`, and of `AlgorithmConfig` for the entropy bonus, the KL's fade and the rows that carry it.
Axes: B sequences, T tokens. A row is one sequence: its ratio and its mean are taken over the row's masked tokens, or
with `share` and `other_log_ratios` over those of all rows of its trajectory.

Metrics of `policy_loss`; fractions, means, maxima and percentiles are over masked tokens:
    policy_loss: the loss without the KL.
    tokens, sequences: counts.
    ratio_mean, ratio_max, ratio_p01, ratio_p50, ratio_p99: the ratio of new to old policy.
    clip_fraction_low, clip_fraction_high: tokens whose ratio is below / above the range where that stops the gradient
        (A < 0 / A > 0; cispo: at any A); clip_fraction_dual: tokens that the dual clip holds. A loss may have others.
    approx_kl: k3 estimate of KL(old || new).
    With rollout_logprobs: mismatch_mean and mismatch_max of |old - rollout| in nats; importance_ess, (sum w)^2 /
        (n sum w^2) in [0, 1] of the weights in use (of the plain w for "none"); icepop_fraction, tokens that icepop
        sets to 0; sequence_masked, the share of masked sequences, and by bound: _geometric, _product, _veto, which may
        overlap.
    With ref_logprobs: kl_ref, the token mean of k3; kl_loss, the KL before kl_coef.
"""

import chex
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from orchestra_jax.config.algorithm import LossConfig
from orchestra_jax.config.choices import KL, Aggregation, RatioLevel
from orchestra_jax.rl.losses.base import LOSSES, LossInputs, LossOutputs, aggregation_of
from orchestra_jax.rl.losses.masked import MAX_LOG_RATIO, gap_metrics, masked_mean, masked_percentiles

_OF_CORRECTIONS = ("icepop_fraction", *(f"sequence_masked{by}" for by in ("", "_geometric", "_product", "_veto")))


def kl_estimate(new: Float[Array, "B T"], ref: Float[Array, "B T"], kl: KL) -> Float[Array, "B T"]:
    """Estimate KL(new || ref) per token, from tokens of the new policy, with d = ref - new.

    k1 = -d (unbiased; its own gradient is 0 in expectation), k2 = d^2 / 2, k3 = exp(d) - d - 1; d is held within
    [-20, 20] for k3.

    >>> new, ref = jnp.array([[-1.0]]), jnp.array([[-2.0]])
    >>> [round(float(kl_estimate(new, ref, KL(kl))[0, 0]), 3) for kl in ("k1", "k2", "k3")]
    [1.0, 0.5, 0.368]
    """
    d = ref - new
    if kl == KL.k1:
        return -d
    if kl == KL.k2:
        return d**2 / 2
    bounded = jnp.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return jnp.exp(bounded) - bounded - 1


def _aggregate(
    values: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    cfg: LossConfig,
    denominator: Float[Array, ""] | float | None,
    share: Float[Array, "B 1"],
) -> Float[Array, ""]:
    """Return the sum over tokens (or over each trajectory's token mean), divided by the aggregation's normaliser."""
    kept = jnp.where(mask, values, 0.0)
    lengths = mask.sum(axis=-1)
    aggregation = aggregation_of(cfg)
    if aggregation is Aggregation.sequence:
        total = (kept.sum(axis=-1) / jnp.maximum(lengths, 1) * share[:, 0]).sum()
        normaliser = ((lengths > 0) * share[:, 0]).sum()
    else:
        total, normaliser = kept.sum(), lengths.sum()
        if aggregation is Aggregation.constant:
            normaliser = jnp.asarray(mask.size if cfg.constant is None else cfg.constant)
    if denominator is not None:
        normaliser = jnp.asarray(denominator)
    return total / jnp.where(normaliser > 0, normaliser, 1)


def _ratio_metrics(found: LossOutputs, mask: Bool[Array, "B T"]) -> dict[str, Float[Array, ""]]:
    """Return counts, the share of tokens that each clip holds, and mean, maximum and percentiles of the ratio."""
    ratio = jax.lax.stop_gradient(found.ratio)  # the derivative of the sort is not traced
    percentiles = masked_percentiles(ratio, mask, (1, 50, 99))
    return {
        "tokens": mask.sum().astype(ratio.dtype),
        "sequences": mask.any(axis=-1).sum().astype(ratio.dtype),
        **{f"clip_fraction_{k}": masked_mean(v.astype(ratio.dtype), mask) for k, v in found.clipped.items()},
        "ratio_mean": masked_mean(ratio, mask),
        "ratio_max": jnp.where(mask, ratio, 0.0).max(initial=0.0),
        **dict(zip(("ratio_p01", "ratio_p50", "ratio_p99"), percentiles, strict=True)),
    }


def _engine_weights(
    old: Float[Array, "B T"], rollout: Float[Array, "B T"] | None, mask: Bool[Array, "B T"], cfg: LossConfig
) -> tuple[Float[Array, "B T"] | float, dict[str, Float[Array, ""]]]:
    """Return the weights of the token losses, and metrics of the gap between learner and engine."""
    if cfg.corrects or cfg.importance_level is not RatioLevel.token:
        from orchestra_jax.rl.losses.correction import correction

        return correction(old, rollout, mask, cfg)
    if rollout is None:
        return 1.0, {}
    ratio = jnp.exp(jnp.clip(old - rollout, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    metrics = gap_metrics(old - rollout, jnp.where(mask, ratio, 0.0), mask)
    return 1.0, metrics | dict.fromkeys(_OF_CORRECTIONS, jnp.zeros((), old.dtype))


def _clean(values: Float[Array, "B T"], kept: Bool[Array, "B T"]) -> Float[Array, "B T"]:
    """Return the values in at least float32, and 0 where they are masked, whatever stands there."""
    values = jnp.asarray(values)
    return jnp.where(kept, values.astype(jnp.promote_types(values.dtype, jnp.float32)), 0.0)


def _constant(values: Float[Array, "B T"], kept: Bool[Array, "B T"]) -> Float[Array, "B T"]:
    return jax.lax.stop_gradient(_clean(values, kept))


def _column(given: Float[Array, " B"] | None, fill: float, mask: Bool[Array, "B T"]) -> Float[Array, "B 1"]:
    return jnp.full((len(mask), 1), fill) if given is None else jax.lax.stop_gradient(given)[:, None]


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
    kl_denominator: Float[Array, ""] | float | None = None,
    kl_scale: Float[Array, ""] | float = 1.0,
    share: Float[Array, " B"] | None = None,
    other_log_ratios: Float[Array, " B"] | None = None,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Return the loss to minimise, and its metrics; all arithmetic is at least float32.

    Per token: the loss that `cfg.loss` names (Eq. 4 for "sequence"), times the importance weight, 0 in a sequence that
    a mask of `cfg` takes out; then `kl_coef * KL(new || ref)` of the token (for "sequence": of its trajectory) is added
    and `cfg.aggregation` applied. Masked positions may hold anything, NaN included, and have no gradient.

    A sequence of two sampled tokens was better than its group (A = 1). Its first token has become twice as likely, and
    the clip at 1 + 0.28 holds it:

    >>> old, new = jnp.log(jnp.array([[0.25, 0.5]])), jnp.log(jnp.array([[0.5, 0.5]]))
    >>> loss, metrics = policy_loss(new, old, jnp.array([1.0]), jnp.array([[True, True]]), LossConfig("grpo"))
    >>> round(float(loss), 2), round(float(metrics["ratio_max"]), 2), float(metrics["clip_fraction_high"])
    (-1.14, 2.0, 0.5)

    Args:
        logprobs, old_logprobs, mask, share, other_log_ratios: see `LossInputs`; without `share` and `other_log_ratios`
            every row is a whole trajectory.
        advantages: one per sequence, [B], or [B, T]; sequence-level losses expect them constant along a row.
        rollout_logprobs: the engine's log-probs; needed when `cfg.corrects`, measured when given.
        ref_logprobs: the reference policy's log-probs; needed when `cfg.kl_coef` is not 0, measured when given.
        denominator: replaces the normaliser of the aggregation: the number of masked tokens for "token", of sequences
            with a masked token for "sequence", `cfg.constant` for "constant". Given the whole batch's figure, the
            losses and gradients of its micro-batches add up exactly to those of the batch.
        kl_denominator: the same for the KL, where it is over other rows than the policy term; None: `denominator`.
        kl_scale: multiplies `cfg.kl_coef`; a schedule passes it, so that a new value compiles nothing.

    Returns:
        loss, and metrics: scalars without gradient; the head of this module lists them.

    Raises:
        ConfigError, ValueError: no loss of that name; `rollout_logprobs` or `ref_logprobs` is missing where `cfg` asks.
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

    whole, others = _column(share, 1.0, kept), _column(other_log_ratios, 0.0, kept)
    chosen = LOSSES.get(cfg.loss)
    found = chosen.tokens(LossInputs(new, old, adv, kept, cfg, whole, others))
    rollout = None if rollout_logprobs is None else _constant(rollout_logprobs, kept)
    weight, metrics = _engine_weights(old, rollout, kept, cfg)
    loss = objective = _aggregate(found.tokens * weight, kept, cfg, denominator, whole)
    if ref_logprobs is not None:
        ref = _constant(ref_logprobs, kept)
        normaliser = denominator if kl_denominator is None else kl_denominator
        length = kept.sum(axis=-1, keepdims=True) / whole if chosen.sums_tokens else 1  # mean over tokens: their sum
        kl_loss = _aggregate(kl_estimate(new, ref, cfg.kl) * length, kept, cfg, normaliser, whole)
        loss = loss + cfg.kl_coef * kl_scale * kl_loss
        metrics |= {"kl_ref": masked_mean(kl_estimate(new, ref, KL.k3), kept), "kl_loss": kl_loss}
    elif cfg.kl_coef != 0:
        raise ValueError(f"kl_coef={cfg.kl_coef} needs ref_logprobs: pass the reference's or set kl_coef to 0.")

    metrics |= {"policy_loss": objective, **_ratio_metrics(found, kept)}
    metrics["approx_kl"] = masked_mean(kl_estimate(old, new, KL.k3), kept)
    return loss, jax.lax.stop_gradient(metrics)
