"""What a plan assumes of a trajectory: its turns, and the sequences that they make of it."""

from orchestra_jax.config.choices import History
from orchestra_jax.config.schema import RunConfig


def turns(cfg: RunConfig) -> int:
    """Generations of the policy in a trajectory: a call in each but the last, if nothing else is said."""
    return min(cfg.plan.turns or cfg.plan.calls + 1, cfg.rollout.limits.max_turns)


def forks(cfg: RunConfig) -> int:
    """Sequences of a trajectory in the update: where earlier reasoning is dropped, a turn that thought ends one.

    `strip_thinking` keeps what was thought since the last user message, so its trajectories stay whole.
    """
    if cfg.rollout.history is not History.drop_thinking:
        return 1
    before = turns(cfg) - 1
    return 1 + (before if cfg.plan.thoughts is None else min(before, cfg.plan.thoughts))
