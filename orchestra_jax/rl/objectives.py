"""The pure functions of the update, before `rl.learner` compiles them: objectives, accumulation, the optimizer step."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from orchestra_jax.models.base import Params
from orchestra_jax.rl.batching import MicroBatch
from orchestra_jax.rl.losses import LossConfig, masked_percentiles, policy_loss


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything the optimizer step changes."""

    params: PyTree[Array]  # the policy, or with LoRA its adapters
    opt_state: PyTree[Any]
    step: Array  # optimizer steps done, int32


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Normalisers:
    """Divisors of a whole batch's sums, so that its micro-batches add up to it.

    The entropy bonus is over tokens, whatever the aggregation: a mean per token does not grow with length.
    """

    policy: Any  # of the policy term (or the only term): tokens, sequences or the constant of the aggregation
    kl: Any  # the same for the KL, over the rows that carry it
    tokens: Any  # tokens that carry the entropy bonus


@dataclass(frozen=True)
class LearnerConfig:
    """Settings that are compiled into the update.

    Attributes:
        loss: surrogate, clipping, KL and importance correction.
        entropy_coef: weight of the entropy bonus.
        temperature: sampling temperature of the rollouts, at which the learner computes log-probs too.
        chunk: tokens of a batch shard whose logits exist at once; None for all, as in supervised steps on <= 4096 ids.
        vocab_block: ids whose logits exist at once; None for all, which a head split over devices needs.
        own_old: take `old` from the policy that is differentiated, not from the batch. On the only update of a batch
            both are the same, and this needs no pass of its own; two compiled programs may round differently.
        count_all: rows without advantage count in the mean of the policy term.
    """

    loss: LossConfig
    entropy_coef: float = 0.0
    temperature: float = 1.0
    chunk: int | None = None
    vocab_block: int | None = None
    own_old: bool = False
    count_all: bool = True


def init_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """Return the state before the first step, on `params` themselves; moments are fp32 whatever the parameters are."""
    masters = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.float32), params)
    return TrainState(params, optimizer.init(masters), jnp.zeros((), jnp.int32))


def policy_objective(
    cfg: LearnerConfig,
    logprobs: Float[Array, "N L"],
    entropy: Float[Array, "N L"],
    batch: MicroBatch,
    normalisers: Normalisers,
    kl_scale: Float[Array, ""],
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Return a micro-batch's part of the loss (policy term, `kl_scale` times KL, entropy bonus), and its metrics."""
    old = jax.lax.stop_gradient(logprobs) if cfg.own_old else batch.old_logprobs
    loss, metrics = policy_loss(
        logprobs,
        old,
        batch.advantages,
        batch.mask,
        cfg.loss,
        rollout_logprobs=batch.rollout_logprobs,
        ref_logprobs=batch.ref_logprobs if cfg.loss.kl_coef else None,
        denominator=normalisers.policy,
        kl_denominator=normalisers.kl,
        kl_scale=kl_scale,
        share=batch.share,
        other_log_ratios=batch.other_log_ratios,
    )
    tokens = jnp.maximum(batch.mask.sum(), 1.0)
    # On the first update of a step nothing has changed yet: the gap is that between learner and engine.
    difference = jax.lax.stop_gradient(logprobs - batch.rollout_logprobs)
    gap = jnp.abs(difference) * batch.mask
    lowest, highest = masked_percentiles(jnp.exp(difference), batch.mask > 0, (1, 99))
    metrics |= {"mismatch_mean": gap.sum() / tokens, "mismatch_max": gap.max()}
    metrics |= {"importance_p01": lowest, "importance_p99": highest}
    # One number a sequence: the figures of a whole batch are computed from those of all its micro-batches.
    metrics |= {"sequence_log_ratios": (difference * batch.mask).sum(1), "sequence_tokens": batch.mask.sum(1)}
    if cfg.entropy_coef:
        loss = loss - cfg.entropy_coef * entropy.sum() / normalisers.tokens
    return loss, dict(metrics) | {"loss": loss, "entropy": entropy.sum() / tokens}


def supervised_objective(
    logprobs: Float[Array, "N L"], batch: MicroBatch, normalisers: Normalisers
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Return a micro-batch's part of the mean negative log-likelihood, and its metrics; advantages are weights."""
    loss = -(logprobs * batch.mask * batch.advantages[:, None]).sum() / normalisers.policy
    return loss, {"loss": loss}


Sums = tuple[PyTree[Array], Array]  # gradients and loss of the micro-batches so far, fp32


def zero_sums(params: PyTree[jax.ShapeDtypeStruct]) -> Sums:
    """Return the sums before the first micro-batch."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params), jnp.zeros((), jnp.float32)


def accumulate(
    objective: Callable[..., tuple[Array, dict[str, Array]]],
) -> Callable[..., tuple[Sums, dict[str, Array]]]:
    """Return a function, named like the objective, that adds its gradients and loss to sums and returns its metrics."""

    def add(sums: Sums, params: PyTree[Array], *others: Any) -> tuple[Sums, dict[str, Array]]:
        grads, metrics = jax.grad(objective, has_aux=True)(params, *others)
        return (jax.tree.map(jnp.add, sums[0], grads), sums[1] + metrics["loss"]), metrics

    add.__name__ = objective.__name__
    return add


def apply_gradients(
    optimizer: optax.GradientTransformation, state: TrainState, sums: Sums
) -> tuple[TrainState, dict[str, Array]]:
    """Take an optimizer step; where the loss or the gradient is not finite, return the old state, bit for bit."""
    grads, loss = sums
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    if any(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(state.params)):
        from orchestra_jax.rl.bfloat16_moments import exact_in_bfloat16

        updates = exact_in_bfloat16(updates, state.params, state.step)
    params = optax.apply_updates(state.params, updates)
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm) & jnp.isfinite(loss)
    # A select and not a branch: the old state's buffers are reused either way.
    new = jax.tree.map(functools.partial(jnp.where, finite), TrainState(params, opt_state, state.step + 1), state)
    update_norm = jnp.where(finite, optax.tree.norm(updates), 0.0)
    return new, {"grad_norm": norm, "update_norm": update_norm, "skipped": 1.0 - finite}
