"""The source of trajectories that the settings ask for."""

from typing import Any

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.rollout.source import RolloutSource


def rollout_source(
    algorithm: AlgorithmConfig, rollout: RolloutConfig, *rest: Any, steps: int | None = None
) -> RolloutSource:
    """Return the environment's own source, or the one that the settings ask for; all take these arguments."""
    own = getattr(rest[1].environment, "rollout_source", RolloutSource)  # `rest` begins with seed and collector
    if own is not RolloutSource or not (rollout.max_staleness or rollout.spare_groups or algorithm.refill):
        return own(algorithm, rollout, *rest)
    from orchestra_jax.rollout.ahead import StreamSource

    return StreamSource(algorithm, rollout, *rest, steps=steps)
