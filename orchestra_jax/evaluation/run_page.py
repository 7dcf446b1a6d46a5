"""The page of a finished run: what it learned, three questions before and after training, and how to ask its policy."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from rich.table import Table
from rich.text import Text

from orchestra_jax.config.schema import POLICY_FOLDER
from orchestra_jax.evaluation.benchmarks import HELD_OUT
from orchestra_jax.evaluation.results.rendering import templates
from orchestra_jax.evaluation.terminal import changes, summary_tables
from orchestra_jax.io.whole import write_whole

FILE_NAME = "index.html"
_SHOWN = 3  # questions
_PICTURES = {
    "learning_curves.png": "Learning curves",
    "accuracy_cost.png": "Accuracy against cost",
    "tool_shares.png": "Shares of the tools before and after training",
}


def write_page(summary: Mapping[str, Any], directory: Path, rows: Sequence[Mapping[str, float]] = ()) -> Path:
    """Write the page of a run with these rows of metrics.jsonl, beside its pictures, and return its path."""
    pairs = _before_and_after(directory / "evaluation" / "trajectories")
    page = templates().get_template("run.html.jinja").render(
        name=str(summary.get("name") or directory.name),
        changes=[Text.from_markup(line).plain for line in changes(summary)],
        pictures={name: words for name, words in _PICTURES.items() if (directory / name).is_file()},
        tables=[_cells(table) for table in summary_tables(summary)],
        pairs=pairs,
        rows=rows,
        folder=quote(str(directory)) if (directory / POLICY_FOLDER).is_dir() else "",
        commands=[f"{quote(row['question'])} --wish {quote(row['preference'])}" for _, row in pairs],
    )  # fmt: skip  # one argument a line
    write_whole(directory / FILE_NAME, page)
    return directory / FILE_NAME


def _cells(table: Table) -> tuple[str, list[list[str]]]:
    """Return the title and the rows of a table of the terminal, the headings first."""
    columns = [[" ".join(str(column.header).split()), *map(str, column.cells)] for column in table.columns]
    return str(table.title), [list(row) for row in zip(*columns, strict=True)]


def _before_and_after(folder: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return held-out questions with their trajectories before and after: mended ones first, and of many calls."""
    before, after = ({row["id"]: row for row in _rows(folder / phase)} for phase in ("before", "after"))
    pairs = [(before[name], row) for name, row in after.items() if name in before]
    pairs.sort(key=lambda pair: (not pair[1]["solved"], pair[0]["solved"], -sum(map(len, pair[1]["sequences"]))))
    one_each = {pair[1]["family"]: pair for pair in reversed(pairs)}
    first = [pair for pair in pairs if pair is one_each[pair[1]["family"]]]
    return [*first, *(pair for pair in pairs if pair not in first)][:_SHOWN]


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of an evaluation's trajectories, greedy ones if there are any, as the policy is served."""
    files = sorted(folder.glob(f"{HELD_OUT}.t*.jsonl"), key=lambda file: (".t0.jsonl" not in file.name, file.name))
    for line in files[0].read_text(encoding="utf-8").splitlines() if files else []:
        yield json.loads(line)
