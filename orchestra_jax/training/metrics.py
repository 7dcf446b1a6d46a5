"""Figures of a training step by their names in metrics.jsonl (docs/metrics.md)."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from orchestra_jax.evaluation.calls import tool_entropy
from orchestra_jax.evaluation.measures import summarize
from orchestra_jax.money.budgets import Spending
from orchestra_jax.types import Trajectory

# The learner's metrics that are logged, and their names there.
_UPDATE = {
    "loss": "loss",
    "entropy": "entropy",
    "kl_ref": "kl/ref",
    "clip_fraction_low": "clip/low",
    "clip_fraction_high": "clip/high",
    "ratio_max": "ratio/max",
    "ratio_p01": "ratio/p01",
    "ratio_p50": "ratio/p50",
    "ratio_p99": "ratio/p99",
    "mismatch_mean": "mismatch/mean",
    "mismatch_max": "mismatch/max",
    "importance_ess": "importance/ess",
    "importance_p01": "importance/p01",
    "importance_p99": "importance/p99",
    "sequence_ess": "importance/sequence_ess",
    **{
        f"sequence_{name}_p{percent}": f"importance/{name}_p{percent}"
        for name in ("product", "geometric")
        for percent in ("01", "50", "99")
    },
    "sequence_masked": "masked/sequences",
    **{f"sequence_masked_{name}": f"masked/{name}" for name in ("geometric", "product", "veto")},
    "icepop_fraction": "masked/tokens",
    "grad_norm": "grad_norm",
    "skipped": "updates/skipped",
    "clipped": "updates/clipped",
}
# Figures before the first update of a step are logged for these; all others are of the last update.
_FIRST = ("mismatch", "importance_p", "sequence_")
# `summarize`'s figures that have another name in metrics.jsonl.
_SUMMARY = {
    "cost": "cost_usd",
    "latency": "latency_s",
    "refused": "calls/refused",
    "judged": "judge/asked",
    "judge_disagrees": "judge/disagrees",
    "judge_cost": "judge/cost_usd",
    "user_cost": "user/cost_usd",
}


def rollout_metrics(
    trajectories: Sequence[Trajectory], rewards: Float[np.ndarray, "G N"], informative: Bool[np.ndarray, " G"]
) -> dict[str, float]:
    """Return figures of a step's trajectories; figures without a trajectory or call to count are missing."""
    figures = {name: value for name, value in summarize(trajectories).items() if value is not None}
    del figures["counted"]  # number of trajectories that count
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std(axis=1).mean()),
        "groups/kept": float(informative.mean()),
        **{_SUMMARY.get(name, name): value for name, value in figures.items()},
        **{f"tools/{name}": value for name, value in tool_entropy(trajectories).items()},
        "tokens/sampled": float(np.mean([sum(n for turn in t.turns for _, n in turn.spans) for t in trajectories])),
    }


def update_metrics(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return figures of a step's optimizer steps, given in their order; empty without any."""
    if not found:
        return {}
    merged = {**found[-1], **{name: value for name, value in found[0].items() if name.startswith(_FIRST)}}
    merged |= {name: sum(metrics[name] for metrics in found) for name in ("skipped", "clipped")}
    return {shown: merged[name] for name, shown in _UPDATE.items() if name in merged}


def spending_metrics(run: Spending, step: Spending) -> dict[str, float]:
    """Return what was paid outside; empty if everything is simulated, local or replayed."""
    return {"spend/usd": run.usd, "spend/step_usd": step.usd} if run.calls else {}
