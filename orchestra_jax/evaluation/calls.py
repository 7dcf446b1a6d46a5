"""Figures of the calls of a policy: which models it asks (Fig. 3), what several calls gain, and how varied calls are.

A model is a tool of a catalogue named "role/model", or one whose name begins with "expert", as simulated experts do.
The strongest model of a menu has the dearest output tokens by the instance's price list; where no model has such a
price, the dearest call.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestra_jax.envs.base import said
from orchestra_jax.types import HAND_IN, Status, Task, ToolResult, Trajectory

OUTPUT_USD, CALL_USD = "output_usd", "call_usd"  # dollars per million output tokens, and per call

ModelPrices = Mapping[str, Mapping[str, float]]  # by model ("generalist/gpt-5"): {OUTPUT_USD or CALL_USD: dollars}


def counted(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the trajectories that did not fail for infrastructure reasons, which figures are means of."""
    return [trajectory for trajectory in trajectories if trajectory.status is not Status.FAILED]


def is_model(tool: str) -> bool:
    """Return whether a tool is a model."""
    return "/" in tool or tool.startswith("expert")


def called_tool(name: str, arguments: Mapping[str, Any], keys: Mapping[str, str]) -> str:
    """Return the tool that a call is for: behind an alias of the menu, or the model that an argument names.

    `keys` has the tool behind every name of the menu; it is empty where names are tools.
    """
    return keys.get(str(arguments.get("model")), keys.get(name, name))


def called_tools(trajectory: Trajectory) -> list[str]:
    """Return the tools of all executed calls, in order."""
    keys = trajectory.task.extra.get("instance", {}).get("tools", {})
    return [called_tool(call.name, call.arguments, keys) for call in trajectory.calls]


def offered_models(task: Task) -> dict[str, dict[str, float]]:
    """Return the models on a task's menu with their prices; an unknown price is left out."""
    output_usd = task.extra.get("instance", {}).get(OUTPUT_USD, {})
    call_usd = {spec.name: spec.price_usd for spec in task.tools}
    found: dict[str, dict[str, float]] = {}
    for name, key in _menu(task).items():
        if is_model(key):
            prices = {OUTPUT_USD: output_usd.get(key), CALL_USD: call_usd.get(name)}
            found[key] = {unit: usd for unit, usd in prices.items() if usd is not None}
    return found


def _menu(task: Task) -> Mapping[str, str]:
    """Return the tool behind every name of the menu."""
    return task.extra.get("instance", {}).get("tools") or {spec.name: spec.name for spec in task.tools}


def strongest_models(offered: ModelPrices) -> set[str]:
    """Return the dearest models, several if they cost the same, none if no price is known."""
    for unit in (OUTPUT_USD, CALL_USD):
        if prices := {key: usd[unit] for key, usd in offered.items() if unit in usd}:
            return {key for key, usd in prices.items() if usd == max(prices.values())}
    return set()


@dataclass(frozen=True)
class ModelCalls:
    """Counts of calls of models."""

    count: int
    ranked: int  # on a menu whose strongest model is known
    strongest: int  # to the strongest model
    own: int | None  # to the policy's own kind (`model_family`); None if the policy's model is not known


def count_model_calls(called: Sequence[str], offered: ModelPrices, policy_model: str | None) -> ModelCalls:
    """Count the calls of models among the called tools of one trajectory."""
    models, top, own = [key for key in called if key in offered], strongest_models(offered), None
    if policy_model is not None:
        from orchestra_jax.evaluation.model_family import model_family  # only for a model that has a name

        own = sum(model_family(key.rpartition("/")[2]) == model_family(policy_model) for key in models)
    return ModelCalls(len(models), len(models) if top else 0, sum(key in top for key in models), own)


def model_figures(trajectories: Sequence[Trajectory], policy_model: str | None) -> dict[str, float | None]:
    """Return model_calls (a question), strongest_share and own_share, or nothing if no menu has a model."""
    runs = counted(trajectories)
    offers = [offered_models(t.task) for t in runs]
    if not any(offers):
        return {}
    found = [count_model_calls(called_tools(t), some, policy_model) for t, some in zip(runs, offers, strict=True)]
    count, ranked = sum(one.count for one in found), sum(one.ranked for one in found)
    known = policy_model is not None and count
    return {
        "model_calls": count / len(found),
        "strongest_share": sum(one.strongest for one in found) / ranked if ranked else None,
        "own_share": sum(one.own or 0 for one in found) / count if known else None,
    }


def several_figures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return `several`, the figures of questions with more than one executed call, or nothing if there is no call.

    Returns:
        share: of the questions, and share_by_family: of those of each kind. Where there is such a question, also
        first_silent: the share whose first call failed and said nothing. first_right, answer_right: the shares whose
        first result, and whose final answer, is right by exact match; the difference is the gain of the other calls.
        first_cost, cost: mean dollars for the first call, and for all of them.
    """
    runs = [(t, _executed(t)) for t in counted(trajectories)]
    if not any(results for _, results in runs):
        return {}
    several = [(t, results) for t, results in runs if len(results) > 1]
    by_family = {
        family: _mean([len(results) > 1 for t, results in runs if t.task.family == family])
        for family in sorted({t.task.family for t, _ in runs})
    }
    found: dict[str, Any] = {"share": len(several) / len(runs), "share_by_family": by_family}
    if several:
        firsts = [(t, said(some[0])) for t, some in several]
        found |= {
            "first_silent": _mean([first is None for _, first in firsts]),
            "first_right": _mean([_right(t, first) for t, first in firsts]),
            "answer_right": _mean([_right(t, t.answer) for t, _ in several]),
            "first_cost": _mean([_usd(some[:1]) for _, some in several]),
            "cost": _mean([_usd(some) for _, some in several]),
        }
    return {"several": found}


def _executed(trajectory: Trajectory) -> list[ToolResult]:
    """Return the results of the calls that were executed to find the answer, not to hand it in."""
    results = [result for turn in trajectory.turns for result in turn.results if not result.refused]
    return [result for result, tool in zip(results, called_tools(trajectory), strict=True) if tool not in HAND_IN]


def _right(trajectory: Trajectory, text: str | None) -> bool:
    from orchestra_jax.tools.answers import extract_answer, matches

    answers = trajectory.task.answer
    return text is not None and (matches(text, answers) or matches(extract_answer(text), answers))


def _usd(results: Sequence[ToolResult]) -> float:
    return sum(row.cost_usd for result in results for row in result.usage)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def tool_entropy(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the entropy of all executed calls in bits, and `entropy_share`, its share of log2 of the offered tools.

    It falls where a policy's calls collapse onto few tools. A call that only hands in the answer is no choice and does
    not count, nor do failed trajectories.
    """
    runs = counted(trajectories)
    called = Counter(name for t in runs for name in called_tools(t) if name not in HAND_IN)
    offered = {name for t in runs for name in _menu(t.task).values()}.difference(HAND_IN)
    if not called:
        return {}
    bits = sum(count / called.total() * math.log2(called.total() / count) for count in called.values())
    return {"entropy": bits, **({"entropy_share": bits / math.log2(len(offered))} if len(offered) > 1 else {})}
