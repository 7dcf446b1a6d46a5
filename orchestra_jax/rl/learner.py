"""The update: scores rows with the policy, differentiates a loss, accumulates micro-batches, takes an optimizer step.

Micro-batches are weighted by tokens (or sequences) of the whole batch, so accumulating them equals one large batch. The
same functions serve one device and a mesh of several processes.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from orchestra_jax.config.choices import Aggregation
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.decoder import abstract_params
from orchestra_jax.models.lora import LoRA, abstract_adapters
from orchestra_jax.models.sharding import ShardingRules, batch_sharding, param_shardings
from orchestra_jax.rl.batching import MicroBatch
from orchestra_jax.rl.distributed import agree_on_batches, batch_to_mesh, process_shards, tree_to_mesh
from orchestra_jax.rl.losses import aggregation_of
from orchestra_jax.rl.objectives import (
    LearnerConfig,
    Normalisers,
    TrainState,
    accumulate,
    apply_gradients,
    frozen_tree,
    init_state,
    model_tree,
    other_rows,
    policy_objective,
    score_logprobs,
    supervised_objective,
    zero_sums,
)
from orchestra_jax.rl.scoring import score_rows

__all__ = ["Learner", "LearnerConfig", "TrainState"]

# Traces of one compiled function: more shapes of micro-batches than any configuration has mean one that never repeats.
_MOST_TRACES = 64


class Learner:
    """Compiled functions of one policy: supervised and policy gradients over micro-batches, and the optimizer step.

    On a mesh, parameters, moments and gradients are sharded by `rules` and every micro-batch has one part for each of
    `shards` batch shards of this process. With several processes all call the same methods in the same order, each
    with the micro-batches of its own rows.

    Args:
        config: the policy's architecture.
        cfg: what the update computes.
        optimizer: from `make_optimizer`.
        mesh, rules: where arrays live; None: on the default device.
        adapters: train these adapters of a frozen base instead of the policy itself.

    Raises:
        ValueError: two processes would feed the same batch shard.
    """

    def __init__(
        self,
        config: DecoderConfig,
        cfg: LearnerConfig,
        optimizer: optax.GradientTransformation,
        *,
        mesh: Mesh | None = None,
        rules: ShardingRules | None = None,
        adapters: LoRA | None = None,
    ) -> None:
        self.config, self.cfg, self.optimizer, self.adapters = config, cfg, optimizer, adapters
        self.mesh, self.rules = mesh, rules or ShardingRules()
        self.shards = 1 if mesh is None else process_shards(mesh, self.rules)
        self._abstract_base = abstract_params(config)
        trained = self._abstract_base if adapters is None else abstract_adapters(config, adapters)
        self._abstract_state = jax.eval_shape(functools.partial(init_state, optimizer=optimizer), trained)

        state, grads, base, batch, scalar = self._shardings()
        params, frozen = (None if state is None else state.params), (base if adapters is not None else None)
        score = functools.partial(
            score_rows,
            config=config,
            temperature=cfg.temperature,
            chunk=cfg.chunk,
            vocab_block=cfg.vocab_block,
            mesh=mesh,
            rules=self.rules,
        )
        supervised_score = functools.partial(score, temperature=1.0, chunk=None)
        compute = functools.partial(model_tree, adapters)

        def jit(
            name: str, function: Callable[..., Any], inputs: Any, outputs: Any, donated: tuple[int, ...] = ()
        ) -> Any:
            def step(*args: Any) -> Any:
                return function(*args)

            step.__name__ = name
            counted = chex.assert_max_traces(step, _MOST_TRACES)
            if mesh is None:
                return jax.jit(counted, donate_argnums=donated)
            return jax.jit(counted, in_shardings=inputs, out_shardings=outputs, donate_argnums=donated)

        chex.clear_trace_counter()  # chex counts by name: what an earlier learner traced is not this one's
        sums = (grads, scalar)  # accumulated gradients and loss
        inputs, outputs = (sums, params, frozen, batch, scalar, scalar), (sums, scalar)
        policy = functools.partial(accumulate, functools.partial(policy_objective, cfg, score, compute))
        supervised = functools.partial(accumulate, functools.partial(supervised_objective, supervised_score, compute))
        self._policy = jit("policy", policy, inputs, outputs, (0,))
        self._supervised = jit("supervised", supervised, inputs, outputs, (0,))
        self._zeros = jit("zeros", functools.partial(zero_sums, self._abstract_state.params), (), sums)
        self._apply = jit("apply", functools.partial(apply_gradients, optimizer), (state, sums), (state, scalar), (0,))
        self._init = jit("init", functools.partial(init_state, optimizer=optimizer), (params,), state, (0,))
        self._score = jit("score", functools.partial(score_logprobs, score, compute), (params, frozen, batch), batch)
        self._others = jax.jit(other_rows, out_shardings=batch)
        self._score_reference = jit(
            "score_reference", functools.partial(score_logprobs, score, frozen_tree), (base, None, batch), batch
        )

    def init(self, params: Params, *, donate: bool = False) -> TrainState:
        """The state before the first step.

        Args:
            params: the policy, or with LoRA its adapters; jax or numpy arrays, cast to the stored dtype. They stay
                valid: the state has copies.
            donate: let the state take over the buffers of `params` instead.
        """
        placed = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), params, self._abstract_state.params)
        sharding = None if self.mesh is None else param_shardings(self.mesh, self.rules, placed, axes=self.config.axes)
        placed = tree_to_mesh(placed, sharding)
        if not donate:
            placed = jax.tree.map(jnp.copy, placed)
        return cast(TrainState, self._init(placed))

    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state: what a checkpoint is restored into, without a state beside it."""
        one = SingleDeviceSharding(jax.local_devices()[0])
        return cast(
            TrainState,
            jax.tree.map(
                lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
                self._abstract_state,
                jax.tree.map(lambda leaf: one, self._abstract_state) if self.mesh is None else self._shardings()[0],
            ),
        )

    def place_params(self, params: Params) -> Params:
        """A whole policy (a reference, a LoRA base) on the mesh in its own dtype; no copy where it already is there."""
        sharding = None if self.mesh is None else param_shardings(self.mesh, self.rules, params, axes=self.config.axes)
        return cast(Params, tree_to_mesh(params, sharding))

    def place(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """This process's micro-batches as arrays of the whole mesh.

        With several processes this is a collective: they agree on number and shapes, and empty micro-batches fill up.

        Raises:
            ValueError: a micro-batch was not made with shards=`self.shards`.
        """
        if self.mesh is None or (batches and all(isinstance(batch.select, jax.Array) for batch in batches)):
            return list(batches)
        if wrong := [batch.shards for batch in batches if batch.shards != self.shards]:
            raise ValueError(f"A micro-batch has {wrong[0]} part(s), this process feeds {self.shards} batch shard(s).")
        agreed = agree_on_batches(batches, self.shards)
        return [batch_to_mesh(batch, batch_sharding(self.mesh, self.rules)) for batch in agreed]

    def score(self, params: Params, batch: MicroBatch, *, base: Params | None = None) -> MicroBatch:
        """The batch with the learner's own log-probs as `old_logprobs`; several processes `place` it first."""
        (batch,) = self.place([batch])
        return dataclasses.replace(batch, old_logprobs=self._score(params, base, self._on_device(batch)))

    def score_reference(self, params: Params, batch: MicroBatch) -> MicroBatch:
        """The batch with the log-probs of a whole policy `params` as `ref_logprobs`.

        Args:
            params: any dtype, on the mesh or in host memory (`place_params` once where many batches follow).
        """
        (batch,) = self.place([batch])
        scored = self._score_reference(self.place_params(params), None, self._on_device(batch))
        return dataclasses.replace(batch, ref_logprobs=scored)

    def relate(self, params: Params, batches: Sequence[MicroBatch], *, base: Params | None = None) -> list[MicroBatch]:
        """The micro-batches of one optimizer step with `elsewhere`: what a trajectory's sequences have to know of each
        other for a ratio over all of it, once the policy is no longer the old one.
        """
        batches = [self._on_device(batch) for batch in self.place(batches)]
        others = self._others([self._score(params, base, batch) for batch in batches], batches)
        return [dataclasses.replace(batch, elsewhere=found) for batch, found in zip(batches, others, strict=True)]

    def policy_step(
        self,
        state: TrainState,
        batches: Sequence[MicroBatch],
        *,
        kl_scale: float = 1.0,
        base: Params | None = None,
    ) -> tuple[TrainState, Mapping[str, float]]:
        """One optimizer step on the policy loss over all micro-batches together; `state` is used up.

        Args:
            batches: of this process's rows; with a KL coefficient they hold the reference's log-probs.
            kl_scale: multiplies the KL coefficient.
            base: the frozen parameters under the adapters.

        The policy term and the KL are divided by what `LossConfig.aggregation` says of their rows, the entropy bonus by
        tokens. A "constant" that the config leaves open is sequences * sampled tokens of the longest of them, which no
        padding changes.

        Returns:
            The new state, and metrics: those of `policy_loss` with loss, entropy, grad_norm and update_norm;
            mismatch_mean and mismatch_max, importance_p01 and importance_p99, sequence_ess, sequence_product_* and
            sequence_geometric_* (percentiles) compare the policy before this step with the engine; skipped is 1 where
            the loss or the gradient was not finite, and then the state is the old one, bit for bit.

        Raises:
            ValueError: no micro-batch, or `base` is missing.
        """
        batches = self.place(batches)
        carrying = batches if self.cfg.count_all else [batch.with_advantage() for batch in batches]
        tokens = sum(batch.num_tokens for batch in batches)
        normalisers = Normalisers(self._normaliser(carrying), self._normaliser(batches), tokens)
        return self._step(self._policy, state, batches, base, normalisers, kl_scale)

    def supervised_step(
        self, state: TrainState, batches: Sequence[MicroBatch], *, base: Params | None = None
    ) -> tuple[TrainState, Mapping[str, float]]:
        """As `policy_step`, on the mean negative log-likelihood of the tokens that carry loss."""
        batches = self.place(batches)
        tokens = sum(batch.num_tokens for batch in batches)
        return self._step(self._supervised, state, batches, base, Normalisers(tokens, tokens, tokens), 0.0)

    def lowered(self, batch: MicroBatch) -> dict[str, jax.stages.Lowered]:
        """The gradient of one micro-batch and the optimizer step, lowered but not compiled; nothing is allocated.

        Args:
            batch: of `jax.ShapeDtypeStruct`s for the whole mesh (`BatchShape.abstract(shards)`). The mesh may be one
                of devices that are not there (`jax.experimental.topologies`).
        """
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        sums = (jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32), self._abstract_state.params), scalar)
        base = None if self.adapters is None else self._abstract_base
        normalisers = Normalisers(scalar, scalar, scalar)
        return {
            "gradients": self._policy.lower(sums, self._abstract_state.params, base, batch, normalisers, scalar),
            "update": self._apply.lower(self._abstract_state, sums),
        }

    def _shardings(self) -> tuple[Any, Any, Any, Any, Any]:
        """Of state, gradients, base, batch and scalars; None without a mesh."""
        if self.mesh is None:
            return None, None, None, None, None
        named = functools.partial(param_shardings, self.mesh, self.rules, axes=self.config.axes)
        params, opt_state = named(self._abstract_state.params), self._abstract_state.opt_state
        scalar = NamedSharding(self.mesh, PartitionSpec())
        state = TrainState(params, named(opt_state, replicate_others=True), scalar)  # type: ignore[arg-type]
        return state, params, named(self._abstract_base), batch_sharding(self.mesh, self.rules), scalar

    def _normaliser(self, batches: Sequence[MicroBatch]) -> float:
        """What the loss's aggregation divides by, for the tokens of these micro-batches that carry loss."""
        aggregation = aggregation_of(self.cfg.loss)
        if aggregation is Aggregation.token:
            return sum(batch.num_tokens for batch in batches)
        sequences = sum(batch.num_sequences for batch in batches)
        if aggregation is Aggregation.sequence:
            return sequences
        return self.cfg.loss.constant or sequences * max(batch.longest for batch in batches)

    def _step(
        self,
        gradients: Callable[..., Any],
        state: TrainState,
        batches: Sequence[MicroBatch],
        base: Params | None,
        normalisers: Normalisers,
        kl_scale: float,
    ) -> tuple[TrainState, Mapping[str, float]]:
        if not batches:
            raise ValueError("An optimizer step needs at least one micro-batch.")
        if (base is None) != (self.adapters is None):
            raise ValueError("Pass base=, the frozen parameters, when the learner has adapters, and only then.")
        scalars: Any = jax.tree.map(np.float32, (normalisers, kl_scale))
        whole = None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())
        scalars = tree_to_mesh(scalars, None if whole is None else jax.tree.map(lambda _: whole, scalars))
        sums, weights, found = self._zeros(), [], []
        for batch in batches:
            sums, metrics = gradients(sums, state.params, base, self._on_device(batch), *scalars)
            weights.append(batch.num_tokens)
            found.append(metrics)
        state, outcome = self._apply(state, sums)
        figures = {name: float(value) for name, value in jax.device_get(outcome).items()}
        return state, _combine(jax.device_get(found), weights) | figures

    def _on_device(self, batch: MicroBatch) -> MicroBatch:
        """The batch on the default device, where there is no mesh: only then may it still be in host memory."""
        return jax.device_put(batch) if self.mesh is None else batch


_SUMMED = frozenset({"loss", "policy_loss", "kl_loss", "tokens", "sequences"})


def _combine(found: Sequence[Mapping[str, np.ndarray]], weights: Sequence[float]) -> dict[str, float]:
    """Metrics of a batch from those of its micro-batches: sums for losses and counts, extremes for `max`, means over
    sequences for shares of sequences, else token means; a loss is already divided by the whole batch's normaliser. The
    mean of percentiles over tokens is near the batch's percentile, not equal to it: rows are sorted by length before
    they are cut into micro-batches.
    """
    combined = {}
    for name in found[0]:
        if np.ndim(found[0][name]):
            continue
        values = np.array([float(metrics[name]) for metrics in found])
        by_sequence = name.startswith("sequence_")
        if name in _SUMMED:
            combined[name] = float(values.sum())
        elif name.endswith("max"):
            combined[name] = float(values.max())
        else:
            counts = [float(metrics["sequences"]) for metrics in found] if by_sequence else weights
            combined[name] = float(np.average(values, weights=np.maximum(counts, 1e-9)))
    if "sequence_log_ratios" in found[0]:
        combined |= _sequence_figures(*(np.concatenate([metrics[name] for metrics in found]) for name in _PER_SEQUENCE))
    return combined


_PER_SEQUENCE = ("sequence_log_ratios", "sequence_tokens")


def _sequence_figures(log_ratios: np.ndarray, tokens: np.ndarray) -> dict[str, float]:
    """How far learner and engine are apart on whole sequences: the product of each one's ratios and their geometric
    mean, as percentiles over the sequences, and the effective share of the sequences if the product weighed them.
    """
    log_ratios, tokens = log_ratios[tokens > 0].astype(np.float64), tokens[tokens > 0]
    if not len(tokens):
        return {}
    relative = np.exp(log_ratios - log_ratios.max())  # the share does not depend on a common factor
    figures = {"sequence_ess": float(relative.sum() ** 2 / (len(relative) * (relative**2).sum()))}
    for name, logs in (("product", log_ratios), ("geometric", log_ratios / tokens)):
        for percent in (1, 50, 99):
            figures[f"sequence_{name}_p{percent:02d}"] = float(np.exp(np.clip(np.percentile(logs, percent), -700, 700)))
    return figures
