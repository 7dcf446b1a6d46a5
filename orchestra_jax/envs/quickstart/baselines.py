"""Policies written by hand that the trained one is compared with."""

from collections.abc import Callable, Mapping, Sequence

from orchestra_jax.envs.base import Script
from orchestra_jax.envs.quickstart.demonstrations import answer_from, random_tools, reference_call
from orchestra_jax.envs.quickstart.facts import EXPERTS, success_probability
from orchestra_jax.envs.quickstart.world import best_tool
from orchestra_jax.types import Task, ToolCall, ToolResult


def _one_call(choose: Callable[[Task], str]) -> Script:
    """Calls the chosen tool once and answers with what it says."""

    def script(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
        return answer_from(results) if results else reference_call(task, choose(task))

    return script


def strongest_expert(task: Task) -> str:
    """The largest expert on the menu, else the tool that is likeliest to be right."""
    offered = [spec.name for spec in task.tools if spec.name in EXPERTS]
    if offered:
        return max(offered, key=EXPERTS.index)
    return max(task.tools, key=lambda spec: success_probability(spec.name, task.family)).name


def cheapest_sufficient(task: Task, threshold: float = 0.8) -> str:
    """The cheapest tool that is right with at least `threshold` probability, else the one likeliest to be right."""
    able = [spec for spec in task.tools if success_probability(spec.name, task.family) >= threshold]
    if not able:
        return max(task.tools, key=lambda spec: success_probability(spec.name, task.family)).name
    return min(able, key=lambda spec: (spec.price_usd or 0.0, spec.latency_s or 0.0)).name


BASELINES: Mapping[str, Script] = {
    "random_tool": random_tools(0, calls=1),
    "strongest_expert": _one_call(strongest_expert),
    "cheapest_sufficient": _one_call(cheapest_sufficient),
    "preference_oracle": _one_call(best_tool),
}
