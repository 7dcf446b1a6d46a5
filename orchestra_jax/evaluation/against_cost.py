"""Accuracy against cost of a policy before and after training, of baselines, and of every expert alone."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from orchestra_jax.envs.base import EXPERT
from orchestra_jax.evaluation.canvas import FAINT, INK, blank, headline, quiet
from orchestra_jax.evaluation.terminal import plain, value

BLUE, ORANGE = "#0072b2", "#d55e00"
WIDE, CROWD = 30.0, 15  # dearest to cheapest from which on costs are on a logarithmic axis; points of a large picture


@dataclass(frozen=True)
class _Point:
    """A policy or script in the picture: cents per question, per cent solved, and how it looks."""

    x: float
    y: float
    label: str
    colour: str
    marker: str
    bold: bool = False
    hollow: bool = False
    faint: bool = False


def _points(summary: Mapping[str, Any]) -> Iterator[_Point]:
    after = summary.get("after") or {}
    rows: list[tuple[Any, str, str, str, bool]] = [
        (after, "after training", BLUE, "o", True),
        (summary.get("before"), "before training", FAINT, "o", True),
        (after.get("greedy"), "after, greedy", BLUE, "D", False),
    ]
    baselines = summary.get("baselines") or {}
    for name, figures in baselines.items():
        alone = name.startswith(EXPERT)
        label, colour, marker = (name.removeprefix(EXPERT), FAINT, "^") if alone else (plain(name), ORANGE, "s")
        rows.append((figures, label, colour, marker, False))
    for figures, label, colour, marker, bold in rows:
        cost, accuracy = value(figures, "cost"), value(figures, "accuracy")
        if cost is not None and accuracy is not None and math.isfinite(cost):
            yield _Point(100 * cost, 100 * accuracy, label, colour, marker, bold, marker == "D", marker == "^")


def accuracy_cost(summary: Mapping[str, Any]) -> Figure | None:
    """Every policy and script of a summary; None: nothing is known of any."""
    points = list(_points(summary))
    if not points:
        return None
    paid = [point.x for point in points if point.x > 0]
    wide = bool(paid) and max(paid) > WIDE * min(paid)
    if wide:  # on a logarithmic axis there is no place for what is free
        points = [point for point in points if point.x > 0]
    picture = blank(11.5, 8.0) if len(points) > CROWD else blank(8.4, 5.6)
    axes = picture.add_subplot()
    quiet(axes)
    by_label = {point.label: point for point in points}
    before, after = by_label.get("before training"), by_label.get("after training")
    arrow = bool(before and after and (before.x, before.y) != (after.x, after.y))
    if before and after and arrow:
        style = {"arrowstyle": "-|>", "mutation_scale": 16, "color": BLUE, "linewidth": 1.8, "shrinkA": 7, "shrinkB": 8}
        axes.annotate("", (after.x, after.y), (before.x, before.y), arrowprops=style, zorder=2)
    for point in points:
        axes.scatter(
            point.x, point.y, s=110 if point.bold else 24 if point.faint else 52, marker=point.marker,
            linewidth=1.6, edgecolor=point.colour,
            color="white" if point.hollow else point.colour, zorder=3 + point.bold + point.hollow / 2,
        )  # fmt: skip
    costs, accuracies = [p.x for p in points], [p.y for p in points]
    high, low = max(accuracies), min(accuracies)
    margin = max(4.0, 0.14 * (high - low))
    if wide:
        axes.set_xscale("log")
        axes.set_xlim(min(costs) / 1.6, max(costs) * 2.5)
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(0, max([1e-9, *costs]) * 1.22)
    axes.set_ylim(max(0.0, low - margin), min(high + margin, 104.0))
    axes.set_xlabel("mean cost per question (cents), less is better")
    axes.set_ylabel("questions answered correctly (%)")
    if before and after:
        now = f"After training {after.y:.0f} % right for {_cents(after)} cents a question"
        headline(picture, now, f"Before: {before.y:.0f} % right for {_cents(before)} cents")
    else:
        headline(picture, "Accuracy against cost")
    _label(picture, axes, points, (before, after) if before and after and arrow else None)
    return picture


def _cents(point: _Point) -> str:
    return f"{point.x:.2f}" if point.x >= 0.05 or not point.x else f"{point.x:.2g}"


def _label(picture: Figure, axes: Axes, points: Sequence[_Point], arrow: tuple[_Point, _Point] | None) -> None:
    """Writes every point's label where it covers no marker, no arrow, no other label and no edge, if there is room."""
    picture.draw_without_rendering()  # the layout must be known to measure texts
    renderer, pixel = picture.canvas.get_renderer(), picture.dpi / 72  # type: ignore[attr-defined]

    def around(x: float, y: float, radius: float) -> Bbox:
        px, py = axes.transData.transform((x, y))
        return Bbox.from_extents(px - radius, py - radius, px + radius, py + radius)

    taken = [around(p.x, p.y, 7 * pixel) for p in points]
    if arrow:
        (a, b), along = arrow, np.linspace(0, 1, 30)
        taken += [around(a.x + t * (b.x - a.x), a.y + t * (b.y - a.y), 2 * pixel) for t in along]
    inside = axes.get_window_extent()
    leader = {"arrowstyle": "-", "color": "#b0b7bf", "linewidth": 0.8, "shrinkA": 1, "shrinkB": 6}
    directions = [(1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)]
    for point in points:
        best: tuple[float, tuple[float, float], str, str] | None = None
        text = axes.annotate(
            point.label, (point.x, point.y), (0, 0), textcoords="offset points",
            fontsize=7.5 if point.faint else 8.5 if len(points) > CROWD else 10,
            color=INK if point.colour == FAINT else point.colour, fontweight="bold" if point.bold else "normal",
            arrowprops=leader, zorder=5,
        )  # fmt: skip
        for distance, (dx, dy) in itertools.product((11.0, 22.0, 36.0, 52.0), directions):
            offset = (dx * distance * (0.75 if dy else 1), dy * distance * (0.75 if dx else 1))
            sides = ({-1: "right", 0: "center", 1: "left"}[dx], {-1: "top", 0: "center", 1: "bottom"}[dy])
            text.set(position=offset, ha=sides[0], va=sides[1])
            text.update_positions(renderer)
            extent = Text.get_window_extent(text)  # an Annotation's own would include its line
            outside = extent.width * extent.height - _overlap(extent, inside)
            cost = sum(_overlap(extent, other) for other in taken) + outside + distance
            if best is None or cost < best[0] - 1e-6:
                best = (cost, offset, *sides)
        assert best is not None
        text.set(position=best[1], ha=best[2], va=best[3])
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(max(map(abs, best[1])) > 15)
        text.update_positions(renderer)
        taken.append(Text.get_window_extent(text))


def _overlap(a: Bbox, b: Bbox) -> float:
    """Common area in square pixels."""
    common = Bbox.intersection(a, b)
    return common.width * common.height if common else 0.0
