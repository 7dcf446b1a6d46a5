"""Figures of an evaluation amid a run, by their names in metrics.jsonl; loaded where evaluation.every asks for some."""

from collections.abc import Mapping
from typing import Any

from orchestra_jax.evaluation.benchmarks import HELD_OUT


def evaluation_metrics(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return figures of an evaluation: `eval/FIGURE` of the held-out tasks, `eval/BENCHMARK/FIGURE` of others."""
    return {
        f"eval/{figure}" if benchmark == HELD_OUT else f"eval/{benchmark}/{figure}": value
        for benchmark, figures in found.items()
        for figure, value in figures.items()
        if isinstance(value, float)
    }
