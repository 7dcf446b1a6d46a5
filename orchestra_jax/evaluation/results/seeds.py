"""Means over seeds with Student's confidence interval, at 95 %."""

import json
import math
from collections.abc import Iterator

import numpy as np
from scipy import special

from orchestra_jax.evaluation.intervals import CONFIDENCE, Interval, Values
from orchestra_jax.evaluation.runs import Row, Runs


def student(values: Values) -> Interval | None:
    """Return Student's interval of a mean over seeds, or None if there are fewer than two values."""
    found = np.asarray(values, np.float64)
    if len(found) < 2:
        return None
    half = special.stdtrit(len(found) - 1, (1 + CONFIDENCE) / 2) * found.std(ddof=1) / math.sqrt(len(found))
    return float(found.mean() - half), float(found.mean() + half)


def over_seeds(runs: Runs) -> Iterator[tuple[str, dict[str, tuple[float, float, float]]]]:
    """Yield what the seeds of one setting say together: a title, and by figure its mean and the ends of its interval.

    Runs with the same settings and different seeds belong together; of one seed the first counts. A figure needs a
    number of at least two seeds. Runs without any figure are left out.
    """
    groups: dict[str, dict[int, Row]] = {}
    for row in runs:
        if any(name in row for name in runs.figures):
            own = json.dumps([row.get(name) for name in runs.settings], default=str)
            groups.setdefault(own, {}).setdefault(row["seed"], row)
    several = [group for group in groups.values() if len(group) > 1]
    firsts = [next(iter(group.values())) for group in several]
    differ = [name for name in runs.settings if any(row.get(name) != firsts[0].get(name) for row in firsts)]
    for group, first in zip(several, firsts, strict=True):
        found = {}
        for name in runs.figures:
            values = [row.get(name) for row in group.values()]
            numbers = [float(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
            if (interval := student(numbers)) is not None:
                found[name] = (float(np.mean(numbers)), *interval)
        told = "".join(f", {name}={first.get(name)}" for name in differ)
        yield f"Seeds {', '.join(map(str, sorted(group)))}{told}: mean, and Student's 95 % interval", found
