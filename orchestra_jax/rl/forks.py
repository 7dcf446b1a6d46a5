"""Ratios over all sequences of a trajectory that forked, whose rows lie in several micro-batches."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from orchestra_jax.rl.batching import MicroBatch


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
