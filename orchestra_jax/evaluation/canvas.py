"""What every picture of a run shares: size, colours, quiet axes and a title at the left."""

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DPI = 150
INK, FAINT, GRID = "#24292f", "#6e7781", "#e4e7eb"


def blank(width: float, height: float) -> Figure:
    """An empty figure of that many inches, on a canvas of its own: pyplot and its global state stay out of it."""
    made = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    FigureCanvasAgg(made)
    made.get_layout_engine().set(w_pad=0.12, h_pad=0.1, wspace=0.04, hspace=0.06)  # type: ignore[union-attr, call-arg]
    return made


def quiet(axes: Axes, *, grid: str = "both") -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#c4cad1")
    axes.tick_params(colors=FAINT, labelsize=9, length=0, pad=5)
    axes.xaxis.label.set(color=FAINT, fontsize=9.5)
    axes.yaxis.label.set(color=FAINT, fontsize=9.5)
    axes.set_axisbelow(True)
    axes.grid(True, axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]


def headline(picture: Figure, text: str, detail: str = "") -> None:
    """Title at the left, with a quieter second line where it fits the width."""
    if len(detail) > 11.5 * picture.get_figwidth():
        detail = ""
    # The line break reserves room for the second line.
    picture.suptitle(text + "\n" * bool(detail), x=0.015, ha="left", fontsize=13, fontweight="bold", color=INK)
    picture.text(0.015, 1 - 0.4 / picture.get_figheight(), detail, ha="left", va="top", fontsize=10, color=FAINT)
