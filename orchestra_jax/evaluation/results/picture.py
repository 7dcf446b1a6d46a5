"""Accuracy against cost, as SVG."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestra_jax.evaluation.intervals import wilson
from orchestra_jax.evaluation.results import published
from orchestra_jax.evaluation.results.front import on_front
from orchestra_jax.evaluation.results.measured import Measured, solved

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_HIGH, _LINE, _NAME = 240.0, 9.0, 0.45  # points of the axes and of a line; a name's share of the width


def picture(label: str, found: Sequence[Measured]) -> str:
    """Accuracy against cents a question of the policies on one benchmark, as SVG; the paper's as hollow marks.

    The line is the front of ours: below and to the right of it somebody is as right for less.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    points = [_point(one) for one in found if one.items]
    source, unseen = found[0].source, found[0].offer.unseen
    theirs = [
        (f"{row.name} (published)", costs[0], accuracy)
        for row in (published.rows(source, unseen)[1] if found[0].whole else [])
        if (costs := row.costs(source)) and (accuracy := row.accuracy(source)) is not None
    ]
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for _, cents, accuracy, low, high in points:
        axes.errorbar(cents, accuracy, yerr=[[accuracy - low], [high - accuracy]], fmt="o", capsize=3)
    for _, cents, accuracy in theirs:
        axes.plot(cents, accuracy, "o", mfc="none", mec="#6e7781")
    _draw_front(axes, [(cents, accuracy) for _, cents, accuracy, _, _ in points])
    dearest = max([point[1] for point in points] + [point[1] for point in theirs], default=0.0)
    best = max([point[4] for point in points] + [point[2] for point in theirs], default=100.0)
    width, height = 1.1 * dearest or 1.0, min(104.0, 5 + 1.15 * best)  # with room for the outermost marks
    axes.set(xlabel="cents a question", ylabel="accuracy %", title=label, xlim=(0, width), ylim=(0, height))
    marks = [*(point[:3] for point in points), *theirs]
    for number, ((name, cents, accuracy), above) in enumerate(zip(marks, _offsets(marks, width, height), strict=True)):
        own = number < len(points)
        axes.annotate(
            name, (cents, accuracy), xytext=(6, above), textcoords="offset points", fontsize=8 if own else 7,
            color="#24292f" if own else "#6e7781",
        )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "orchestra_jax", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _draw_front(axes: "Axes", points: Sequence[tuple[float, float]]) -> None:
    best = sorted(point for point, on in zip(points, on_front(points), strict=True) if on)
    if len(points) > 1:
        cents, accuracy = zip(*[(best[0][0], 0.0), *best, (max(points)[0], best[-1][1])], strict=True)
        axes.step(cents, accuracy, where="post", color="#8c959f", linewidth=1, linestyle=":", zorder=0)


def _offsets(marks: Sequence[tuple[str, float, float]], width: float, height: float) -> list[float]:
    """Points above its mark for every name, so that names near each other are lines below each other."""
    taken: list[tuple[float, float]] = []
    found = {}
    for place, (_, cents, accuracy) in sorted(enumerate(marks), key=lambda mark: mark[1][2]):
        above, at = 4.0, accuracy / height * _HIGH
        while any(abs(cents / width - x) < _NAME and abs(at + above - y) < _LINE for x, y in taken):
            above += 1.0
        taken.append((cents / width, at + above))
        found[place] = above
    return [found[place] for place in range(len(marks))]


def _point(one: Measured) -> tuple[str, float, float, float, float]:
    items = one.all_items
    right = sum(item.solved for item in items)
    known = one.interval(solved) if one.samples > 1 else wilson(right, len(items))
    low, high = known or (0.0, 1.0)
    accuracy = right / len(items)
    # A bootstrap interval may miss its own mean by a rounding.
    low, high = min(low, accuracy), max(high, accuracy)
    return one.run, 100 * sum(item.cost for item in items) / len(items), 100 * accuracy, 100 * low, 100 * high
