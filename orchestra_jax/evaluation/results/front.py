"""The front of accuracy against cost: policies that no other beats in both, and the area that they cover."""

from collections.abc import Sequence

Point = tuple[float, float]  # dollars (or cents) a question, and accuracy


def on_front(points: Sequence[Point]) -> list[bool]:
    """Return which points no other beats: none is as right for less, nor more right for as much."""

    def beats(other: Point, point: Point) -> bool:
        return other != point and other[0] <= point[0] and other[1] >= point[1]

    return [not any(beats(other, point) for other in points) for point in points]


def hypervolume(points: Sequence[Point], dearest: float) -> float:
    """Return the area that some point beats, between accuracy 0 and its own and between its cost and `dearest`.

    Args:
        points: those that cost more than `dearest` cover nothing.
        dearest: cost of the reference point, whose accuracy is 0.
    """
    area, height = 0.0, 0.0
    for cost, accuracy in sorted(point for point in points if point[0] < dearest):
        if accuracy > height:
            area += (dearest - cost) * (accuracy - height)
            height = accuracy
    return area
