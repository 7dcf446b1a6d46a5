"""The ways to answer a question of the quickstart world, a tool for each step, and what each is worth to the user."""

from collections.abc import Callable
from itertools import product
from math import prod

from orchestra_jax.envs.quickstart.facts import CHANCES, RIVALS, original
from orchestra_jax.types import Task, ToolSpec

Plan = tuple[str, ...]  # tools in the order of the steps


def step_kinds(task: Task) -> tuple[str, ...]:
    """Return the kinds of the steps of a question."""
    return tuple(kind for kind, _ in task.extra["steps"])


def able_tools(task: Task, kind: str) -> list[ToolSpec]:
    """Return the tools of the menu that do a step of the kind."""
    return [spec for spec in task.tools if original(spec) in RIVALS[kind]]


def expected_utility(task: Task) -> dict[Plan, float]:
    """Return what every plan that can succeed is worth to the user, given all skills, prices and latencies.

    Success probability times P . features, where the features are those of Eq. 2 with one run of each plan as the
    group: the best share of each preferred tool, the lowest cost and the lowest latency count 1.
    """
    wish = task.preference
    plans = list(product(*(able_tools(task, kind) for kind in step_kinds(task))))

    def worth(weight: float, value: Callable[[tuple[ToolSpec, ...]], float]) -> list[float]:
        values = [value(plan) for plan in plans]
        low, high = min(values), max(values)
        return [weight * (each - low) / (high - low) if high > low else 0.0 for each in values]

    gains = [
        worth(wish.compute, lambda plan: -sum(spec.price_usd or 0.0 for spec in plan)),
        worth(wish.latency, lambda plan: -sum(spec.latency_s or 0.0 for spec in plan)),
    ]
    for name, weight in wish.tools.items():
        gains.append(worth(weight, lambda plan, name=name: sum(spec.name == name for spec in plan) / len(plan)))  # type: ignore[misc]
    return {
        tuple(spec.name for spec in plan): prod(CHANCES[original(spec)] for spec in plan) * (wish.outcome + sum(gained))
        for plan, *gained in zip(plans, *gains, strict=True)
    }


def best_plan(task: Task) -> Plan:
    """Return the plan with the highest expected utility for the user."""
    expected = expected_utility(task)
    return max(expected, key=expected.__getitem__)


def cheapest_sufficient(task: Task, threshold: float = 0.8) -> Plan:
    """Return the cheapest plan whose every tool succeeds with `threshold` or more, where there is such a tool."""

    def rank(spec: ToolSpec) -> tuple[bool, float, float]:
        return CHANCES[original(spec)] < threshold, spec.price_usd or 0.0, spec.latency_s or 0.0

    return tuple(min(able_tools(task, kind), key=rank).name for kind in step_kinds(task))
