"""Policies against each other, question by question."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from orchestra_jax.evaluation.intervals import bootstrap
from orchestra_jax.evaluation.reports.measured import Measured
from orchestra_jax.evaluation.reports.table import Table, span


def pairs(label: str, found: Sequence[Measured]) -> Table:
    rows = []
    for first, second in itertools.combinations(found, 2):
        both = sorted(first.items.keys() & second.items.keys())
        if not both:
            continue
        a, b = [first.items[name] for name in both], [second.items[name] for name in both]
        gained = [float(y.solved) - float(x.solved) for x, y in zip(a, b, strict=True)]
        dearer = [y.cost - x.cost for x, y in zip(a, b, strict=True)]
        wins, losses = gained.count(1.0), gained.count(-1.0)
        rows.append([
            f"{second.run} against {first.run}", str(len(both)), f"{wins} : {losses}",
            f"{100 * float(np.mean(gained)):+.1f}", span(bootstrap(gained), 100, 1), f"{mcnemar(wins, losses):.3g}",
            f"{100 * float(np.mean(dearer)):+.3f}", span(bootstrap(dearer), 100, 3),
        ])  # fmt: skip
    columns = ["policies", "questions", "won : lost", "points of accuracy", "95 %", "p", "cents a question", "95 %"]
    note = "On the questions that both answered: bootstrap over the pairs, p of McNemar's exact test."
    return Table(f"{label}: question by question", columns, rows, note)


def mcnemar(wins: int, losses: int) -> float:
    """Two-sided p of McNemar's exact test: so uneven a split of the questions that differ, or more so, by chance."""
    differing = wins + losses
    tail = sum(math.comb(differing, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**differing)
