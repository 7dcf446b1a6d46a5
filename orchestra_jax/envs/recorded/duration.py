"""The time that a run of the small policy on recorded answers takes, told before it begins."""

from orchestra_jax.config.schema import WorldConfig

_MEASURED = "environment", "reader"
# Seconds, from runs of 2026-11-27 on one core each with 76 demonstrations and 1,824 rollouts a step, rounded up.
_START, _MAKING, _DEMONSTRATION, _ROLLOUT, _QUESTION = 60.0, 0.004, 0.0075, 0.007, 0.3


def duration(cfg: WorldConfig) -> str | None:
    """Return a sentence on the minutes of a training run; None for another policy, whose speed is not known.

    Args:
        cfg: of a training run also its steps and their sizes.
    """
    run = vars(cfg)
    if "steps" not in run or (cfg.model.tokenizer, cfg.model.preset) != _MEASURED:
        return None
    warm, group = cfg.warm_start, run["algorithm"].tasks_per_step * run["algorithm"].group_size
    made = warm.demonstrations if warm.steps else 0
    seconds = _START + _MAKING * made + _DEMONSTRATION * warm.steps * warm.batch_size + _ROLLOUT * run["steps"] * group
    return (
        f"Time: about {max(1, round(seconds / 60))} minutes on two cores for {warm.steps} supervised steps and "
        f"{run['steps']} of the policy, and {_QUESTION:g} seconds for each held-out question."
    )
