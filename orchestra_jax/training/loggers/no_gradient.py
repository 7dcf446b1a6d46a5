"""Tell why no group of a step had a gradient; loaded when there is such a step."""

from collections.abc import Mapping


def why(metrics: Mapping[str, float]) -> str:
    """Return the likeliest reason, by the step's own figures, and what to change where most steps are like it."""
    if "accuracy" not in metrics:
        return "every rollout failed for infrastructure reasons; experiments/view.py shows what tools and servers said"
    if metrics["reward/std"] > 1e-6:  # rounding
        return "rewards differed by less than algorithm.advantage.min_std; if most steps are so, lower it"
    if not metrics["valid_rate"]:
        return "no rollout ended with an answer; if most steps are so, raise warm_start.steps or max_new_tokens"
    if metrics["accuracy"] == 0:
        return "no rollout was right; if most steps are so, take easier questions or raise warm_start.steps"
    if metrics["accuracy"] == 1:
        return "every rollout was right, and alike; if most steps are so, take harder questions"
    return "each group was all right or all wrong; if most steps are so, raise rollout.temperature or the group size"
