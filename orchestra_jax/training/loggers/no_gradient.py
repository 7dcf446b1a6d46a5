"""Tell that no group of a step, or of all steps, had a gradient, and why; loaded when there is such a step."""

from collections import Counter
from collections.abc import Iterator, Mapping

# What the figures of a step say, and what to change if all steps are like it.
_FIXES = {
    "every rollout failed for infrastructure reasons": "look at trajectories/ for what the tools and servers said",
    "the rewards within a group differed by less than algorithm.advantage.min_std": "lower "
    "algorithm.advantage.min_std, or weigh more of what differs in the rewards",
    "no rollout ended with an answer": "look at trajectories/ for how they ended, then raise warm_start.steps or "
    "rollout.limits.max_new_tokens, or start from a stronger model",
    "no rollout was right": "take easier questions, a larger algorithm.group_size, more warm_start.steps or a "
    "stronger model",
    "every rollout was right, and alike": "take harder questions, or preferences that weigh cost and time",
    "all rollouts of a group were right or all were wrong": "raise rollout.temperature or algorithm.group_size, or "
    "take questions that are neither too easy nor too hard",
}
_FAILED, _CLOSE, _INVALID, _WRONG, _RIGHT, _UNIFORM = _FIXES


def notes(step: int, metrics: Mapping[str, float], idle: list[str], start: int, total: int) -> Iterator[str]:
    """Yield why a step had no gradient; after the last step, if none had one, also what to change.

    Args:
        idle: reasons of the steps before it; this step's is added.
        start: steps done before this process.
        total: number of the last step.
    """
    why = reason(metrics)
    idle.append(why)
    yield f"Step {step}: no group had a gradient: {why}."
    if step == total and len(idle) == total - start:
        often, _ = Counter(idle).most_common(1)[0]
        of = f"from {start + 1} to {step}" if start else "of the run"
        yield (
            f"No step {of} had a gradient, so rewards have taught the policy nothing. As a rule {often}: "
            f"{_FIXES[often]}."
        )


def reason(metrics: Mapping[str, float]) -> str:
    """Return the likeliest reason why all groups of a step were dropped, from its figures."""
    if "accuracy" not in metrics:
        return _FAILED
    if metrics["reward/std"] > 1e-6:  # rounding
        return _CLOSE
    if not metrics["valid_rate"]:
        return _INVALID
    return {0.0: _WRONG, 1.0: _RIGHT}.get(metrics["accuracy"], _UNIFORM)
