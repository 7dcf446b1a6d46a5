"""A table of texts, and how it is written as Markdown and CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from orchestra_jax.evaluation.figures import number
from orchestra_jax.evaluation.intervals import Interval


@dataclass(frozen=True)
class TextTable:
    """A table of texts. A row whose first cell begins with "published:" is somebody else's.

    A table without columns is left out, and its note says why.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def span(interval: Interval | None, factor: float, decimals: int) -> str:
    """Return a scaled interval as text, "" if there is none."""
    return "" if interval is None else " to ".join(number(end, factor, decimals) for end in interval)


def to_markdown(title: str, tables: Sequence[TextTable]) -> str:
    """Return the tables as Markdown."""
    parts = [f"# {title}\n"]
    for table in tables:
        parts.append(f"## {table.title}\n")
        if table.columns:
            lines = [table.columns, ["---"] * len(table.columns), *table.rows]
            cells = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
            parts.append("".join(f"| {line} |\n" for line in cells))
        parts.append(f"{table.note}\n")
    return "\n".join(parts)


def to_csv(tables: Sequence[TextTable]) -> str:
    """Return the tables as CSV, a line for each cell: table, row, column, value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "row", "column", "value"])
    for table in tables:
        for row in table.rows:
            before = ""
            for column, cell in zip(table.columns[1:], row[1:], strict=True):
                writer.writerow([table.title, row[0], f"{before} {column}" if column == "95 %" else column, cell])
                before = column
    return text.getvalue()
