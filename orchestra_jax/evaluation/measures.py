"""Figures of a set of trajectories: accuracy, cost, latency, tool shares and preference utility."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orchestra_jax.evaluation.calls import called_tools, counted
from orchestra_jax.evaluation.intervals import Interval, bootstrap, wilson
from orchestra_jax.rl.groups import group_arrays
from orchestra_jax.rl.rewards import ToolFeature, feature_matrix
from orchestra_jax.types import HAND_IN, USER_ROLE, Trajectory

MEANS = ("accuracy", "valid_rate", "cost", "cost_per_correct", "latency", "calls", "refused")


def summarize(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    """Return the figures of docs/metrics.md: means over the trajectories that did not fail for infrastructure reasons.

    Raises:
        ValueError: there is no trajectory.
    """
    if not trajectories:
        raise ValueError("No trajectory to summarise.")
    runs = counted(trajectories)
    counts = {"failed": float(len(trajectories) - len(runs)), "counted": float(len(runs))}
    if not runs:
        return dict.fromkeys(MEANS) | counts
    cost, solved = sum(t.cost_usd for t in runs), sum(t.solved for t in runs)
    found: dict[str, float | None] = {
        "accuracy": solved / len(runs),
        "valid_rate": float(np.mean([t.completed for t in runs])),
        "cost": cost / len(runs),
        "cost_per_correct": cost / solved if solved else None,
        "latency": float(np.mean([t.latency_s for t in runs])),
        "calls": float(np.mean([len(t.calls) for t in runs])),
        "refused": float(np.mean([t.refused for t in runs])),
        **counts,
    }
    roles = {row.role for t in runs for row in t.ledger}
    if "judge" in roles:
        from orchestra_jax.evaluation.judged import judge_figures  # only where there is a judge

        found |= judge_figures(runs)
    if USER_ROLE in roles:
        found["user_cost"] = sum(r.cost_usd for t in runs for r in t.ledger if r.role == USER_ROLE) / len(runs)
    for name in sorted({name for t in runs for name in t.criteria}):
        met = [not t.criteria[name] for t in runs if name in t.criteria]
        found[f"criteria/{name}"] = sum(met) / len(met)
    return found


def questions(trajectories: Sequence[Trajectory], samples: int) -> list[list[Trajectory]]:
    """Return the samples of each question that did not fail, of trajectories with the samples side by side."""
    return [counted(trajectories[start : start + samples]) for start in range(0, len(trajectories), samples)]


def question_intervals(trajectories: Sequence[Trajectory], samples: int = 1) -> dict[str, dict[str, Interval | None]]:
    """Return 95 % intervals of accuracy (Wilson and bootstrap), cost and latency (bootstrap) over the questions.

    Several samples of a question, side by side, are resampled together, as they say less than as many questions.
    Wilson's interval, which does not know that, is then left out. The arithmetic of both is in `evaluation.intervals`.
    """
    asked = [some for some in questions(trajectories, samples) if some]
    sizes = [len(some) for some in asked]

    def resampled(figure: Callable[[Trajectory], float]) -> Interval | None:
        return bootstrap([float(np.mean([figure(t) for t in some])) for some in asked], weights=sizes)

    solved = sum(t.solved for some in asked for t in some)
    exact = {"wilson": wilson(solved, sum(sizes))} if samples == 1 else {}
    return {
        "accuracy": {**exact, "bootstrap": resampled(lambda t: float(t.solved))},
        "cost": {"bootstrap": resampled(lambda t: t.cost_usd)},
        "latency": {"bootstrap": resampled(lambda t: t.latency_s)},
    }


def tool_shares(trajectories: Sequence[Trajectory]) -> dict[str, dict[str, float]]:
    """Return each tool's share of the calls that find answers, by question family and over all questions ("all")."""
    counts: dict[str, Counter[str]] = {}
    for trajectory in counted(trajectories):
        called = [name for name in called_tools(trajectory) if name not in HAND_IN]
        for family in (trajectory.task.family, "all"):
            counts.setdefault(family, Counter()).update(called)
    return {
        family: {name: count / found.total() for name, count in sorted(found.items())}
        for family, found in sorted(counts.items())
    }


def local_share(trajectories: Sequence[Trajectory]) -> float | None:
    """Return the share of local searches among local and web searches, None without a search."""
    searches = [n for t in counted(trajectories) for n in t.tool_names if n in ("local_search", "web_search")]
    return searches.count("local_search") / len(searches) if searches else None


def preference_utility(
    runs: Sequence[Sequence[Trajectory]], baselines: Sequence[Sequence[Trajectory]], tool_feature: ToolFeature
) -> Float[np.ndarray, "R Q"]:
    """Return P . features of every run on every question, 0 where the question is not solved.

    Each feature is min-max normalised per question over all baselines' runs (0 where they are all equal) and clipped
    to [0, 1] for runs outside their range.

    Args:
        runs: R lists of trajectories over the same Q questions in the same order.
        baselines: the runs that set the range, those aside that failed for infrastructure reasons.
    """

    def features(run: Sequence[Trajectory]) -> tuple[np.ndarray, Any]:
        arrays = group_arrays(run, 1)
        columns = (arrays.tool_counts, arrays.solved, arrays.cost_usd, arrays.latency_s)
        return np.asarray(feature_matrix(*map(jnp.asarray, columns), tool_feature=tool_feature))[:, 0], arrays

    base, failed = (np.stack(each) for each in zip(*((m, a.failed) for m, a in map(features, baselines)), strict=True))
    low, high = np.where(failed, np.inf, base).min(axis=0), np.where(failed, -np.inf, base).max(axis=0)
    spread = np.where(high > low, high - low, 1.0)
    utilities = []
    for run in runs:
        matrix, arrays = features(run)
        norm = np.where(high > low, np.clip((matrix - low) / spread, 0.0, 1.0), 0.0)
        utilities.append((norm * arrays.preference).sum(-1) * arrays.solved[:, 0])
    return np.stack(utilities)
