"""The pictures of a finished run: learning curves, tool shares, and accuracy against cost.

What a summary holds is written in `evaluation.report`. Titles state what is seen, computed from the data.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from orchestra_jax.evaluation.report import plain, value

DPI = 150
INK, FAINT, GRID = "#24292f", "#6e7781", "#e4e7eb"
BLUE, ORANGE = "#0072b2", "#d55e00"
# Okabe and Ito's colours, told apart under the common kinds of colour blindness; the eighth is for all other tools.
TOOL_COLOURS = ("#0072b2", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#cc79a7", "#f0e442", "#b8bec6")
OTHERS = "other tools"
LEARNING_CURVES = "learning_curves.png"
MIN_LABELLED_SHARE = 0.07


def draw(summary: Mapping[str, Any], metrics: Sequence[Mapping[str, float]], directory: Path) -> list[Path]:
    """Draws learning_curves.png, tool_shares.png and accuracy_cost.png; a picture without data is not drawn.

    Args:
        summary: of a finished run.
        metrics: rows of metrics.jsonl: "step" with any of the metrics of the curves. Rows
            without them, such as those of the warm start, are passed over.
        directory: made if missing.

    Returns:
        The files written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pictures = {
        LEARNING_CURVES: _learning_curves(metrics),
        "tool_shares.png": _tool_shares(summary),
        "accuracy_cost.png": _accuracy_cost(summary),
    }
    written = []
    for name, picture in pictures.items():
        if picture is not None:
            picture.savefig(directory / name, dpi=DPI, facecolor="white")
            written.append(directory / name)
    return written


def _figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches, on a canvas of its own: pyplot and its global state stay out of it."""
    made = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    FigureCanvasAgg(made)
    made.get_layout_engine().set(w_pad=0.12, h_pad=0.1, wspace=0.04, hspace=0.06)  # type: ignore[union-attr, call-arg]
    return made


def _style(axes: Axes, *, grid: str = "both") -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#c4cad1")
    axes.tick_params(colors=FAINT, labelsize=9, length=0, pad=5)
    axes.xaxis.label.set(color=FAINT, fontsize=9.5)
    axes.yaxis.label.set(color=FAINT, fontsize=9.5)
    axes.set_axisbelow(True)
    axes.grid(True, axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]


def _headline(picture: Figure, text: str, detail: str = "") -> None:
    """Title at the left, with a quieter second line where it fits the width."""
    if len(detail) > 11.5 * picture.get_figwidth():
        detail = ""
    # The line break reserves room for the second line.
    picture.suptitle(text + "\n" * bool(detail), x=0.015, ha="left", fontsize=13, fontweight="bold", color=INK)
    picture.text(0.015, 1 - 0.4 / picture.get_figheight(), detail, ha="left", va="top", fontsize=10, color=FAINT)


def draw_turn_caps(rows: Sequence[tuple[str, Mapping[str, Any], str]], directory: Path) -> Path:
    """Draws turn_caps.png: accuracy against cost by the most turns, a line for each benchmark (Fig. 6).

    Args:
        rows: of `report.cap_rows`, labelled "BENCHMARK, N turns".
    """
    lines: dict[str, list[tuple[float, float, str]]] = {}
    for label, figures, _ in rows:
        cost, accuracy = value(figures, "cost"), value(figures, "accuracy")
        name, _, cap = label.rpartition(", ")
        if cost is not None and accuracy is not None:
            lines.setdefault(name, []).append((100 * cost, 100 * accuracy, cap))
    picture = _figure(7.2, 4.6)
    axes = picture.add_subplot()
    _style(axes)
    for (name, points), colour in zip(lines.items(), itertools.cycle(TOOL_COLOURS), strict=False):
        axes.plot(*zip(*(point[:2] for point in points), strict=True), "o-", color=colour, label=name)
        for (x, y), same in itertools.groupby(points, key=lambda point: point[:2]):
            caps = " and ".join(cap.removesuffix(" turns") for _, _, cap in same)
            axes.annotate(f"{caps} turns", (x, y), xytext=(5, -12), textcoords="offset points", fontsize=8, color=FAINT)
    axes.set(xlabel="cents a question", ylabel="accuracy (%)")
    axes.margins(0.12)
    axes.legend(frameon=False, fontsize=9)
    _headline(picture, "Accuracy against cost by the most turns")
    picture.savefig(directory / "turn_caps.png", dpi=DPI, facecolor="white")
    return directory / "turn_caps.png"


# --- learning curves -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Curve:
    """One panel: the metric's name, factor and unit as shown, colour, and its axis where that is not the unit."""

    metric: str
    label: str
    factor: float
    unit: str
    digits: int
    colour: str
    axis: str = ""


_CURVES = (
    # It may fall while the policy gets better: a group whose rollouts are equally good has nothing above its minimum.
    _Curve("reward/mean", "Reward", 1.0, "", 2, "#0072b2", "Eq. 2, relative to the group"),
    _Curve("accuracy", "Accuracy", 100.0, " %", 0, "#009e73"),
    _Curve("cost_usd", "Cost per question", 100.0, " cents", 2, "#d55e00"),
    _Curve("valid_rate", "Valid rate", 100.0, " %", 0, "#aa4499"),
    _Curve("tools/entropy_share", "Entropy of tool calls", 100.0, " %", 0, "#56b4e9", "% of the menu's log size"),
)


def smooth(steps: Float[np.ndarray, " N"], values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Gaussian average over the neighbouring steps, about a fortieth of the run wide; the ends use the inside only."""
    width = max(1.0, float(np.ptp(steps)) / 40)
    weights = np.exp(-(((steps[:, None] - steps[None, :]) / width) ** 2) / 2)
    return weights @ values / weights.sum(axis=1)


def _learning_curves(metrics: Sequence[Mapping[str, float]]) -> Figure | None:
    found = []
    for curve in _CURVES:
        points = [(row["step"], value(row, curve.metric)) for row in metrics if "step" in row]
        kept = np.array([(step, y) for step, y in points if y is not None and math.isfinite(y)], float)
        if len(kept) >= 2:
            kept = kept[np.argsort(kept[:, 0], kind="stable")]
            found.append((curve, kept[:, 0], kept[:, 1] * curve.factor))
    if not found:
        return None
    columns = min(2, len(found))
    rows = math.ceil(len(found) / columns)
    picture = _figure(5.2 * columns, 0.7 + 2.9 * rows)
    for index, (curve, steps, values) in enumerate(found):
        axes = picture.add_subplot(rows, columns, index + 1)
        _style(axes)
        line = smooth(steps, values)
        axes.plot(steps, values, color=curve.colour, alpha=0.28, linewidth=0.9)
        axes.plot(steps, line, color=curve.colour, linewidth=2.4, solid_capstyle="round")
        axes.plot(steps[-1], line[-1], "o", color=curve.colour, markersize=5.5, clip_on=False)
        title = _movement(curve, line, float(np.std(values - line)))
        axes.set_title(title, loc="left", fontsize=11, color=INK, pad=8)
        axes.margins(x=0.02)
        if curve.metric == "cost_usd":
            axes.set_ylim(0, max(float(values.max()) * 1.08, 1e-9))
        elif curve.metric == "valid_rate":
            axes.set_ylim(min(80.0, float(values.min()) - 3), 101.5)  # a narrower axis would magnify noise
        if label := curve.axis or curve.unit.strip():
            axes.set_ylabel(label)
        if index + columns >= len(found):
            axes.set_xlabel("training step")
    steps_done = int(max(steps[-1] for _, steps, _ in found) - min(steps[0] for _, steps, _ in found)) + 1
    _headline(picture, f"{steps_done} steps of training", "Light: each step's rollouts. Bold: smoothed.")
    return picture


def _movement(curve: _Curve, line: Float[np.ndarray, " N"], noise: float) -> str:
    first, last = (f"{y:.{curve.digits}f}" for y in (line[0], line[-1]))
    if first == last or abs(line[-1] - line[0]) < noise:
        return f"{curve.label} stays near {last}{curve.unit}"
    return f"{curve.label} {'rises' if line[-1] > line[0] else 'falls'} from {first} to {last}{curve.unit}"


# --- tool shares -----------------------------------------------------------------------------------------------------

_FAMILY_ORDER = ("arith", "lookup", "easy", "hard")


def _tool_shares(summary: Mapping[str, Any]) -> Figure | None:
    phases = {
        phase: shares for phase in ("before", "after") if (shares := (summary.get(phase) or {}).get("tool_shares"))
    }
    names = {family for shares in phases.values() for family in shares}
    tools = _main_tools(phases)
    if not tools:
        return None
    order = [f for f in _FAMILY_ORDER if f in names] + sorted(names - {*_FAMILY_ORDER, "all"})
    families = [*order, "all"] if "all" in names and len(order) != 1 else order
    # The bar of all questions stands a little apart.
    places = [-(i + 0.35 * (family == "all" and i > 0)) for i, family in enumerate(families)]
    colours = dict(zip(tools, TOOL_COLOURS, strict=False)) | {OTHERS: TOOL_COLOURS[-1]}
    picture = _figure(5.6 * len(phases), 1.9 + 0.52 * len(families))
    first: Axes | None = None
    for index, (phase, shares) in enumerate(phases.items()):
        axes = picture.add_subplot(1, len(phases), index + 1, sharey=first)
        first = first or axes
        _style(axes, grid="x")
        for place, family in zip(places, families, strict=True):
            _bar(axes, place, _merge(shares.get(family, {}), tools), colours)
        axes.set_title(f"{phase} training", loc="left", fontsize=11, color=INK, pad=8)
        axes.set(xlim=(0, 100), xlabel="share of tool calls (%)", yticks=places)
        axes.set_yticklabels(["all questions" if family == "all" else plain(family) for family in families])
        axes.tick_params(axis="y", labelsize=10, labelcolor=INK, labelleft=index == 0)
        axes.spines[["left", "bottom"]].set_visible(False)
    handles = [Patch(color=colours[tool], label=plain(tool)) for tool in tools]
    picture.legend(
        handles=handles, loc="outside lower center", frameon=False, fontsize=9.5,
        ncols=3 if len(phases) == 1 else len(tools) if len(tools) <= 6 else 4,
        labelcolor=INK, handlelength=1.0, handleheight=1.0, columnspacing=1.6,
    )  # fmt: skip
    _headline(picture, *_findings(phases, tools, families))
    return picture


def _main_tools(phases: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Tools that get a colour, by name so that kindred ones are neighbours; the least used share the last colour."""
    use: dict[str, float] = {}
    for shares in phases.values():
        for tool, share in itertools.chain.from_iterable(by_tool.items() for by_tool in shares.values()):
            use[tool] = use.get(tool, 0.0) + share
    ranked = sorted(use, key=lambda tool: (-use[tool], tool))
    kept = ranked if len(ranked) < len(TOOL_COLOURS) else ranked[: len(TOOL_COLOURS) - 1]
    return sorted(kept) + ([OTHERS] if len(kept) < len(ranked) else [])


def _merge(shares: Mapping[str, float], tools: Sequence[str]) -> dict[str, float]:
    rest = sum(share for tool, share in shares.items() if tool not in tools)
    return {tool: rest if tool == OTHERS else shares.get(tool, 0.0) for tool in tools}


def _bar(axes: Axes, place: float, shares: Mapping[str, float], colours: Mapping[str, str]) -> None:
    if not any(shares.values()):
        axes.text(1, place, "no calls", va="center", fontsize=9, color=FAINT)
    left = 0.0
    for tool, share in shares.items():
        axes.barh(place, 100 * share, 0.72, left=left, color=colours[tool], edgecolor="white", linewidth=1.2)
        if share >= MIN_LABELLED_SHARE:
            red, green, blue = (int(colours[tool][i : i + 2], 16) / 255 for i in (1, 3, 5))
            ink = INK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.52 else "white"
            axes.text(left + 50 * share, place, f"{100 * share:.0f}", ha="center", va="center", fontsize=9, color=ink)
        left += 100 * share


def _findings(
    phases: Mapping[str, Mapping[str, Mapping[str, float]]], tools: Sequence[str], families: Sequence[str]
) -> tuple[str, str]:
    """The largest rise and fall over all questions as the title, every family's favourite as the second line."""
    favourites = []
    for family in families[:5]:
        shares = phases.get("after", {}).get(family, {})
        if family != "all" and any(shares.values()):
            tool = max(shares, key=shares.__getitem__)
            favourites.append(f"{plain(family)}: {plain(tool)} ({100 * shares[tool]:.0f} %)")
    detail = f"Most called after training: {'; '.join(favourites)}" if favourites else ""
    before, after = (_merge(phases.get(phase, {}).get("all", {}), tools) for phase in ("before", "after"))
    change = {tool: after[tool] - before[tool] for tool in tools}
    down, up = min(change, key=change.__getitem__), max(change, key=change.__getitem__)
    if not (any(before.values()) and any(after.values())) or change[up] - change[down] < 0.02:
        return "Which tools the policy calls", detail

    def moved(tool: str, verb: str) -> str:
        return f"{plain(tool)} {verb} from {100 * before[tool]:.0f} to {100 * after[tool]:.0f} %"

    title = f"{moved(up, 'rises')} of calls, {moved(down, 'falls')}"
    return title[:1].upper() + title[1:], detail


# --- accuracy against cost -------------------------------------------------------------------------------------------


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


def _points(summary: Mapping[str, Any]) -> Iterator[_Point]:
    after = summary.get("after") or {}
    rows: list[tuple[Any, str, str, str, bool]] = [
        (after, "after training", BLUE, "o", True),
        (summary.get("before"), "before training", FAINT, "o", True),
        (after.get("greedy"), "after, greedy", BLUE, "D", False),
    ]
    baselines = summary.get("baselines") or {}
    rows += [(figures, plain(name), ORANGE, "s", False) for name, figures in baselines.items()]
    for figures, label, colour, marker, bold in rows:
        cost, accuracy = value(figures, "cost"), value(figures, "accuracy")
        if cost is not None and accuracy is not None and math.isfinite(cost):
            yield _Point(100 * cost, 100 * accuracy, label, colour, marker, bold, hollow=marker == "D")


def _accuracy_cost(summary: Mapping[str, Any]) -> Figure | None:
    points = list(_points(summary))
    if not points:
        return None
    picture = _figure(8.4, 5.6)
    axes = picture.add_subplot()
    _style(axes)
    by_label = {point.label: point for point in points}
    before, after = by_label.get("before training"), by_label.get("after training")
    arrow = bool(before and after and (before.x, before.y) != (after.x, after.y))
    if before and after and arrow:
        style = {"arrowstyle": "-|>", "mutation_scale": 16, "color": BLUE, "linewidth": 1.8, "shrinkA": 7, "shrinkB": 8}
        axes.annotate("", (after.x, after.y), (before.x, before.y), arrowprops=style, zorder=2)
    for point in points:
        axes.scatter(
            point.x, point.y, s=110 if point.bold else 52, marker=point.marker, linewidth=1.6, edgecolor=point.colour,
            color="white" if point.hollow else point.colour, zorder=3 + point.bold + point.hollow / 2,
        )  # fmt: skip
    costs, accuracies = [p.x for p in points], [p.y for p in points]
    high, low = max(accuracies), min(accuracies)
    margin = max(4.0, 0.14 * (high - low))
    axes.set_xlim(0, max(1e-9, *costs) * 1.22)
    axes.set_ylim(max(0.0, low - margin), min(high + margin, 104.0))
    axes.set_xlabel("mean cost per question (cents), less is better")
    axes.set_ylabel("questions answered correctly (%)")
    if before and after:
        now = f"After training {after.y:.0f} % right for {after.x:.2f} cents a question"
        _headline(picture, now, f"Before: {before.y:.0f} % right for {before.x:.2f} cents")
    else:
        _headline(picture, "Accuracy against cost")
    _label(picture, axes, points, (before, after) if before and after and arrow else None)
    return picture


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
            point.label, (point.x, point.y), (0, 0), textcoords="offset points", fontsize=10,
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
