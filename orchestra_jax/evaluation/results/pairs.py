"""Policies against each other, question by question."""

import itertools
import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from orchestra_jax.evaluation.intervals import bootstrap
from orchestra_jax.evaluation.results.measured import Item, Measured, cost, question_mean, solved
from orchestra_jax.evaluation.results.table import Table, span

FLIPS = 9999
_SEED = 0
_CUT = re.compile(r"-\d+-turns$")  # of folders that evaluation.turn_caps leaves


def differences(first: Measured, second: Measured, figure: Callable[[Item], float]) -> list[float]:
    """Of every question that both answered, in the order of their names: by how much the second's mean is higher."""
    both = sorted(first.items.keys() & second.items.keys())
    return [question_mean(second.items[name], figure) - question_mean(first.items[name], figure) for name in both]


def changes(first: Measured, second: Measured) -> list[str]:
    """Cells: points of accuracy and cents a question that the second has more, each with its paired interval."""
    gained, dearer = differences(first, second, solved), differences(first, second, cost)
    return [
        f"{100 * float(np.mean(gained)):+.1f}", span(bootstrap(gained), 100, 1),
        f"{100 * float(np.mean(dearer)):+.3f}", span(bootstrap(dearer), 100, 3),
    ]  # fmt: skip


def pairs(label: str, found: Sequence[Measured]) -> Table:
    """Every two policies on the questions that both answered; one cut to fewer turns is no policy of its own."""
    rows = []
    whole = [one for one in found if not _CUT.search(one.phase)]
    for first, second in itertools.combinations(whole, 2):
        gained = differences(first, second, solved)
        if not gained:
            continue
        wins, losses = sum(gain > 0 for gain in gained), sum(gain < 0 for gain in gained)
        points, interval, *money = changes(first, second)
        rows.append([
            f"{second.run} against {first.run}", str(len(gained)), f"{wins} : {losses}", points, interval,
            f"{flipped(gained) if max(first.samples, second.samples) > 1 else mcnemar(wins, losses):.3g}", *money,
        ])  # fmt: skip
    columns = ["policies", "questions", "won : lost", "points of accuracy", "95 %", "p", "cents a question", "95 %"]
    note = "On the questions that both answered: bootstrap over the pairs, p of McNemar's exact test."
    if any(one.samples > 1 for one in found):
        note += (
            " A question's samples are one mean: it is won where that is higher, and p is the share of the ways to "
            f"flip the differences' signs, {FLIPS} at random, whose mean is as far from 0."
        )
    return Table(f"{label}: question by question", columns, rows, note)


def mcnemar(wins: int, losses: int) -> float:
    """Two-sided p of McNemar's exact test: so uneven a split of the questions that differ, or more so, by chance."""
    differing = wins + losses
    tail = sum(math.comb(differing, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**differing)


def flipped(gained: Sequence[float]) -> float:
    """Two-sided p of a mean difference by random flips of the signs: McNemar's test for means of several samples.

    Counting who is ahead in how many questions would not do: of two policies that are equally often right, the one with
    more samples has more means above 0, and fewer that are 1.
    """
    found = np.asarray(gained, np.float64)
    rng, far = np.random.default_rng([_SEED, len(found)]), abs(found.sum()) - 1e-9
    signs = (rng.integers(2, size=(FLIPS // 9, len(found))) * 2 - 1 for _ in range(9))
    as_far = sum(int((np.abs(some @ found) >= far).sum()) for some in signs)
    return (1 + as_far) / (1 + FLIPS)
