"""The picture of accuracy against cost, of a run's summary and of a report."""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from orchestra_jax.envs.base import DO_NOTHING, EXPERT
from orchestra_jax.evaluation.canvas import FAINT, INK, blank, headline, panel
from orchestra_jax.evaluation.figures import plain, value
from orchestra_jax.evaluation.intervals import Interval

BLUE, ORANGE = "#0072b2", "#d55e00"
WIDE, CROWD = 30.0, 15  # dearest to cheapest from which on costs are on a logarithmic axis; marks of a large picture


class Mark(NamedTuple):
    """A policy or script in the picture."""

    x: float  # cents a question
    y: float  # accuracy in %
    label: str
    colour: str
    marker: str = "o"
    bold: bool = False
    hollow: bool = False
    faint: bool = False
    interval: Interval | None = None  # of the accuracy in %


def _marks(summary: Mapping[str, Any]) -> Iterator[Mark]:
    after = summary.get("after") or {}
    rows: list[tuple[Any, str, str, str, bool]] = [
        (after, "after training", BLUE, "o", True),
        (summary.get("before"), "before training", FAINT, "o", True),
        (after.get("greedy"), "after, greedy", BLUE, "D", False),
    ]
    for kind, figures in ((summary.get("preference_swap") or {}).get("after") or {}).items():
        rows.append((figures, f"after, wish: {plain(kind)}", BLUE, "D", False))
    for name, figures in (summary.get("baselines") or {}).items():
        alone = name.startswith(EXPERT)
        label, colour, marker = (name.removeprefix(EXPERT), FAINT, "^") if alone else (plain(name), ORANGE, "s")
        rows += [(figures, label, colour, marker, False)] if f"{DO_NOTHING} on " not in name else []  # other questions
    for figures, label, colour, marker, bold in rows:
        cost, accuracy = value(figures, "cost"), value(figures, "accuracy")
        if cost is not None and accuracy is not None and math.isfinite(cost):
            yield Mark(100 * cost, 100 * accuracy, label, colour, marker, bold, marker == "D", marker == "^")


def accuracy_cost(summary: Mapping[str, Any]) -> Figure | None:
    """Return the picture of every policy and script of a summary, or None if none of them costs anything."""
    marks = list(_marks(summary))
    paid = [mark.x for mark in marks if mark.x > 0]
    if not paid:
        return None
    wide = max(paid) > WIDE * min(paid)
    if wide:  # on a logarithmic axis there is no place for what is free
        marks = [mark for mark in marks if mark.x > 0]
    by_label = {mark.label: mark for mark in marks}
    before, after = by_label.get("before training"), by_label.get("after training")
    title, detail, arrow = "Accuracy against cost", "", None
    if len(marks) > CROWD:  # a script that another one outdoes has no name; an oracle outdoes nobody
        scripts = {(mark.x, mark.y) for mark in marks if mark.marker == "s" and "oracle" not in mark.label}
        worse = {a for a, b in itertools.permutations(scripts, 2) if a[0] >= b[0] and a[1] <= b[1]}
        marks = [m._replace(label="") if m.marker == "s" and (m.x, m.y) in worse else m for m in marks]
    if before and after:
        title = f"After training {after.y:.0f} % right for {_cents(after)} cents a question"
        detail = f"Before: {before.y:.0f} % right for {_cents(before)} cents"
        detail += ". Squares without a name: scripts that another one outdoes" if len(marks) > CROWD else ""
        arrow = (before, after) if (before.x, before.y) != (after.x, after.y) else None
    return draw_marks(marks, title, detail, arrow=arrow, log=wide)


def draw_marks(
    marks: Sequence[Mark],
    title: str,
    detail: str = "",
    *,
    arrow: tuple[Mark, Mark] | None = None,
    front: Sequence[tuple[float, float]] = (),
    log: bool = False,
) -> Figure:
    """Draw at least one mark, with their labels, if they have some, and a headline of two lines.

    Args:
        arrow: from one mark to another.
        front: cents and accuracy of the corners of a dotted step line.
        log: costs are on a logarithmic axis.
    """
    picture = blank(11.5, 8.0) if len(marks) > CROWD else blank(8.4, 5.6)
    axes = panel(picture)
    if arrow:
        (a, b), style = arrow, {"arrowstyle": "-|>", "mutation_scale": 16, "color": BLUE, "linewidth": 1.8}
        axes.annotate("", (b.x, b.y), (a.x, a.y), arrowprops=style | {"shrinkA": 7, "shrinkB": 8}, zorder=2)
    if front:
        cents, accuracies = zip(*front, strict=True)
        axes.step(cents, accuracies, where="post", color="#8c959f", linewidth=1, linestyle=":", zorder=0)
    for mark in marks:
        if mark.interval:
            axes.vlines(mark.x, *mark.interval, color=mark.colour, linewidth=1.2, alpha=0.5, zorder=1)
        size, order = 110 if mark.bold else 24 if mark.faint else 52, 3 + mark.bold + mark.hollow / 2
        look: dict[str, Any] = {"edgecolor": mark.colour, "color": "white" if mark.hollow else mark.colour}
        axes.scatter(mark.x, mark.y, s=size, marker=mark.marker, zorder=order, linewidth=1.6, **look)
    costs, ends = [mark.x for mark in marks], [end for m in marks for end in (m.y, *(m.interval or ()))]
    margin = max(4.0, 0.14 * (max(ends) - min(ends)))
    if log:
        axes.set_xscale("log")
        axes.set_xlim(min(costs) / 1.6, max(costs) * 2.5)
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(0, max([1e-9, *costs]) * 1.22)
    axes.set_ylim(max(0.0, min(ends) - margin), min(max(ends) + margin, 104.0))
    axes.set_xlabel("mean cost per question (cents), less is better")
    axes.set_ylabel("questions answered correctly (%)")
    headline(picture, title, detail)
    _label(picture, axes, marks, arrow)
    return picture


def _cents(mark: Mark) -> str:
    return f"{mark.x:.2f}" if mark.x >= 0.05 or not mark.x else f"{mark.x:.2g}"


def _label(picture: Figure, axes: Axes, marks: Sequence[Mark], arrow: tuple[Mark, Mark] | None) -> None:
    """Write each label near its mark, where it and its leader line cover and cross the fewest things."""
    picture.draw_without_rendering()  # the layout must be known to measure texts
    leader = {"arrowstyle": "-", "color": "#b0b7bf", "linewidth": 0.8, "shrinkA": 1, "shrinkB": 6}
    texts, pixel, size = list[Annotation](), picture.dpi / 72, 8.5 if len(marks) > CROWD else 10
    touch, along = 2 * pixel * np.array([-1, -1, 1, 1]), np.linspace(0, 1, 30)[:, None]
    apart = touch * np.array([3, 0, 3, 0])  # nearer on one line, two labels read as one
    taken = np.tile(axes.transData.transform([(mark.x, mark.y) for mark in marks]), 2) + 3.5 * touch
    marks = [mark for mark in marks if mark.label]
    for mark in marks:
        look: dict[str, Any] = {"color": INK if mark.colour == FAINT else mark.colour}
        look |= {"textcoords": "offset points", "fontsize": 7.5 if mark.faint else size, "arrowprops": leader}
        texts.append(
            axes.annotate(mark.label, (mark.x, mark.y), (0, 0), zorder=5, weight=(400, 700)[mark.bold], **look)
        )
    points = axes.transData.transform([(mark.x, mark.y) for mark in marks])
    sizes = np.array([Text.get_window_extent(text).size for text in texts])  # an Annotation's own includes its line
    if arrow:
        start, end = axes.transData.transform([(mark.x, mark.y) for mark in arrow])
        taken = np.vstack([taken, np.tile(start + along * (end - start), 2) + touch])
    boxes, lines = np.full((len(marks), 4), np.nan), np.full((len(marks), len(along), 2), np.nan)  # of placed labels
    inside = np.array([axes.get_window_extent().extents])

    def cost(number: int, place: tuple[float, tuple[float, float]]) -> float:
        """Place a label and return how bad the place is.

        What it covers counts 1, a label that a line crosses 1, a mark that its line passes little.
        """
        distance, side = place[0], np.array(place[1])
        low = points[number] + pixel * distance * side + sizes[number] * (np.sign(side) - 1) / 2
        line = points[number] + along * (low + sizes[number] / 2 - points[number])
        boxes[number], lines[number] = [*low, *(low + sizes[number])], line if distance > 15 else np.nan
        box, line, rest = boxes[number], lines[number], boxes[np.arange(len(marks)) != number]
        crossed = _in(line, rest + touch).any(0).sum() + _in(lines, (box + touch)[None]).any(1).sum() - (distance > 15)
        passed, there = _in(line, taken[~_in(points[number], taken)]).any(0).sum(), np.vstack([taken, rest + apart])
        covered, near = (((a[:2] < there[:, 2:]) & (there[:, :2] < a[2:])).all(1).sum() for a in (box, box + touch))
        return float(covered + crossed + (0 if _in(box.reshape(2, 2), inside).all() else 99) + passed / 32 + near / 800)

    sides = [(1.0, 0.0), (0.0, 1.0), (0.0, -1.0), (-1.0, 0.0), *((x, y) for x in (0.75, -0.75) for y in (0.75, -0.75))]
    sides += [(x * a, y * b) for x, y in ((0.9, 0.4), (0.4, 0.9)) for a, b in itertools.product((1, -1), repeat=2)]
    places = list(itertools.product((11.0, 20.0, 30.0, 42.0, 56.0, 72.0, 90.0, 110.0), sides))  # the nearest first
    for number in [*range(len(marks))] * 3:  # again, now that the others have places
        best = distance, (dx, dy) = min(places, key=functools.partial(cost, number))
        cost(number, best)
        ha, va = ("center", "left", "right")[int(np.sign(dx))], ("center", "bottom", "top")[int(np.sign(dy))]
        texts[number].set(position=(distance * dx, distance * dy), ha=ha, va=va)
        if (patch := texts[number].arrow_patch) is not None:
            patch.set_visible(distance > 15)


def _in(points: np.ndarray, boxes: np.ndarray) -> Any:
    """Return whether each point lies in each box, whose columns are its left, lower, right and upper edges."""
    return ((points[..., None, :] > boxes[:, :2]) & (points[..., None, :] < boxes[:, 2:])).all(-1)
