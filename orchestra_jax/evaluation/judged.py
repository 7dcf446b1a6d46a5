"""Comparison of a judge's verdicts with exact match, over trajectories whose answers a judge was asked about."""

from collections.abc import Sequence
from typing import Any

from orchestra_jax.tools.answers import extract_answer, matches
from orchestra_jax.types import Trajectory


def judge_figures(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return how far a judge and exact match differ, and judge_cost, dollars a question for the judge.

    A judge that is asked only about answers that do not match, as in `envs.qa`, disagrees where it finds one right.
    Where judge_disagrees rises and exact_match does not, the policy persuades its judge.

    Returns:
        exact_match: accuracy by exact match alone. judged: share of the questions whose answer a judge was asked
        about. judge_disagrees: share of those whose verdict is not that of exact match. These three are missing where
        no answer was compared.
    """
    judged = list(filter(_was_judged, trajectories))
    cost = sum(r.cost_usd for t in trajectories for r in t.ledger if r.role == "judge") / len(trajectories)
    if not judged:
        return {"judge_cost": cost} if cost else {}
    return {
        "exact_match": sum(t.completed and _matches(t) for t in trajectories) / len(trajectories),
        "judged": len(judged) / len(trajectories),
        "judge_disagrees": sum(bool(t.solved) != _matches(t) for t in judged) / len(judged),
        "judge_cost": cost,
    }


def disagreements(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Return the answers on which a judge and exact match differ, to be read by a person."""
    return [
        {
            "id": t.task.id,
            "question": t.task.question,
            "reference": list(t.task.answer),
            "answer": t.answer,
            "judge": bool(t.solved),
            "exact_match": _matches(t),
        }
        for t in trajectories
        if _was_judged(t) and bool(t.solved) != _matches(t)
    ]


def _was_judged(trajectory: Trajectory) -> bool:
    # Where an environment has criteria, the judge is one of them and compares no answer with a reference.
    return trajectory.completed and not trajectory.criteria and any(row.role == "judge" for row in trajectory.ledger)


def _matches(trajectory: Trajectory) -> bool:
    return matches(extract_answer(trajectory.answer or ""), trajectory.task.answer)
