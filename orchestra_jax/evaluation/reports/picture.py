"""Accuracy against cost, as SVG."""

import io
from collections.abc import Sequence

from orchestra_jax.evaluation.intervals import wilson
from orchestra_jax.evaluation.reports.measured import Measured
from orchestra_jax.evaluation.reports.published import PLACES, PUBLISHED


def picture(label: str, found: Sequence[Measured]) -> str:
    """Accuracy against cents a question of the policies on one benchmark, as SVG; the paper's as hollow marks."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    points = [_point(one) for one in found if one.label == label and one.items]
    place = PLACES.get(next(one.source for one in found if one.label == label))
    theirs = [(f"{row[0]} (published)", row[3], float(row[place])) for row in PUBLISHED] if place else []
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for name, cents, accuracy, low, high in points:
        axes.errorbar(cents, accuracy, yerr=[[accuracy - low], [high - accuracy]], fmt="o", capsize=3)
        axes.annotate(name, (cents, accuracy), xytext=(6, 4), textcoords="offset points", fontsize=8)
    for name, cents, accuracy in theirs:
        axes.plot(cents, accuracy, "o", mfc="none", mec="#6e7781")
        axes.annotate(name, (cents, accuracy), xytext=(6, 4), textcoords="offset points", fontsize=7, color="#6e7781")
    dearest = max([point[1] for point in points] + [point[1] for point in theirs], default=0.0)
    axes.set(xlabel="cents a question", ylabel="accuracy %", title=label, ylim=(0, 100))
    axes.set_xlim(0, 1.1 * dearest or 1.0)  # with room for the dearest one's mark
    axes.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "orchestra_jax", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _point(one: Measured) -> tuple[str, float, float, float, float]:
    items = list(one.items.values())
    solved = sum(item.solved for item in items)
    low, high = wilson(solved, len(items)) or (0.0, 1.0)
    cents = 100 * sum(item.cost for item in items) / len(items)
    return one.run, cents, 100 * solved / len(items), 100 * low, 100 * high
