"""Confidence intervals over questions, all at 95 %: Wilson's and bootstrap; `results.seeds` has Student's over seeds.

They are written out, as importing scipy.stats takes longer than a short evaluation.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

CONFIDENCE = 0.95
_Z = 1.959963984540054  # the normal distribution's quantile at (1 + CONFIDENCE) / 2
RESAMPLES = 2000
_SEED = 0
_AT_ONCE = 1 << 22  # numbers drawn at a time

Interval = tuple[float, float]
Values = Sequence[float] | Float[np.ndarray, " N"]


def wilson(solved: int, counted: int) -> Interval | None:
    """Return Wilson's score interval of the share solved / counted (Wilson 1927), or None if nothing is counted.

    It holds the shares p that are at most z standard errors of p away from the observed share.
    """
    if not counted:
        return None
    share, per = solved / counted, _Z**2 / counted
    centre = (share + per / 2) / (1 + per)
    half = _Z / (1 + per) * math.sqrt(share * (1 - share) / counted + per / (4 * counted))
    # At the ends the bound is the share itself, which rounding would miss.
    return centre - half if solved else 0.0, centre + half if solved < counted else 1.0


def bootstrap(values: Values, resamples: int = RESAMPLES, weights: Values | None = None) -> Interval | None:
    """Return the percentile interval of a mean by resampling with replacement, or None if there is no value.

    The resamples depend on the number of values only, so runs on the same questions are resampled alike.

    Args:
        values: one for each question, which are independent of each other: the mean of its samples.
        weights: the number of samples of each question, where it differs.
    """
    found = np.asarray(values, np.float64)
    share = None if weights is None or len(set(weights)) < 2 else np.asarray(weights, np.float64)
    if not len(found):
        return None
    rng, means = np.random.default_rng([_SEED, len(found)]), []
    block = max(1, _AT_ONCE // len(found))
    for start in range(0, resamples, block):
        picked = rng.integers(len(found), size=(min(block, resamples - start), len(found)))
        means.append(found[picked].mean(axis=1) if share is None else np.average(found[picked], 1, share[picked]))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)
