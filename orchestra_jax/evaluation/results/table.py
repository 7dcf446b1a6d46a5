"""A table of texts, and how it is written as Markdown and CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from orchestra_jax.evaluation.intervals import Interval


@dataclass(frozen=True)
class Table:
    """A table of texts; a row whose first cell begins with "published:" is somebody else's.

    One without columns is left out, and its note says why.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def number(value: float | None, scale: float, digits: int) -> str:
    return "–" if value is None else _written(scale * value, digits)


def span(interval: Interval | None, scale: float, digits: int) -> str:
    return "" if interval is None else " to ".join(_written(scale * end, digits) for end in interval)


def _written(value: float, digits: int) -> str:
    """Without a sign where nothing is left of it."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def to_markdown(title: str, made: Sequence[Table]) -> str:
    """The tables as Markdown."""
    parts = [f"# {title}\n"]
    for table in made:
        parts.append(f"## {table.title}\n")
        if table.columns:
            lines = [table.columns, ["---"] * len(table.columns), *table.rows]
            cells = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
            parts.append("".join(f"| {line} |\n" for line in cells))
        parts.append(f"{table.note}\n")
    return "\n".join(parts)


def to_csv(made: Sequence[Table]) -> str:
    """The tables as CSV, one cell of a row in a line: table, row, column, value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "row", "column", "value"])
    for table in made:
        for row in table.rows:
            before = ""
            for column, cell in zip(table.columns[1:], row[1:], strict=True):
                writer.writerow([table.title, row[0], f"{before} {column}" if column == "95 %" else column, cell])
                before = column
    return text.getvalue()
