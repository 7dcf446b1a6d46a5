"""Student's confidence interval of a mean over seeds, at 95 %."""

import math

import numpy as np
from scipy import special

from orchestra_jax.evaluation.intervals import CONFIDENCE, Interval, Values


def student(values: Values) -> Interval | None:
    """Return Student's interval of a mean over seeds, or None if there are fewer than two values."""
    found = np.asarray(values, np.float64)
    if len(found) < 2:
        return None
    half = special.stdtrit(len(found) - 1, (1 + CONFIDENCE) / 2) * found.std(ddof=1) / math.sqrt(len(found))
    return float(found.mean() - half), float(found.mean() + half)
