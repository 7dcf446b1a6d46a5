"""A table of texts, and how it is written as Markdown and CSV.

Names of tools, models and questions are foreign: no cell begins a formula of a spreadsheet or a tag of HTML.
"""

import csv
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestra_jax.evaluation.figures import number
from orchestra_jax.evaluation.intervals import Interval

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a spreadsheet may compute begins with one of these
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_MARKED = re.compile(r"([\\`*\[\]|])")  # a link, an image, code or a column of Markdown begins with one of these


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
    parts = [f"# {_as_words(title)}\n"]
    for table in tables:
        parts.append(f"## {_as_words(table.title)}\n")
        rule = "|" + " --- |" * len(table.columns) + "\n"
        first, *rest = ("| " + " | ".join(map(_as_words, line)) + " |\n" for line in (table.columns, *table.rows))
        parts.append("".join([first, rule, *rest]))
        parts.append(f"{_as_words(table.note)}\n")
    return "\n".join(parts)


def to_csv(tables: Sequence[TextTable]) -> str:
    """Return the tables as CSV, a line for each cell: table, row, column, value.

    A text that a spreadsheet would compute has an apostrophe before it; a number is left as it is.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "row", "column", "value"])
    for table in tables:
        for row in table.rows:
            before = ""
            for column, cell in zip(table.columns[1:], row[1:], strict=True):
                named = f"{before} {column}" if column == "95 %" else column
                writer.writerow(map(_as_data, (table.title, row[0], named, cell)))
                before = column
    return text.getvalue()


def _as_words(text: str) -> str:
    """Return a text as Markdown that shows it in one line and is nothing but words."""
    return _MARKED.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _as_data(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell) else cell
