"""The pure functions of the update, before `rl.learner` compiles them: objectives, accumulation, the optimizer step."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from orchestra_jax.models.base import Params
from orchestra_jax.models.lora import LoRA, attach
from orchestra_jax.rl.batching import MicroBatch
from orchestra_jax.rl.losses import LossConfig, masked_percentiles, policy_loss


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything the optimizer step changes.

    Attributes:
        params: the policy, or with LoRA its adapters.
        opt_state: of the optax optimizer.
        step: optimizer steps done, int32.
    """

    params: PyTree[Array]
    opt_state: PyTree[Any]
    step: Array


def init_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step, on `params` themselves; moments are fp32 whatever the parameters are."""
    masters = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.float32), params)
    return TrainState(params, optimizer.init(masters), jnp.zeros((), jnp.int32))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Normalisers:
    """What the sums of a whole batch are divided by, so that its micro-batches add up to it.

    Attributes:
        policy: for the policy term (or the only one): tokens, sequences or the constant of the aggregation in force.
        kl: the same for the KL, over the rows that carry it.
        tokens: tokens that carry the entropy bonus, whatever the aggregation: a mean per token does not grow with
            length.
    """

    policy: Any
    kl: Any
    tokens: Any


@dataclass(frozen=True)
class LearnerConfig:
    """What is compiled into the update.

    Attributes:
        loss: surrogate, clipping, KL and importance correction.
        entropy_coef: weight of the entropy bonus.
        temperature: of the rollouts; the learner scores at the same.
        chunk: tokens of a batch shard whose logits exist at once; None for all.
        vocab_block: ids whose logits exist at once; None for all, which a head split over devices needs.
        own_old: take `old` to be the policy that is differentiated, not the batch's: the same on the only update of a
            batch, without a pass to score it, and exact, while two compiled programs may round differently.
        count_all: rows without advantage count in the mean of the policy term.
    """

    loss: LossConfig
    entropy_coef: float = 0.0
    temperature: float = 1.0
    chunk: int | None = None
    vocab_block: int | None = None
    own_old: bool = False
    count_all: bool = True


def frozen_tree(params: Params, base: None) -> Params:
    return params


def model_tree(adapters: LoRA | None, params: PyTree[Array], base: Params | None) -> Params:
    """The tree that the model runs, from what is trained and what is frozen."""
    return params if adapters is None or base is None else attach(base, params, adapters)


def score_logprobs(
    score: Callable[..., Any],
    compute: Callable[..., Params],
    params: PyTree[Array],
    base: Params | None,
    batch: MicroBatch,
) -> Float[Array, "N L"]:
    return score(compute(params, base), batch=batch)[0]


def other_rows(scored: list[Float[Array, "N L"]], batches: list[MicroBatch]) -> list[Float[Array, " N"]]:
    """`MicroBatch.elsewhere` of every micro-batch, from the current log-probs of all of them."""
    own = [((new - batch.old_logprobs) * batch.mask).sum(1) for new, batch in zip(scored, batches, strict=True)]
    values, numbers = jnp.concatenate(own), jnp.concatenate([batch.trajectory for batch in batches])
    total = jnp.where(numbers[:, None] == numbers, values, 0.0).sum(1)
    forked = jnp.concatenate([batch.share for batch in batches]) < 1
    others = jnp.where(forked, total - values, 0.0)
    ends = list(itertools.accumulate(len(part) for part in own))
    return jnp.split(others, ends[:-1])


def policy_objective(
    cfg: LearnerConfig,
    score: Callable[..., tuple[Array, Array]],
    compute: Callable[..., Params],
    params: PyTree[Array],
    base: Params | None,
    batch: MicroBatch,
    normalisers: Normalisers,
    kl_scale: Array,
) -> tuple[Array, dict[str, Array]]:
    logprobs, entropy = score(compute(params, base), batch=batch)
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
        elsewhere=batch.elsewhere,
    )
    tokens = jnp.maximum(batch.mask.sum(), 1.0)
    # On the first update of a step nothing has changed yet: the gap is that between learner and engine.
    difference = jax.lax.stop_gradient(logprobs - batch.rollout_logprobs)
    gap = jnp.abs(difference) * batch.mask
    lowest, highest = masked_percentiles(jnp.exp(difference), batch.mask > 0, (1, 99))
    metrics |= {"mismatch_mean": gap.sum() / tokens, "mismatch_max": gap.max()}
    metrics |= {"importance_p01": lowest, "importance_p99": highest}
    # Of every sequence, so that the batch's figures can be had from those of its micro-batches.
    metrics |= {"sequence_log_ratios": (difference * batch.mask).sum(1), "sequence_tokens": batch.mask.sum(1)}
    if cfg.entropy_coef:
        loss = loss - cfg.entropy_coef * entropy.sum() / normalisers.tokens
    return loss, dict(metrics) | {"loss": loss, "entropy": entropy.sum() / tokens}


def supervised_objective(
    score: Callable[..., tuple[Array, Array]],
    compute: Callable[..., Params],
    params: PyTree[Array],
    base: Params | None,
    batch: MicroBatch,
    normalisers: Normalisers,
    kl_scale: Array,
) -> tuple[Array, dict[str, Array]]:
    logprobs, _ = score(compute(params, base), batch=batch)
    loss = -(logprobs * batch.mask).sum() / normalisers.policy
    return loss, {"loss": loss}


Sums = tuple[PyTree[Array], Array]  # gradients and loss of the micro-batches so far, fp32


def zero_sums(params: PyTree[jax.ShapeDtypeStruct]) -> Sums:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params), jnp.zeros((), jnp.float32)


def accumulate(
    objective: Callable[..., tuple[Array, dict[str, Array]]], sums: Sums, params: PyTree[Array], *args: Any
) -> tuple[Sums, dict[str, Array]]:
    grads, metrics = jax.grad(objective, has_aux=True)(params, *args)
    return (jax.tree.map(jnp.add, sums[0], grads), sums[1] + metrics["loss"]), metrics


def apply_gradients(
    optimizer: optax.GradientTransformation, state: TrainState, sums: Sums
) -> tuple[TrainState, dict[str, Array]]:
    grads, loss = sums
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm) & jnp.isfinite(loss)
    # A select and not a branch: the old state's buffers are reused either way.
    new = jax.tree.map(functools.partial(jnp.where, finite), TrainState(params, opt_state, state.step + 1), state)
    update_norm = jnp.where(finite, optax.tree.norm(updates), 0.0)
    return new, {"grad_norm": norm, "update_norm": update_norm, "skipped": 1.0 - finite}
