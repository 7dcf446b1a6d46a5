"""The update: log-probs of rows, gradients of a loss over micro-batches, and the optimizer step, compiled.

The loss of every micro-batch is divided by a figure of the whole batch, such as all its tokens (`Learner._normaliser`),
so that their gradients add up to those of one large batch. `rl.mesh_learner` does the same on a mesh of devices.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array

from orchestra_jax.config.choices import Aggregation
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.decoder import abstract_params
from orchestra_jax.rl.batch_logprobs import batch_logprobs
from orchestra_jax.rl.batching import MicroBatch
from orchestra_jax.rl.losses import LOSSES, aggregation_of
from orchestra_jax.rl.objectives import (
    LearnerConfig,
    Normalisers,
    Sums,
    TrainState,
    accumulate,
    apply_gradients,
    init_state,
    policy_objective,
    supervised_objective,
    zero_sums,
)

if TYPE_CHECKING:  # needed with adapters, or on a mesh, only
    from orchestra_jax.models.lora import LoRA
    from orchestra_jax.models.sharding import MeshSharding

__all__ = ["Learner", "LearnerConfig", "TrainState"]

# Traces of one compiled function: more shapes of micro-batches than any configuration has mean one that never repeats.
_MOST_TRACES = 1024
_SMALL_VOCABULARY = 4096  # up to this, a supervised step holds the logits of all its tokens at once


class Learner:
    """Compiled functions of one policy: supervised and policy gradients over micro-batches, and the optimizer step.

    Everything is on the default device. With `adapters`, these adapters of a frozen base are trained instead of the
    policy itself.

    Attributes:
        shards: parts of every micro-batch of this process, one for each batch shard.
        sharding: the mesh that parameters and batches are split over; None here.
    """

    shards: int = 1
    sharding: "MeshSharding | None" = None

    def __init__(
        self,
        config: DecoderConfig,
        cfg: LearnerConfig,
        optimizer: optax.GradientTransformation,
        *,
        adapters: "LoRA | None" = None,
    ) -> None:
        self.config, self.cfg, self.optimizer, self.adapters = config, cfg, optimizer, adapters
        self._abstract_base = trained = abstract_params(config)
        if adapters is not None:
            from orchestra_jax.models.lora import abstract_adapters

            trained = abstract_adapters(config, adapters)
        self.state_shapes = jax.eval_shape(functools.partial(init_state, optimizer=optimizer), trained)
        self._compile()

    def _compile(self) -> None:
        """Wrap the functions of the update in `jax.jit`; each is compiled when it first runs."""
        cfg, optimizer = self.cfg, self.optimizer
        chunk = cfg.chunk if self.config.vocab_size > _SMALL_VOCABULARY else None

        def policy(params: Params, base: Params | None, batch: MicroBatch, *others: Any) -> Any:
            return policy_objective(cfg, *self._scores(params, base, batch), batch, *others)

        def supervised(params: Params, base: Params | None, batch: MicroBatch, normalisers: Normalisers) -> Any:
            logprobs, _ = self._scores(params, base, batch, temperature=1.0, chunk=chunk)
            return supervised_objective(logprobs, batch, normalisers)

        def zeros() -> Sums:
            return zero_sums(self.state_shapes.params)

        def apply(state: TrainState, sums: Sums) -> tuple[TrainState, dict[str, Array]]:
            return apply_gradients(optimizer, state, sums)

        def init(params: Params) -> TrainState:
            return init_state(params, optimizer)

        def logprobs(params: Params, base: Params | None, batch: MicroBatch) -> Array:
            return self._scores(params, base, batch)[0]

        def ref_logprobs(params: Params, batch: MicroBatch) -> Array:
            return self._scores(params, None, batch)[0]

        chex.clear_trace_counter()  # chex counts by name: what an earlier learner traced is not this one's
        self._policy = self._jit(accumulate(policy), donate=0)
        self._supervised = self._jit(accumulate(supervised), donate=0)
        self._zeros = self._jit(zeros)
        self._apply = self._jit(apply, donate=0)
        self._init = self._jit(init, donate=0)
        self._logprobs = self._jit(logprobs)
        self._ref_logprobs = self._jit(ref_logprobs)

    def _jit(self, function: Callable[..., Any], donate: int | None = None) -> Any:
        counted = chex.assert_max_traces(function, _MOST_TRACES)
        donated = () if donate is None else donate
        return jax.jit(counted, donate_argnums=donated, **self._shardings(function.__name__))

    def _shardings(self, name: str) -> Mapping[str, Any]:
        """Return jax.jit's in_shardings and out_shardings of a function of `_compile`; none on one device."""
        return {}

    def _scores(self, params: Params, base: Params | None, batch: MicroBatch, **settings: Any) -> tuple[Array, Array]:
        """Return log-probs and entropies of the policy: `params`, or `params` as adapters on `base`."""
        cfg = self.cfg
        if base is not None and self.adapters is not None:
            from orchestra_jax.models.lora import attach

            params = attach(base, params, self.adapters)
        settings = {"temperature": cfg.temperature, "chunk": cfg.chunk, "vocab_block": cfg.vocab_block} | settings
        return batch_logprobs(params, self.config, batch, sharding=self.sharding, **settings)

    # --- state, batches and log-probs on their devices ---

    def init(self, params: Params, *, donate: bool = False) -> TrainState:
        """Return the state before the first step on the policy, or on adapters, cast to the stored dtype.

        The state has copies of the jax or numpy arrays, or with `donate` takes over their buffers.
        """
        stored = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), params, self.state_shapes.params)
        placed = self.place_params(stored)
        if not donate:
            placed = jax.tree.map(jnp.copy, placed)
        return cast(TrainState, self._init(placed))

    def state_shardings(self) -> TrainState:
        """Return where each array of the state lies."""
        one = SingleDeviceSharding(jax.local_devices()[0])
        return cast(TrainState, jax.tree.map(lambda leaf: one, self.state_shapes))

    def place_params(self, params: Params) -> Params:
        """Put parameters (a reference, a LoRA base) on the devices in their dtype, without a copy of what is there."""
        return cast(Params, jax.tree.map(jax.device_put, params))

    def place(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Return this process's micro-batches as the step takes them; without a mesh (`MeshLearner`) as they are."""
        return list(batches)

    def _on_device(self, batch: MicroBatch) -> MicroBatch:
        """Put the batch, which may still be in host memory, on the device."""
        return cast(MicroBatch, jax.device_put(batch))

    def _place_scalars(self, scalars: tuple[Any, ...]) -> tuple[Any, ...]:
        return cast(tuple[Any, ...], jax.tree.map(lambda number: jax.device_put(np.float32(number)), scalars))

    def with_old_logprobs(self, params: Params, batch: MicroBatch, *, base: Params | None = None) -> MicroBatch:
        """Return the batch with the learner's own log-probs as `old_logprobs`; several processes `place` it first."""
        (batch,) = self.place([batch])
        return dataclasses.replace(batch, old_logprobs=self._logprobs(params, base, self._on_device(batch)))

    def with_ref_logprobs(self, params: Params, batch: MicroBatch, *, base: Params | None = None) -> MicroBatch:
        """Return the batch with the log-probs of the reference policy as `ref_logprobs`.

        It is whole, or with `base` adapters, in any dtype, on the devices or not (`place_params` once for all batches).
        """
        (batch,) = self.place([batch])
        given = self.place_params(params), self._on_device(batch)
        found = self._ref_logprobs(*given) if base is None else self._logprobs(given[0], base, given[1])
        return dataclasses.replace(batch, ref_logprobs=found)

    # --- optimizer steps ---

    def policy_step(
        self, state: TrainState, batches: Sequence[MicroBatch], *, kl_scale: float = 1.0, base: Params | None = None
    ) -> tuple[TrainState, Mapping[str, float]]:
        """Take one optimizer step on the policy loss over all micro-batches together; `state` is used up.

        Args:
            batches: micro-batches of this process's rows; with a KL coefficient they hold the reference's log-probs.
            kl_scale: multiplies the KL coefficient.
            base: the frozen parameters under the adapters; a ValueError where they are missing.

        The policy term and the KL are divided as `LossConfig.aggregation` says for their rows, the entropy bonus by
        tokens. Where the gradient of a trajectory is a sum over its tokens (loss "sequence"), both are also divided by
        the mean number of tokens, so that the gradient's norm does not grow with length. The aggregation "constant"
        divides by `LossConfig.constant`, which `rl.setup.learner_config` fills in for a run; a learner without one
        takes sequences * sampled tokens of the longest of them.

        Returns:
            The new state, and metrics: those of `policy_loss` with loss, entropy, grad_norm and update_norm;
            mismatch_mean and mismatch_max, importance_p01 and importance_p99, sequence_ess, sequence_product_* and
            sequence_geometric_* (percentiles) compare the policy before this step with the engine; skipped is 1 where
            the loss or the gradient was not finite, and then the state is the old one, bit for bit.
        """
        batches = self._ready(batches, base)
        policy = self._normaliser(batches if self.cfg.count_all else [batch.with_advantage() for batch in batches])
        tokens = sum(batch.num_tokens for batch in batches)
        normalisers = Normalisers(policy, self._normaliser(batches), tokens)
        return self._step(self._policy, state, batches, base, normalisers, kl_scale)

    def supervised_step(
        self, state: TrainState, batches: Sequence[MicroBatch], *, base: Params | None = None
    ) -> tuple[TrainState, Mapping[str, float]]:
        """Take one optimizer step on the mean negative log-likelihood of the tokens that carry loss, weighed by row.

        Arguments, result and errors are those of `policy_step`.
        """
        batches = self._ready(batches, base)
        tokens = sum(batch.num_tokens for batch in batches)
        return self._step(self._supervised, state, batches, base, Normalisers(tokens, tokens, tokens))

    def _normaliser(self, batches: Sequence[MicroBatch]) -> float:
        """Return the divisor of the loss's aggregation for the tokens of these micro-batches that carry loss."""
        aggregation, cfg = aggregation_of(self.cfg.loss), self.cfg.loss
        tokens = sum(batch.num_tokens for batch in batches)
        sequences = sum(batch.num_sequences for batch in batches)
        match aggregation:
            case Aggregation.token:
                divisor = tokens
            case Aggregation.sequence:
                divisor = sequences
            case Aggregation.constant:
                divisor = cfg.constant or sequences * max(batch.longest for batch in batches)
        return divisor * tokens / max(sequences, 1) if LOSSES.get(cfg.loss).sums_tokens else divisor

    def _ready(self, batches: Sequence[MicroBatch], base: Params | None) -> list[MicroBatch]:
        """Return the placed micro-batches of a step."""
        placed = self.place(batches)
        if not placed:
            raise ValueError("An optimizer step needs at least one micro-batch.")
        if (base is None) != (self.adapters is None):
            raise ValueError("Pass base=, the frozen parameters, when the learner has adapters, and only then.")
        return placed

    def _step(
        self, function: Any, state: TrainState, batches: Sequence[MicroBatch], base: Params | None, *scalars: Any
    ) -> tuple[TrainState, Mapping[str, float]]:
        """Take the optimizer step on all micro-batches; return the new state and their metrics together."""
        sums, found, scalars = self._zeros(), [], self._place_scalars(scalars)
        for batch in batches:
            sums, metrics = function(sums, state.params, base, self._on_device(batch), *scalars)
            found.append(metrics)
        state, outcome = self._apply(state, sums)
        figures = {name: float(value) for name, value in jax.device_get(outcome).items()}
        return state, _whole_batch(jax.device_get(found), [batch.num_tokens for batch in batches]) | figures


_SUMMED = frozenset({"loss", "policy_loss", "kl_loss", "tokens", "sequences"})


def _whole_batch(found: Sequence[Mapping[str, np.ndarray]], tokens: Sequence[float]) -> dict[str, float]:
    """Combine the metrics of micro-batches into those of the batch.

    Losses (already divided by the whole batch's normaliser) and counts are added, a maximum is the largest, shares of
    sequences are averaged over sequences, and all else over `tokens`. The mean of percentiles over tokens is near the
    batch's percentile, not equal to it: rows are sorted by length before they are cut into micro-batches.
    """
    combined = {}
    for name in found[0]:
        if np.ndim(found[0][name]):
            continue
        values = np.array([float(metrics[name]) for metrics in found])
        if name in _SUMMED:
            combined[name] = float(values.sum())
        elif name.endswith("max"):
            combined[name] = float(values.max())
        else:
            by_sequence = name.startswith("sequence_")
            weights = [float(metrics["sequences"]) for metrics in found] if by_sequence else tokens
            combined[name] = float(np.average(values, weights=np.maximum(weights, 1e-9)))
    if "sequence_log_ratios" in found[0]:
        log_ratios, counts = (
            np.concatenate([metrics[name] for metrics in found]) for name in ("sequence_log_ratios", "sequence_tokens")
        )
        combined |= _sequence_figures(log_ratios, counts)
    return combined


def _sequence_figures(log_ratios: np.ndarray, tokens: np.ndarray) -> dict[str, float]:
    """Return how far learner and engine are apart on whole sequences: percentiles and effective share."""
    log_ratios, tokens = log_ratios[tokens > 0].astype(np.float64), tokens[tokens > 0]
    if not len(tokens):
        return {}
    relative = np.exp(log_ratios - log_ratios.max())  # the share does not depend on a common factor
    figures = {"sequence_ess": float(relative.sum() ** 2 / (len(relative) * (relative**2).sum()))}
    for name, logs in (("product", log_ratios), ("geometric", log_ratios / tokens)):
        for percent in (1, 50, 99):
            figures[f"sequence_{name}_p{percent:02d}"] = float(np.exp(np.clip(np.percentile(logs, percent), -700, 700)))
    return figures
