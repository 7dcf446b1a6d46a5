"""The divisor of the "constant" aggregation where the config leaves it open."""

import dataclasses

from orchestra_jax.config.algorithm import AlgorithmConfig, LossConfig
from orchestra_jax.config.choices import History
from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits


def with_constant(algorithm: AlgorithmConfig, rollout: RolloutConfig) -> LossConfig:
    """Return the loss with its divisor: the sequences of an optimizer step times the longest response.

    It is that of Liu et al. 2025 (Dr. GRPO), whatever the rows' shapes and however many were filtered.
    """
    sequences = algorithm.tasks_per_step * algorithm.group_size / algorithm.minibatches
    constant = sequences * longest_response(rollout.limits, rollout.history)
    return dataclasses.replace(algorithm.loss, constant=constant)


def longest_response(limits: RolloutLimits, history: History = History.keep) -> int:
    """Return the tokens that one trajectory may sample: those of one sequence, or of a fork for every turn."""
    sampled = limits.max_turns * limits.max_new_tokens
    return min(limits.max_length, sampled) if history is History.keep else sampled
