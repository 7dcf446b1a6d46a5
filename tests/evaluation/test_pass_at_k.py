"""pass^k and pass@k against all subsets of the samples."""

import itertools

import numpy as np
import pytest

from orchestra_jax.evaluation.pass_at_k import all_right, any_right, pass_figures


def test_shares_are_those_of_all_subsets() -> None:
    for counted in range(1, 8):
        for right, k in itertools.product(range(counted + 1), range(1, counted + 1)):
            samples = [True] * right + [False] * (counted - right)
            subsets = list(itertools.combinations(samples, k))
            assert all_right(counted, right, k) == pytest.approx(np.mean([all(some) for some in subsets]))
            assert any_right(counted, right, k) == pytest.approx(np.mean([any(some) for some in subsets]))


def test_a_question_counts_as_far_as_its_samples_do() -> None:
    found = pass_figures([(3, 2), (2, 2), (0, 0)], 3)
    assert found["pass^k"] == {"1": pytest.approx((2 / 3 + 1) / 2), "2": pytest.approx((1 / 3 + 1) / 2), "3": 0.0}
    assert found["pass@k"] == {"1": pytest.approx((2 / 3 + 1) / 2), "2": 1.0, "3": 1.0}
    assert pass_figures([(0, 0)], 2) == {"pass^k": {"1": None, "2": None}, "pass@k": {"1": None, "2": None}}
    assert pass_figures([(1, 1)], 1) == {}
