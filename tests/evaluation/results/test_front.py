"""Front and hypervolume against a grid of every cell and every pair of points."""

import numpy as np

from orchestra_jax.evaluation.results.front import hypervolume, on_front


def test_the_area_is_that_of_all_cells_that_a_point_beats() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 7, 20):
        points = [(int(cost), int(accuracy)) for cost, accuracy in rng.integers(0, 15, size=(count, 2))]
        dearest = max(cost for cost, _ in points)
        for reference in (dearest, dearest + 3, dearest // 2):
            cells = [(x + 0.5, y + 0.5) for x in range(reference) for y in range(15)]
            beaten = sum(any(cost < x and accuracy > y for cost, accuracy in points) for x, y in cells)
            assert hypervolume(points, reference) == beaten
        marks = on_front(points)
        for point, on in zip(points, marks, strict=True):
            rivals = [p for p in points if p[0] <= point[0] and p[1] >= point[1]]
            assert on == all(rival == point for rival in rivals)
        best = [point for point, on in zip(points, marks, strict=True) if on]
        assert hypervolume(best, dearest) == hypervolume(points, dearest)
    assert hypervolume([], 1.0) == 0.0
