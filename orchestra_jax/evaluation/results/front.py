"""Accuracy against cost: which policies no other beats in both, and the area that they cover together."""

from collections.abc import Sequence

# Dollars (or cents) a question, and accuracy.
Point = tuple[float, float]


def on_front(points: Sequence[Point]) -> list[bool]:
    """Of each point, whether none is as right for less, or more right for as little; equals are on it together."""

    def beats(other: Point, point: Point) -> bool:
        return other != point and other[0] <= point[0] and other[1] >= point[1]

    return [not any(beats(other, point) for other in points) for point in points]


def hypervolume(points: Sequence[Point], dearest: float) -> float:
    """The area of all that some point beats, between accuracy 0 and its own and between its cost and `dearest`.

    Args:
        dearest: cost of the reference point, whose accuracy is 0; points beyond it cover nothing.
    """
    area, height, inside = 0.0, 0.0, sorted(point for point in points if point[0] < dearest)
    for cost, accuracy in inside:
        if accuracy > height:
            area += (dearest - cost) * (accuracy - height)
            height = accuracy
    return area
