"""Ratios over all sequences of a trajectory that forked, whose rows lie in several micro-batches."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float

from orchestra_jax.models.base import Params
from orchestra_jax.rl.batching import MicroBatch
from orchestra_jax.rl.learner import Learner


def with_other_log_ratios(
    learner: Learner, params: Params, batches: Sequence[MicroBatch], *, base: Params | None = None
) -> list[MicroBatch]:
    """Return the micro-batches of one optimizer step with `other_log_ratios`, for the current policy.

    A ratio over all sequences of a trajectory needs them, once the policy is no longer the old one.
    """
    placed = learner.place(batches)
    if learner.sharding is None:
        placed = [jax.device_put(batch) for batch in placed]
    current = [learner.with_old_logprobs(params, batch, base=base).old_logprobs for batch in placed]
    others = _compiled(None if learner.sharding is None else learner.sharding.batch)(current, placed)
    return [dataclasses.replace(batch, other_log_ratios=r) for batch, r in zip(placed, others, strict=True)]


@functools.cache
def _compiled(sharding: NamedSharding | None) -> Any:
    return jax.jit(other_log_ratios, out_shardings=sharding)


def other_log_ratios(logprobs: list[Float[Array, "N L"]], batches: list[MicroBatch]) -> list[Float[Array, " N"]]:
    """Return `MicroBatch.other_log_ratios` for each micro-batch of an optimizer step.

    Args:
        logprobs: current log-probs of the policy for each micro-batch.
    """
    ratios = [((new - batch.old_logprobs) * batch.mask).sum(1) for new, batch in zip(logprobs, batches, strict=True)]
    own = jnp.concatenate(ratios)  # one number for each sequence of the step
    trajectory = jnp.concatenate([batch.trajectory for batch in batches])
    whole = jnp.where(trajectory[:, None] == trajectory, own, 0.0).sum(1)
    # Where a trajectory is one sequence, 0 exactly: rounding must not tell it from the first update.
    forked = jnp.concatenate([batch.share for batch in batches]) < 1
    others = jnp.where(forked, whole - own, 0.0)
    ends = np.cumsum([len(part) for part in ratios])
    return jnp.split(others, ends[:-1])
