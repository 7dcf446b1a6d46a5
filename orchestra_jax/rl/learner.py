"""The update: scores rows with the policy, differentiates a loss, accumulates micro-batches, takes an optimizer step.

Micro-batches are weighted by tokens (or sequences) of the whole batch, so accumulating them equals one large batch.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jaxtyping import Array, Float, PyTree

from orchestra_jax.models.logprobs import token_logprobs
from orchestra_jax.models.qwen3 import Params, Qwen3Config, forward, output_head
from orchestra_jax.rl.batching import MicroBatch
from orchestra_jax.rl.losses import LossConfig, policy_loss


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything the optimizer step changes.

    Attributes:
        params: the policy.
        opt_state: of the optax optimizer.
        step: optimizer steps done, int32.
    """

    params: PyTree[Array]
    opt_state: PyTree[Any]
    step: Array


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, with gradient clipping and a schedule.

    Attributes:
        name: "adamw", or "muon": orthogonalised momentum for matrices, Adam for the rest. A small policy that learns
            to copy from random weights needs about half as many steps with it.
        learning_rate: peak value.
        warmup_steps: linear warm-up from 0.
        schedule: "constant" | "linear" | "cosine"; the last two fall to `final_fraction` of the peak at `total_steps`.
        total_steps: length of the run in optimizer steps.
        max_grad_norm: global-norm clip.
    """

    learning_rate: float
    name: Literal["adamw", "muon"] = "adamw"
    warmup_steps: int = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    total_steps: int = 1
    final_fraction: float = 0.1
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.95
    max_grad_norm: float = 1.0


def learning_rate(cfg: OptimizerConfig) -> optax.Schedule:
    """Learning rate by optimizer step."""
    peak, rest = cfg.learning_rate, max(1, cfg.total_steps - cfg.warmup_steps)
    after = {
        "constant": lambda: optax.constant_schedule(peak),
        "linear": lambda: optax.linear_schedule(peak, peak * cfg.final_fraction, rest),
        "cosine": lambda: optax.cosine_decay_schedule(peak, rest, cfg.final_fraction),
    }[cfg.schedule]()
    if not cfg.warmup_steps:
        return after
    # Warm-up ends at the peak and its first step is not 0.
    warm = optax.linear_schedule(peak / cfg.warmup_steps, peak, cfg.warmup_steps)
    return optax.join_schedules([warm, after], [cfg.warmup_steps])


def make_optimizer(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Clip by global norm, then the configured optimizer."""
    rate = learning_rate(cfg)
    if cfg.name == "muon":
        update = optax.contrib.muon(rate, adam_b1=cfg.b1, adam_b2=cfg.b2, weight_decay=cfg.weight_decay)
    else:
        update = optax.adamw(rate, b1=cfg.b1, b2=cfg.b2, weight_decay=cfg.weight_decay)
    return optax.chain(optax.clip_by_global_norm(cfg.max_grad_norm), update)


def init_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step, which donates `params`: keep a copy where they serve as the reference too."""
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def score_rows(
    params: Params,
    config: Qwen3Config,
    batch: MicroBatch,
    *,
    temperature: float,
    chunk: int | None = None,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probs and entropies of the sampled tokens at the sampling temperature, 0 elsewhere.

    Shared prefixes run once; the rows continue their keys and values, through which gradients flow.

    Args:
        chunk: tokens whose logits exist at once; None for all.
    """
    rows, width = batch.tokens.shape
    past, past_lengths = None, None
    positions = jnp.broadcast_to(jnp.arange(width), (rows, width))
    if batch.prefix.shape[1]:
        prefix_positions = jnp.broadcast_to(jnp.arange(batch.prefix.shape[1]), batch.prefix.shape)
        _, kv = forward(params, config, batch.prefix, prefix_positions)
        past = jax.tree.map(lambda leaf: jnp.take(leaf, batch.prefix_row, axis=leaf.ndim - 4), kv)
        past_lengths = batch.prefix_lengths[batch.prefix_row]
        positions = positions + past_lengths[:, None]
    hidden, _ = forward(params, config, batch.tokens, positions, past=past, past_lengths=past_lengths)
    flat = hidden.reshape(rows * width, -1)
    targets = jnp.take(batch.tokens.reshape(-1), batch.select + 1, mode="clip")
    logprobs, entropy = token_logprobs(
        flat[batch.select], output_head(params, config), targets, temperature=temperature, chunk=chunk
    )

    def place(values: Array) -> Array:
        # Padding selects the last position; its target would lie one past the end and is dropped.
        return jnp.zeros(rows * width, values.dtype).at[batch.select + 1].set(values, mode="drop").reshape(rows, width)

    return place(logprobs), place(entropy)


@dataclass(frozen=True)
class LearnerConfig:
    """What is compiled into the update.

    Attributes:
        loss: surrogate, clipping, KL and importance correction.
        entropy_coef: weight of the entropy bonus.
        temperature: of the rollouts; the learner scores at the same.
        chunk: tokens whose logits exist at once.
    """

    loss: LossConfig
    entropy_coef: float = 0.0
    temperature: float = 1.0
    chunk: int | None = None


class Learner:
    """Compiled functions of one policy: supervised and policy gradients over micro-batches, and the optimizer step.

    Args:
        config: the policy's architecture.
        cfg: what the update computes.
        optimizer: from `make_optimizer`.
    """

    def __init__(self, config: Qwen3Config, cfg: LearnerConfig, optimizer: optax.GradientTransformation) -> None:
        self.config, self.cfg, self.optimizer = config, cfg, optimizer
        self._policy = jax.jit(functools.partial(_accumulate, functools.partial(_policy_objective, config, cfg)))
        self._supervised = jax.jit(functools.partial(_accumulate, functools.partial(_supervised_objective, config)))
        self._apply = jax.jit(functools.partial(_apply, optimizer), donate_argnums=0)
        self._score = jax.jit(
            functools.partial(score_rows, config=config, temperature=cfg.temperature, chunk=cfg.chunk)
        )

    def score(self, params: Params, batch: MicroBatch) -> MicroBatch:
        """The batch with the learner's own log-probs as `old_logprobs`."""
        return dataclasses.replace(batch, old_logprobs=self._score(params, batch=batch)[0])

    def policy_step(
        self, state: TrainState, batches: Sequence[MicroBatch], reference: Params | None, kl_scale: float = 1.0
    ) -> tuple[TrainState, Mapping[str, float]]:
        """One optimizer step on the policy loss over all micro-batches together.

        Args:
            reference: parameters of the KL's reference policy; unused without a KL coefficient.
            kl_scale: multiplies the KL coefficient.
        """
        aggregation = self.cfg.loss.resolved_aggregation
        if aggregation == "token":
            denominator = sum(batch.num_tokens for batch in batches)
        elif aggregation == "sequence":
            denominator = float(sum((batch.mask.sum(1) > 0).sum() for batch in batches))
        else:
            denominator = self.cfg.loss.constant or float(sum(batch.mask.size for batch in batches))
        extra = (np.float32(kl_scale), reference if self.cfg.loss.kl_coef else None)
        return self._step(self._policy, state, batches, denominator, extra)

    def supervised_step(
        self, state: TrainState, batches: Sequence[MicroBatch]
    ) -> tuple[TrainState, Mapping[str, float]]:
        """One optimizer step on the mean negative log-likelihood of the tokens that carry loss."""
        return self._step(self._supervised, state, batches, sum(batch.num_tokens for batch in batches), ())

    def _step(
        self,
        gradients: Callable[..., Any],
        state: TrainState,
        batches: Sequence[MicroBatch],
        denominator: float,
        extra: tuple[Any, ...],
    ) -> tuple[TrainState, Mapping[str, float]]:
        if not batches:
            raise ValueError("An optimizer step needs at least one micro-batch.")
        grads = jax.tree.map(jnp.zeros_like, state.params)
        weights, found = [], []
        for batch in batches:
            grads, metrics = gradients(grads, state.params, batch, np.float32(denominator), *extra)
            weights.append(batch.num_tokens)
            found.append(metrics)
        state, norms = self._apply(state, grads)
        return state, _combine(jax.device_get(found), weights) | {k: float(v) for k, v in norms.items()}


_SUMMED = frozenset({"loss", "policy_loss", "kl_loss", "tokens", "sequences"})


def _combine(found: Sequence[Mapping[str, np.ndarray]], weights: Sequence[float]) -> dict[str, float]:
    """Metrics of a batch from those of its micro-batches: sums for losses and counts, extremes for `max`, else token
    means; a loss is already divided by the whole batch's denominator.
    """
    combined = {}
    for name in found[0]:
        values = np.array([float(metrics[name]) for metrics in found])
        if name in _SUMMED:
            combined[name] = float(values.sum())
        elif name.endswith("max"):
            combined[name] = float(values.max())
        else:
            combined[name] = float(np.average(values, weights=np.maximum(weights, 1e-9)))
    return combined


def _policy_objective(
    config: Qwen3Config,
    cfg: LearnerConfig,
    params: Params,
    batch: MicroBatch,
    denominator: Array,
    kl_scale: Array,
    reference: Params | None,
) -> tuple[Array, dict[str, Array]]:
    logprobs, entropy = score_rows(params, config, batch, temperature=cfg.temperature, chunk=cfg.chunk)
    ref_logprobs = None
    if reference is not None:
        ref_logprobs, _ = score_rows(reference, config, batch, temperature=cfg.temperature, chunk=cfg.chunk)
        ref_logprobs = jax.lax.stop_gradient(ref_logprobs)
    loss, metrics = policy_loss(
        logprobs,
        batch.old_logprobs,
        batch.advantages,
        batch.mask,
        cfg.loss,
        rollout_logprobs=batch.rollout_logprobs,
        ref_logprobs=ref_logprobs,
        denominator=denominator,
        kl_scale=kl_scale,
    )
    tokens = jnp.maximum(batch.mask.sum(), 1.0)
    # On the first update of a step nothing has changed yet: the gap is that between learner and engine.
    gap = jax.lax.stop_gradient(jnp.abs(logprobs - batch.rollout_logprobs)) * batch.mask
    metrics |= {"mismatch_mean": gap.sum() / tokens, "mismatch_max": gap.max()}
    if cfg.entropy_coef:
        loss = loss - cfg.entropy_coef * entropy.sum() / denominator
    return loss, dict(metrics) | {"loss": loss, "entropy": entropy.sum() / tokens}


def _supervised_objective(
    config: Qwen3Config, params: Params, batch: MicroBatch, denominator: Array
) -> tuple[Array, dict[str, Array]]:
    logprobs, _ = score_rows(params, config, batch, temperature=1.0)
    loss = -(logprobs * batch.mask).sum() / denominator
    return loss, {"loss": loss}


def _accumulate(
    objective: Callable[..., tuple[Array, dict[str, Array]]],
    grads: PyTree[Array],
    params: Params,
    *args: Any,
) -> tuple[PyTree[Array], dict[str, Array]]:
    new, metrics = jax.grad(objective, has_aux=True)(params, *args)
    return jax.tree.map(jnp.add, grads, new), metrics


def _apply(
    optimizer: optax.GradientTransformation, state: TrainState, grads: PyTree[Array]
) -> tuple[TrainState, dict[str, Array]]:
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    norms = {"grad_norm": optax.tree.norm(grads), "update_norm": optax.tree.norm(updates)}
    return TrainState(params, opt_state, state.step + 1), norms
