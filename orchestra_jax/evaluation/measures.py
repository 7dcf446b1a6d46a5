"""Figures of a set of trajectories: accuracy, cost, latency, tool shares and preference utility."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orchestra_jax.evaluation.calls import called_tools, share_figures
from orchestra_jax.evaluation.intervals import Interval, bootstrap, wilson
from orchestra_jax.evaluation.pass_at_k import pass_figures
from orchestra_jax.rl.groups import group_arrays
from orchestra_jax.rl.rewards import ToolFeature, feature_matrix
from orchestra_jax.tools.answers import extract_answer, matches
from orchestra_jax.types import USER_ROLE, Status, Trajectory

MEANS = ("accuracy", "valid_rate", "cost", "cost_per_correct", "latency", "calls", "refused")


def intervals(trajectories: Sequence[Trajectory], samples: int = 1) -> dict[str, dict[str, Interval | None]]:
    """95 % intervals over the questions that did not fail: accuracy by Wilson and by bootstrap, means by bootstrap.

    Args:
        trajectories: the samples of a question side by side.
        samples: of each question. Several are resampled together, as one question's say less than as many questions;
            Wilson's interval, which knows no such thing, is left out.
    """
    questions = [some for some in _by_question(trajectories, samples) if some]
    sizes = [len(some) for some in questions]

    def resampled(figure: Callable[[Trajectory], float]) -> Interval | None:
        return bootstrap([float(np.mean([figure(t) for t in some])) for some in questions], weights=sizes)

    solved = sum(t.solved for some in questions for t in some)
    plain = {"wilson": wilson(solved, sum(sizes))} if samples == 1 else {}
    return {
        "accuracy": {**plain, "bootstrap": resampled(lambda t: float(t.solved))},
        "cost": {"bootstrap": resampled(lambda t: t.cost_usd)},
        "latency": {"bootstrap": resampled(lambda t: t.latency_s)},
    }


def _counted(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [t for t in trajectories if t.status is not Status.FAILED]


def _by_question(trajectories: Sequence[Trajectory], samples: int) -> list[list[Trajectory]]:
    return [_counted(trajectories[start : start + samples]) for start in range(0, len(trajectories), samples)]


def passes(trajectories: Sequence[Trajectory], samples: int) -> dict[str, dict[str, float | None]]:
    """`pass_figures` of trajectories in which the samples of a question stand side by side."""
    counts = [(len(some), sum(t.solved for t in some)) for some in _by_question(trajectories, samples)]
    return pass_figures(counts, samples)


def summarize(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    """Means over the trajectories that did not fail for infrastructure reasons, all samples of all questions alike.

    Returns:
        accuracy: share solved. valid_rate: share that ended with an answer in the right format.
        cost: dollars a question. cost_per_correct: dollars spent on all questions per solved one, None without any.
        latency: seconds a question. calls: executed tool calls a question. refused: calls a question that were not
            executed. failed: infrastructure failures, a count. counted: the others, of which all means are. Where a
            judge was asked, `judge_figures` too, and `user_figures` where somebody plays a user. Where a world has
            several criteria, criteria/NAME: the share of what was scored that meets it. Where every trajectory failed
            nothing is known: all means are None.

    Raises:
        ValueError: there is no trajectory.
    """
    if not trajectories:
        raise ValueError("No trajectory to summarise.")
    counted = _counted(trajectories)
    counts = {"failed": float(len(trajectories) - len(counted)), "counted": float(len(counted))}
    if not counted:
        return dict.fromkeys(MEANS) | counts
    cost, solved = sum(t.cost_usd for t in counted), sum(t.solved for t in counted)
    return (
        {
            "accuracy": solved / len(counted),
            "valid_rate": float(np.mean([t.valid for t in counted])),
            "cost": cost / len(counted),
            "cost_per_correct": cost / solved if solved else None,
            "latency": float(np.mean([t.latency_s for t in counted])),
            "calls": float(np.mean([len(t.calls) for t in counted])),
            "refused": float(np.mean([t.refused for t in counted])),
            **counts,
        }
        | judge_figures(counted)
        | user_figures(counted)
        | _criteria(counted)
    )


def _criteria(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    found: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        for name, wrong in trajectory.criteria.items():
            found.setdefault(name, []).append(not wrong)
    return {f"criteria/{name}": sum(held) / len(held) for name, held in sorted(found.items())}


def user_figures(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """user_cost: dollars a question for who plays the user, which are in no other figure; nothing where nobody does."""
    rows = [row for trajectory in trajectories for row in trajectory.ledger if row.role == USER_ROLE]
    return {"user_cost": sum(row.cost_usd for row in rows) / len(trajectories)} if rows else {}


def judge_figures(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """How far a judge and exact match differ; nothing where no judge was asked.

    Returns:
        exact_match: the accuracy by exact match alone. judged: share of the questions whose answer a judge was asked
            about. judge_disagrees: share of those in which its verdict is not that of exact match. A judge that is
            asked only about answers that do not match, as in `envs.qa`, disagrees where it finds one right: a share
            that rises while `exact_match` does not is a policy that persuades its judge. judge_cost: dollars a
            question for the judge, which are in no other figure.
    """
    judged = list(filter(_judged, trajectories))
    cost = sum(r.cost_usd for t in trajectories for r in t.ledger if r.role == "judge") / len(trajectories)
    if not judged:
        return {"judge_cost": cost} if cost else {}
    return {
        "exact_match": sum(t.valid and _matches(t) for t in trajectories) / len(trajectories),
        "judged": len(judged) / len(trajectories),
        "judge_disagrees": sum(bool(t.solved) != _matches(t) for t in judged) / len(judged),
        "judge_cost": cost,
    }


def disagreements(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """The answers of which a judge found otherwise than exact match, to be read: whom does one believe?"""
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
        if _judged(t) and bool(t.solved) != _matches(t)
    ]


def _judged(trajectory: Trajectory) -> bool:
    # Where a world has criteria, a judge compares no answer with a reference: it is one of them.
    return trajectory.valid and not trajectory.criteria and any(row.role == "judge" for row in trajectory.ledger)


def _matches(trajectory: Trajectory) -> bool:
    return matches(extract_answer(trajectory.answer or ""), trajectory.task.answer)


def tool_shares(trajectories: Sequence[Trajectory]) -> dict[str, dict[str, float]]:
    """Share of each tool among the executed calls of what did not fail, by question family and over all ("all").

    Tools of a catalogue are told by what they are ("generalist/gpt-5"), not by the alias of one instance.
    """
    counts: dict[str, Counter[str]] = {}
    for trajectory in _counted(trajectories):
        called = called_tools(trajectory)
        for family in (trajectory.task.family, "all"):
            counts.setdefault(family, Counter()).update(called)
    return {
        family: {name: count / max(1, found.total()) for name, count in sorted(found.items())}
        for family, found in sorted(counts.items())
    }


def preference_utility(
    runs: Sequence[Sequence[Trajectory]], baselines: Sequence[Sequence[Trajectory]], tool_feature: ToolFeature
) -> Float[np.ndarray, "R Q"]:
    """P . features of every run on every question, gated by the outcome.

    Each feature is min-max normalised per question over all baselines' runs (0 where they are all equal) and clipped
    to [0, 1] for runs outside their range.

    Args:
        runs: R lists of trajectories over the same Q questions in the same order.
        baselines: the runs that set the range.
    """
    tools = max(len(t.task.tools) for t in runs[0])

    def features(run: Sequence[Trajectory]) -> tuple[np.ndarray, Any]:
        arrays = group_arrays(run, 1, tools)
        matrix = feature_matrix(
            jnp.asarray(arrays.tool_counts),
            jnp.asarray(arrays.solved),
            jnp.asarray(arrays.cost_usd),
            jnp.asarray(arrays.latency_s),
            tool_feature=tool_feature,
        )
        return np.asarray(matrix)[:, 0], arrays

    base = np.stack([features(run)[0] for run in baselines])
    low, high = base.min(axis=0), base.max(axis=0)
    spread = np.where(high > low, high - low, 1.0)
    utilities = []
    for run in runs:
        matrix, arrays = features(run)
        norm = np.where(high > low, np.clip((matrix - low) / spread, 0.0, 1.0), 0.0)
        utilities.append((norm * arrays.preference * arrays.tool_mask).sum(-1) * arrays.solved[:, 0])
    return np.stack(utilities)


def by_part(
    parts: Mapping[str, Sequence[Trajectory]], samples: int = 1, own: str | None = None
) -> dict[str, dict[str, Any]]:
    """Figures of each part of a benchmark, with the share of local among all searches (0 without a search).

    Args:
        samples: of each question; own: see `share_figures`.
    """
    found = dict[str, dict[str, Any]]()
    for part, runs in parts.items():
        searches = [name for t in _counted(runs) for name in t.tool_names if name in ("local_search", "web_search")]
        share = searches.count("local_search") / len(searches) if searches else 0.0
        several = passes(runs, samples) | share_figures(runs, own) | {"intervals": intervals(runs, samples)}
        found[part] = summarize(runs) | {"local_share": share} | several
    return found
