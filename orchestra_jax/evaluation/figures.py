"""Figures of a summary (docs/metrics.md describes it), and how they are read and written."""

import math
from collections.abc import Mapping
from typing import Any

NOTHING = "–"
Figures = Mapping[str, Any]
Row = tuple[str, Figures, str]  # label, figures, style


def value(figures: Figures | None, name: str) -> float | None:
    """Return a figure as a float (infinities included), or None if it is missing or not a number."""
    try:
        found = float((figures or {})[name])
    except (KeyError, TypeError, ValueError):
        return None
    return None if math.isnan(found) else found


def number(figure: float | None, factor: float, decimals: int) -> str:
    """Return a scaled figure as text, a dash if there is none; it has no sign if it rounds to 0."""
    if figure is None:
        return NOTHING
    return f"{round(factor * figure, decimals) + 0.0:.{decimals}f}" if math.isfinite(figure) else "∞"


def plain(name: str) -> str:
    """Return a name as words: "random tool" for "random_tool"."""
    return name.replace("_", " ")
