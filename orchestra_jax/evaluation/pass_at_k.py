"""pass^k and pass@k: how often all, and how often any, of k samples of a question are right."""

import math
from collections.abc import Sequence

Count = tuple[int, int]  # of one question: how many samples counted, and how many of them are right


def all_right(counted: int, right: int, k: int) -> float:
    """Return the share of the subsets of k samples that are all right, an unbiased estimate of k successes in a row."""
    return math.comb(right, k) / math.comb(counted, k)


def any_right(counted: int, right: int, k: int) -> float:
    """Return the share of the subsets of k samples with a right one, unbiased likewise (Chen et al. 2021)."""
    return 1.0 - math.comb(counted - right, k) / math.comb(counted, k)


def pass_figures(counts: Sequence[Count], samples: int) -> dict[str, dict[str, float | None]]:
    """Return {"pass^k": {"1": .., "2": ..}, "pass@k": {...}}, means over the questions, for every k up to `samples`.

    A question with fewer than k samples, as others failed for infrastructure reasons, is not in the mean of that k.
    The mean over no question is None. One sample of each question gives nothing, as its figure is the accuracy.
    """
    if samples == 1:
        return {}
    found: dict[str, dict[str, float | None]] = {"pass^k": {}, "pass@k": {}}
    for k in range(1, samples + 1):
        enough = [count for count in counts if count[0] >= k]
        for name, share in (("pass^k", all_right), ("pass@k", any_right)):
            shares = [share(*count, k) for count in enough]
            found[name][str(k)] = math.fsum(shares) / len(shares) if shares else None
    return found
