"""How far a figure may be off that was measured on so many questions, or with so many seeds.

Wilson's and bootstrap intervals over questions; Student's over seeds.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import special

CONFIDENCE = 0.95
_Z = 1.959963984540054  # the normal distribution's quantile at (1 + CONFIDENCE) / 2
RESAMPLES = 2000
_SEED = 0
_AT_ONCE = 1 << 22  # numbers drawn at a time

Interval = tuple[float, float]


def wilson(solved: int, counted: int) -> Interval | None:
    """Wilson's score interval of a share, at 95 % (Wilson 1927); None of nothing.

    The shares p that are not further from solved / counted than z standard errors of p itself.
    """
    if not counted:
        return None
    share, per = solved / counted, _Z**2 / counted
    centre = (share + per / 2) / (1 + per)
    half = _Z / (1 + per) * math.sqrt(share * (1 - share) / counted + per / (4 * counted))
    # At the ends the bound is the share itself, which rounding would miss.
    return centre - half if solved else 0.0, centre + half if solved < counted else 1.0


def bootstrap(
    values: Sequence[float] | Float[np.ndarray, " N"],
    resamples: int = RESAMPLES,
    weights: Sequence[float] | Float[np.ndarray, " N"] | None = None,
) -> Interval | None:
    """The percentile interval of a mean, at 95 %: of the means of samples of N with replacement; None of nothing.

    The samples depend on N only: the same values give the same interval, and runs on the same questions are resampled
    alike. What is resampled is independent of each other: questions, each with the mean of its samples as its value
    and their number as its weight, where it has several.
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


def student(values: Sequence[float] | Float[np.ndarray, " N"]) -> Interval | None:
    """Student's interval of a mean, at 95 %: of figures that differ by their seed; None of fewer than two.

    With three seeds it is 2.48 times the sample's standard deviation on either side.
    """
    found = np.asarray(values, np.float64)
    if len(found) < 2:
        return None
    half = special.stdtrit(len(found) - 1, (1 + CONFIDENCE) / 2) * found.std(ddof=1) / math.sqrt(len(found))
    return float(found.mean() - half), float(found.mean() + half)
