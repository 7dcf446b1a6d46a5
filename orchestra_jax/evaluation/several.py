"""Whether several calls for one question pay: how often they are made, and what the first alone would have given."""

from collections.abc import Sequence
from typing import Any

from orchestra_jax.envs.baselines import said
from orchestra_jax.tools.answers import extract_answer, matches
from orchestra_jax.types import Status, ToolResult, Trajectory


def several_figures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Figures of the questions for which more than one call was executed, of those that did not fail.

    Returns:
        Nothing where no call was made at all, else `several` with
        share: of the questions, and share_by_family: of those of each kind. Where there are such questions besides
        first_silent: the share whose first call said nothing, as it failed.
        first_right, answer_right: the share of them whose first result, and whose final answer, is right by exact
        match; what the other calls gained is the difference.
        first_cost, cost: dollars for the first call, and for all of them.
    """
    counted = [(t, _results(t)) for t in trajectories if t.status is not Status.FAILED]
    if not any(results for _, results in counted):
        return {}
    several = [(t, results) for t, results in counted if len(results) > 1]
    by_family = {
        family: _mean([len(results) > 1 for t, results in counted if t.task.family == family])
        for family in sorted({t.task.family for t, _ in counted})
    }
    found: dict[str, Any] = {"share": len(several) / len(counted), "share_by_family": by_family}
    if several:
        firsts = [said(results[0]) for _, results in several]
        found |= {
            "first_silent": _mean([first is None for first in firsts]),
            "first_right": _mean([_right(t, first) for (t, _), first in zip(several, firsts, strict=True)]),
            "answer_right": _mean([_right(t, t.answer) for t, _ in several]),
            "first_cost": _mean([_usd(results[:1]) for _, results in several]),
            "cost": _mean([_usd(results) for _, results in several]),
        }
    return {"several": found}


def _results(trajectory: Trajectory) -> list[ToolResult]:
    return [result for turn in trajectory.turns for result in turn.results if not result.refused]


def _right(trajectory: Trajectory, text: str | None) -> bool:
    answers = trajectory.task.answer
    return text is not None and (matches(text, answers) or matches(extract_answer(text), answers))


def _usd(results: Sequence[ToolResult]) -> float:
    return sum(row.cost_usd for result in results for row in result.usage)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
