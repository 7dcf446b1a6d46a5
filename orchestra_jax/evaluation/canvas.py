"""The common look of all pictures: size, colours, quiet axes and a title at the left."""

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DPI = 150
INK, FAINT, GRID = "#24292f", "#6e7781", "#e4e7eb"
# Okabe and Ito's colours, told apart under the common kinds of colour blindness; the eighth is for all other tools.
COLOURS = ("#0072b2", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#cc79a7", "#f0e442", "#b8bec6")


def blank(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, on a canvas of its own that pyplot knows nothing of."""
    made = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    FigureCanvasAgg(made)
    made.get_layout_engine().set(w_pad=0.12, h_pad=0.1, wspace=0.04, hspace=0.06)  # type: ignore[union-attr, call-arg]
    return made


def panel(picture: Figure, place: tuple[int, int, int] = (1, 1, 1), title: str = "", grid: str = "both") -> Axes:
    """Return new axes without a frame, with faint labels and grid. `place` is rows, columns and the number there."""
    axes = picture.add_subplot(*place)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c4cad1")
    axes.tick_params(colors=FAINT, labelsize=9, length=0, pad=5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=FAINT, fontsize=9.5)
    axes.set_axisbelow(True)
    axes.grid(True, axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=8)
    return axes


def headline(picture: Figure, text: str, detail: str = "") -> None:
    """Write the title at the left, with a quieter second line if it fits the width."""
    if len(detail) > 11.5 * picture.get_figwidth():
        detail = ""
    # The line break reserves room for the second line.
    picture.suptitle(text + "\n" * bool(detail), x=0.015, ha="left", fontsize=13, fontweight="bold", color=INK)
    picture.text(0.015, 1 - 0.4 / picture.get_figheight(), detail, ha="left", va="top", fontsize=10, color=FAINT)
