"""Intervals against brute force."""

import itertools
import math

import numpy as np
import pytest

from orchestra_jax.evaluation import intervals
from orchestra_jax.evaluation.intervals import bootstrap, wilson
from orchestra_jax.evaluation.runs import student


@pytest.mark.parametrize(("solved", "counted"), [(0, 1), (1, 1), (0, 20), (20, 20), (7, 20), (81, 824), (1, 3)])
def test_wilson_is_all_shares_that_the_count_does_not_speak_against(solved: int, counted: int):
    shares = np.linspace(0, 1, 200_001)
    far = np.abs(solved / counted - shares) > 1.959963984540054 * np.sqrt(shares * (1 - shares) / counted)
    kept = shares[~far | (shares == solved / counted)]
    assert wilson(solved, counted) == pytest.approx((kept.min(), kept.max()), abs=1e-5)


def test_wilson_by_its_textbook_value():
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)  # Newcombe 1998, table I
    assert wilson(0, 0) is None
    assert [(wilson(0, n) or (1,))[0] for n in (3, 824)] == [0.0, 0.0]
    assert [(wilson(n, n) or (0,))[-1] for n in (3, 824)] == [1.0, 1.0]


@pytest.mark.parametrize("values", [(0.0, 1.0, 5.0), (2.0, 2.0, 3.0, 9.0), (0.0, 0.0, 0.0, 0.0, 1.0)])
def test_bootstrap_is_that_of_every_resample_there_is(values: tuple[float, ...]):
    """All N^N samples with replacement: the quantiles of their means, which a few thousand samples find."""
    means = sorted(math.fsum(sample) / len(values) for sample in itertools.product(values, repeat=len(values)))
    low, high = bootstrap(values, 40_000) or (math.nan, math.nan)
    for found, tail in ((low, 0.025), (high, 0.975)):
        # A mean that many resamples share is found itself: nothing that is 0.5 % of them away.
        assert means[int((tail - 0.005) * len(means))] <= found <= means[math.ceil((tail + 0.005) * len(means)) - 1]


def test_bootstrap_is_the_same_for_the_same_values_and_narrows():
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap(values) or (0.0, 0.0)
    assert bootstrap(list(values)) == (low, high)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)
    assert bootstrap([]) is None
    assert bootstrap([3.0]) == (3.0, 3.0)


def test_questions_with_several_samples_are_drawn_whole():
    # Ten questions of one wrong sample each, ten of three right ones: k of 20 draws are of the latter, k ~ B(20, 1/2),
    # whose quantiles at 2.5 and 97.5 % are 6 and 14; the mean is 3 k / (3 k + 20 - k).
    values, sizes = [0.0, 1.0] * 10, [1, 3] * 10
    assert bootstrap(values, 40_000, weights=sizes) == pytest.approx((18 / 32, 42 / 48))
    assert bootstrap(values, 40_000, weights=[2] * 20) == bootstrap(values, 40_000) == pytest.approx((0.3, 0.7))


def test_resamples_that_are_drawn_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch):
    values = np.random.default_rng(1).normal(size=7)
    whole = bootstrap(values, 100)
    monkeypatch.setattr(intervals, "_AT_ONCE", 7 * 30)
    assert bootstrap(values, 100) == whole


def test_students_interval_by_its_textbook_value():
    # t at .975 with 2, 4 and 9 degrees of freedom: 4.3027, 2.7764, 2.2622.
    for values, t in (([1.0, 2.0, 3.0], 4.3027), ([0.0, 0.0, 1.0, 1.0, 3.0], 2.7764), (list(range(10)), 2.2622)):
        half = t * np.std(values, ddof=1) / math.sqrt(len(values))
        assert student(values) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=1e-4)
    assert student([1.0]) is None
    assert student([2.0, 2.0, 2.0]) == (2.0, 2.0)
