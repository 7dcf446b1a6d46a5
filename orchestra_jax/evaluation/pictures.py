"""The pictures of a finished run: learning curves, tool shares, and accuracy against cost.

Titles state what is seen, computed from the data.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from orchestra_jax.evaluation.against_cost import accuracy_cost
from orchestra_jax.evaluation.canvas import COLOURS, DPI, FAINT, INK, blank, headline, panel
from orchestra_jax.evaluation.figures import plain, value

OTHERS = "other tools"
LEARNING_CURVES = "learning_curves.png"
MIN_LABELLED_SHARE = 0.07


def draw(summary: Mapping[str, Any], metrics: Sequence[Mapping[str, float]], directory: Path) -> list[Path]:
    """Draw learning_curves, tool_shares and accuracy_cost: .png files, which are returned, and .svg without headlines.

    A picture without data is left out, and so are rows of metrics.jsonl without the curves' metrics, such as those of
    the warm start.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pictures = {
        LEARNING_CURVES: _learning_curves(metrics, summary),
        "tool_shares.png": _tool_shares(summary),
        "accuracy_cost.png": accuracy_cost(summary),
    }
    drawn = {directory / name: picture for name, picture in pictures.items() if picture is not None}
    for file, picture in drawn.items():
        picture.savefig(file, dpi=DPI, facecolor="white")
        picture.set_layout_engine("none")  # labels keep their places
        for text in picture.texts:  # a paper has a caption of its own
            text.set_visible(False)
        picture.savefig(file.with_suffix(".svg"), bbox_inches="tight")
    return list(drawn)


class _Curve(NamedTuple):
    """A panel: the metric's name, factor and unit as shown, colour, and its axis' label if that is not the unit."""

    metric: str
    label: str
    factor: float
    unit: str
    digits: int
    colour: str
    axis: str = ""


_CURVES = (
    _Curve("eval/utility", "Preference utility", 1.0, "", 2, "#0072b2", "held-out questions"),
    # It may fall while the policy gets better: a group whose rollouts are equally good has nothing above its minimum.
    _Curve("reward/mean", "Reward", 1.0, "", 2, "#0072b2", "Eq. 2, relative to the group"),
    _Curve("accuracy", "Accuracy", 100.0, " %", 0, "#009e73"),
    _Curve("cost_usd", "Cost per question", 100.0, " cents", 2, "#d55e00"),
    _Curve("valid_rate", "Valid rate", 100.0, " %", 0, "#aa4499"),
    _Curve("tools/entropy_share", "Entropy of tool calls", 100.0, " %", 0, "#56b4e9", "% of the menu's log size"),
)


def smooth(steps: Float[np.ndarray, " N"], values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Return Gaussian averages over neighbouring steps, about a fortieth of the run wide."""
    width = max(1.0, float(np.ptp(steps)) / 40)
    weights = np.exp(-(((steps[:, None] - steps[None, :]) / width) ** 2) / 2)
    return weights @ values / weights.sum(axis=1)


def _learning_curves(metrics: Sequence[Mapping[str, float]], summary: Mapping[str, Any]) -> Figure | None:
    found, last = list[Any](), summary.get("steps")
    ends = [(0, summary.get("before")), (last, summary.get("after"))] if last and metrics else []
    known = [*metrics, *({"step": step, "eval/utility": value(figures, "utility")} for step, figures in ends)]
    for curve in _CURVES:
        if curve.metric == "reward/mean" and found:
            continue  # the utility says more
        points = [(row["step"], value(row, curve.metric)) for row in known if "step" in row]
        kept = np.array([(step, y) for step, y in points if y is not None and math.isfinite(y)], float)
        if len(kept) >= 2:
            kept = kept[np.argsort(kept[:, 0], kind="stable")]
            found.append((curve, kept[:, 0], kept[:, 1] * curve.factor))
    if not found:
        return None
    columns = min(2, len(found))
    rows = math.ceil(len(found) / columns)
    picture = blank(5.2 * columns, 0.7 + 2.9 * rows)
    for index, (curve, steps, values) in enumerate(found):
        line = smooth(steps, values)
        title = _movement(curve, line, float(np.std(values - line)))
        axes = panel(picture, (rows, columns, index + 1), title)
        dots = "." if len(steps) < 10 else None
        axes.plot(steps, values, color=curve.colour, alpha=0.28, linewidth=0.9, marker=dots)
        axes.plot(steps, line, color=curve.colour, linewidth=2.4, solid_capstyle="round")
        axes.plot(steps[-1], line[-1], "o", color=curve.colour, markersize=5.5, clip_on=False)
        axes.margins(x=0.02)
        if curve.metric == "eval/utility":
            _best_script(axes, summary.get("baselines") or {})
        if curve.metric == "cost_usd":
            axes.set_ylim(0, max(float(values.max()) * 1.08, 1e-9))
        elif curve.metric == "valid_rate":
            axes.set_ylim(min(80.0, float(values.min()) - 3), 101.5)  # a narrower axis would magnify noise
        if label := curve.axis or curve.unit.strip():
            axes.set_ylabel(label)
        if index + columns >= len(found):
            axes.set_xlabel("training step")
    done = np.concatenate([steps for _, steps, _ in found])
    steps_done = int(done.max() - max(done.min(), 1)) + 1  # step 0 is the evaluation before
    in_turn = bool(summary.get("enumerate_calls"))
    rollouts = "rollouts, whose first calls take turns and are not the policy's own" if in_turn else "rollouts"
    headline(picture, f"{steps_done} steps of training", f"Light: each step's {rollouts}. Bold: smoothed.")
    return picture


def _best_script(axes: Axes, baselines: Mapping[str, Any]) -> None:
    """Draw the utility of the best baseline as a dotted line."""
    utilities = {name: found for name, figures in baselines.items() if (found := value(figures, "utility")) is not None}
    if utilities:
        name = max(utilities, key=utilities.__getitem__)
        axes.axhline(utilities[name], color=FAINT, linewidth=1, linestyle=":")
        axes.text(0.01, utilities[name], plain(name), transform=axes.get_yaxis_transform(), va="top", color=FAINT)
    axes.set_ylim(bottom=0)


def _movement(curve: _Curve, line: Float[np.ndarray, " N"], noise: float) -> str:
    first, last = (f"{y:.{curve.digits}f}" for y in (line[0], line[-1]))
    if first == last or abs(line[-1] - line[0]) < noise:
        return f"{curve.label} stays near {last}{curve.unit}"
    return f"{curve.label} {'rises' if line[-1] > line[0] else 'falls'} from {first} to {last}{curve.unit}"


def _tool_shares(summary: Mapping[str, Any]) -> Figure | None:
    phases = {
        phase: shares for phase in ("before", "after") if (shares := (summary.get(phase) or {}).get("tool_shares"))
    }
    names = {family for shares in phases.values() for family in shares}
    tools = _main_tools(phases)
    if not tools:
        return None
    families = sorted(names - {"all"})
    if "all" in names and len(families) != 1:
        families.append("all")
    # The bar of all questions stands a little apart.
    places = [-(i + 0.35 * (family == "all" and i > 0)) for i, family in enumerate(families)]
    colours = dict(zip(tools, COLOURS, strict=False)) | {OTHERS: COLOURS[-1]}
    picture = blank(5.6 * len(phases), 1.9 + 0.52 * len(families))
    for index, (phase, shares) in enumerate(phases.items()):
        axes = panel(picture, (1, len(phases), index + 1), f"{phase} training", grid="x")
        if index:
            axes.sharey(picture.axes[0])
        for place, family in zip(places, families, strict=True):
            _bar(axes, place, _merge(shares.get(family, {}), tools), colours)
        axes.set(xlim=(0, 100), xlabel="share of tool calls (%)", yticks=places)
        axes.set_yticklabels(["all questions" if family == "all" else plain(family) for family in families])
        axes.tick_params(axis="y", labelsize=10, labelcolor=INK, labelleft=index == 0)
        axes.spines[["left", "bottom"]].set_visible(False)
    handles = [Patch(color=colours[tool], label=plain(tool)) for tool in tools]
    columns = 3 if len(phases) == 1 else len(tools) if len(tools) <= 6 else 4
    size = {"fontsize": 9.5, "handlelength": 1.0, "handleheight": 1.0, "columnspacing": 1.6}
    picture.legend(handles=handles, loc="outside lower center", frameon=False, labelcolor=INK, ncols=columns, **size)
    headline(picture, *_findings(phases, tools, families))
    return picture


def _main_tools(phases: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Return the tools that get a colour, sorted by name; the least used share the last colour."""
    use: dict[str, float] = {}
    for tool, share in (item for shares in phases.values() for each in shares.values() for item in each.items()):
        use[tool] = use.get(tool, 0.0) + share
    ranked = sorted(use, key=lambda tool: (-use[tool], tool))
    kept = ranked if len(ranked) < len(COLOURS) else ranked[: len(COLOURS) - 1]
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
    """Return the title, the largest rise and fall over all questions, and the favourite tool of every family."""
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
