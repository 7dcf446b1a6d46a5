"""Update the policy: make micro-batches of trajectories and their advantages, and take all optimizer steps on them."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.choices import FilteredRows
from orchestra_jax.models.base import Params
from orchestra_jax.rl.batching import MicroBatch, MicroShapes, PackShapes, sequences
from orchestra_jax.rl.learner import Learner, TrainState
from orchestra_jax.rl.packing import policy_batches
from orchestra_jax.rl.setup import separate_old_pass
from orchestra_jax.types import Status, Trajectory


def update(
    algorithm: AlgorithmConfig,
    shapes: MicroShapes | PackShapes,
    learner: Learner,
    state: TrainState,
    trajectories: Sequence[Trajectory],
    advantages: Float[np.ndarray, " N"],
    *,
    kl_scale: float = 1.0,
    spans_rows: bool = False,
    base: Params | None = None,
    reference: Any = None,
    scored: list[MicroBatch] | None = None,
) -> tuple[TrainState, list[Mapping[str, float]]]:
    """Take the optimizer steps of one training step. `state` is used up.

    `batching.sequences` makes rows of trajectories, `packing.policy_batches` micro-batches of rows, and
    `Learner.policy_step` divides their losses by figures of all of them together. Every transfer between host and
    devices in here is explicit: jax.transfer_guard refuses the others, which would cost time in every step.

    Args:
        kl_scale: factor on loss.kl_coef in this step.
        spans_rows: True if the loss has one ratio over several rows of a trajectory (`rl.setup.ratio_spans_rows`).
        reference: policy of the KL, on the devices or in host memory: whole, or other adapters on `base`.
        scored: list that gets all micro-batches with the learner's own old log-probs, if the loss needs them.

    Returns:
        The new state and the metrics of every optimizer step, in order; none if no trajectory has a gradient.
    """
    with_kl = algorithm.loss.kl_coef * kl_scale > 0
    found: list[Mapping[str, float]] = []
    with jax.transfer_guard("disallow"):
        # One process may have no rows where another has some: a minibatch is skipped only if no process has any.
        minibatches = [
            placed
            for batches in _minibatches(algorithm, shapes, trajectories, advantages, learner.shards, with_kl=with_kl)
            if (placed := learner.place(batches))
        ]
        if separate_old_pass(algorithm):
            minibatches = [[learner.with_old_logprobs(state.params, b, base=base) for b in m] for m in minibatches]
            if scored is not None:
                scored += itertools.chain(*minibatches)
        if with_kl:
            frozen, on = learner.place_params(reference), None if reference is base else base
            minibatches = [[learner.with_ref_logprobs(frozen, b, base=on) for b in batches] for batches in minibatches]
            del frozen  # an offloaded one leaves the devices before the update
        positions = sum(batch.tokens.size + batch.prefix.size for batch in itertools.chain(*minibatches))
        shared = sum(int(jax.device_get(batch.repeated.sum())) for batch in itertools.chain(*minibatches))
        for number, batches in enumerate(minibatches * algorithm.epochs):
            if number and spans_rows:
                from orchestra_jax.rl.forks import with_other_log_ratios

                batches = with_other_log_ratios(learner, state.params, batches, base=base)
            state, metrics = learner.policy_step(state, batches, kl_scale=kl_scale, base=base)
            clipped = float(metrics["grad_norm"] > algorithm.optimizer.max_grad_norm)
            # The latter two of one epoch: places, padding included, and tokens that sequences share with another.
            own = {"clipped": clipped, "positions": positions, "shared": shared}
            found.append({k: v for k, v in metrics.items() if with_kl or k != "kl_ref"} | own)
    return state, found


def first_number() -> int:
    """Return the number that the first trajectory of this process has in micro-batches; shares may differ in size."""
    return jax.process_index() << 20


def _minibatches(
    algorithm: AlgorithmConfig,
    shapes: MicroShapes | PackShapes,
    trajectories: Sequence[Trajectory],
    advantages: Float[np.ndarray, " N"],
    shards: int,
    *,
    with_kl: bool,
) -> list[list[MicroBatch]]:
    """Return the micro-batches of each optimizer step of an epoch.

    A trajectory with advantage 0 has a gradient only through the KL (`with_kl`) or the entropy bonus. It is left out
    where there is neither, and where `filtered_rows` says so.
    """
    regularised = (with_kl or algorithm.entropy_coef > 0) and algorithm.filtered_rows is not FilteredRows.drop
    size = len(trajectories) // algorithm.minibatches
    minibatches = []
    for first in range(0, len(trajectories), size):
        part = zip(trajectories[first : first + size], advantages[first : first + size], strict=True)
        numbers = itertools.count(first_number() + first)  # nothing else of this step has them
        rows = [
            row
            for number, (trajectory, a) in zip(numbers, part, strict=False)
            if a != 0 or (regularised and trajectory.status is not Status.FAILED)
            for row in sequences(trajectory, float(a), number)
        ]
        minibatches.append(policy_batches(rows, shapes, shards) if rows else [])
    return minibatches
