"""Tell why no group of a step had a gradient; loaded when there is such a step."""

from collections.abc import Mapping


def why(metrics: Mapping[str, float]) -> str:
    """Return the likeliest reason, by the step's own figures, and what to change if all steps are like it."""
    if "accuracy" not in metrics:
        return "every rollout failed for infrastructure reasons; trajectories/ has what tools and servers said"
    if metrics["reward/std"] > 1e-6:  # rounding
        return "rewards of a group differed by less than algorithm.advantage.min_std; lower it, or weigh what differs"
    if not metrics["valid_rate"]:
        return "no rollout ended with an answer; more warm_start.steps or a larger rollout.limits.max_new_tokens helps"
    if metrics["accuracy"] == 0:
        return "no rollout was right; easier questions, larger groups or more warm_start.steps help"
    if metrics["accuracy"] == 1:
        return "every rollout was right, and alike; harder questions, or preferences for cost and time, teach more"
    return "all rollouts of a group were right or all were wrong; a higher rollout.temperature or larger groups help"
