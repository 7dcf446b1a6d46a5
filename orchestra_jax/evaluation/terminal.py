"""Tables in the terminal: what a finished run learned, and the figures of an evaluation.

docs/metrics.md describes a summary, a JSON-able mapping: `after` or `benchmarks` is needed, other missing entries are
left out, and an unknown figure is null.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from orchestra_jax.evaluation.figures import NOTHING, Figures, Row, number, plain, value

FINE_USD = 0.0005  # a cost below it, .05 cents, needs more decimals
Column = tuple[str, float, int]  # figure, factor, decimals

_COLUMNS: Mapping[str, Column] = {
    "accuracy\n%": ("accuracy", 100, 1),
    "valid\n%": ("valid_rate", 100, 1),
    "cost\ncents": ("cost", 100, 2),
    "cost per\ncorrect": ("cost_per_correct", 100, 2),
    "latency\ns": ("latency", 1, 1),
    "calls": ("calls", 1, 2),
    "exact\n%": ("exact_match", 100, 1),
    "judge\ndiffers %": ("judge_disagrees", 100, 1),
    "utility": ("utility", 1, 3),
}
_SWAP_COLUMNS: Mapping[str, Column] = {
    "accuracy %": ("accuracy", 100, 1),
    "cost cents": ("cost", 100, 2),
    "latency s": ("latency", 1, 1),
    "local share %": ("local_share", 100, 0),
}
# label: figure, and the two kinds of preference under which it is compared
_RATIOS = (
    ('cost under "cost" ÷ under "accuracy"', "cost", "cost", "accuracy"),
    ('latency under "fast" ÷ under "cost"', "latency", "fast", "cost"),
    ('local share of searches, "local" vs "accuracy"', "local_share", "local", "accuracy"),
)


def print_summary(summary: Mapping[str, Any], directory: Path, console: Console | None = None) -> None:
    """Print what the run learned; the pictures and summary.json are in `directory`."""
    console = console or Console()
    console.print()
    print_figures(console, _title(summary), list(_rows(summary)))
    for line in changes(summary):
        console.print(line, highlight=False)
    for swapped in summary_tables(summary)[1:]:
        console.print()
        console.print(swapped)
    after = summary.get("after") or {}
    after = after.get("greedy") or after
    told = [f"\nPictures, summary.json and index.html, a page of the run, are in {directory}", after.get("verdict")]
    for line in filter(None, told):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def summary_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Return the table of figures, and those of the preference swap."""
    return [_figures_table(_title(summary), list(_rows(summary))), *_swap_tables(summary.get("preference_swap") or {})]


def changes(summary: Mapping[str, Any]) -> list[str]:
    """Return what training changed, what several calls gain, and where the time went, a line for each."""
    lines = list[str]()
    before, after = summary.get("before"), summary.get("after")
    old, new = value(before, "cost_per_correct"), value(after, "cost_per_correct")
    if old is not None and new is not None:
        decimals = 4 if 0 < min(old, new) < 10 * FINE_USD else 2
        line = f"Cost per correct answer: {number(old, 100, decimals)} to {number(new, 100, decimals)} cents"
        if 0 < old < math.inf and new < math.inf:
            line += f" ([bold]{100 * (new / old - 1):+.0f} %[/bold])"
        lines.append(line)
    old, new = value(before, "accuracy"), value(after, "accuracy")
    if old is not None and new is not None:
        points = f"[bold]{100 * (new - old):+.1f} points[/bold]"
        lines.append(f"Accuracy: {number(old, 100, 1)} to {number(new, 100, 1)} % ({points})")
    if any(value((summary.get(phase) or {}).get("several") or {}, "share") for phase in ("before", "after")):
        from orchestra_jax.evaluation.benchmark_rows import gains_of_calls

        lines += gains_of_calls(summary)
    if parts := summary.get("parts"):
        shares = ", ".join(f"{name} {100 * took / sum(parts.values()):.0f} %" for name, took in parts.items())
        lines.append(f"Where the time went: {shares}")
    return lines


def print_figures(console: Console, title: str, rows: Sequence[Row], lines: Iterable[str] = ()) -> None:
    """Print a table of figures, the lines below it, and what is in none of the figures."""
    console.print(_figures_table(title, rows))
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if any(value(figures, "failed") for _, figures, _ in rows):
        from orchestra_jax.evaluation.benchmark_rows import footnotes

        console.print("\n".join(footnotes(rows)), markup=False, highlight=False, soft_wrap=True, style="yellow")


def _rows(summary: Mapping[str, Any]) -> Iterator[Row]:
    after = summary.get("after") or {}
    named = [("before training", summary.get("before"), ""), ("after training", after, "bold green")]
    named.append(("after, greedy", after.get("greedy"), "green"))
    yield from ((label, figures, style) for label, figures, style in named if figures)
    if benchmarks := summary.get("benchmarks"):
        from orchestra_jax.evaluation.benchmark_rows import benchmark_rows  # few runs have others

        for name, phases in benchmarks.items():
            for phase, style in (("before", ""), ("after", "bold green")):
                yield from benchmark_rows(f"{name}, {phase}", phases.get(phase) or {}, style)
    for name, figures in (summary.get("baselines") or {}).items():
        yield plain(name), figures, "dim"


def _title(summary: Mapping[str, Any]) -> str:
    parts, seconds = [str(summary.get("name") or "results")], value(summary, "seconds")
    parts += [f"{summary['steps']} steps"] if summary.get("steps") is not None else []
    parts += [f"{seconds / 60:.1f} min"] if seconds is not None else []
    return ", ".join([*parts, *([f"seed {summary['seed']}"] if summary.get("seed") is not None else [])])


def table(title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], **first: Any) -> Table:
    """Return a table of rows, each a style and its cells. `first` are options of the column of labels."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False
    )
    table.add_column(columns[0], **first)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    for style, cells in rows:
        table.add_row(*cells, style=style)
    return table


def _figures_table(title: str, rows: Sequence[Row]) -> Table:
    """Return a table with a line for each row; a column that no row has is left out."""
    known = {
        name: [found for _, its, _ in rows if (found := value(its, name)) is not None]
        for name, _, _ in _COLUMNS.values()
    }
    columns = {heading: column for heading, column in _COLUMNS.items() if known[column[0]]}
    # Some costs would be little but zeros: they get two decimals more.
    fine = {name for name in ("cost", "cost_per_correct") if any(0 < found < FINE_USD for found in known[name])}
    cells = [
        [number(value(its, name), factor, decimals + 2 * (name in fine)) for name, factor, decimals in columns.values()]
        for _, its, _ in rows
    ]
    lines = [(style, [label, *shown]) for (label, _, style), shown in zip(rows, cells, strict=True)]
    return table(title, ["", *columns], lines, overflow="fold")


def _swap_tables(swap: Mapping[str, Mapping[str, Figures]]) -> Iterator[Table]:
    """Yield the figures under each kind of preference, and how far the policy heeds it."""
    phases = [phase for phase in ("before", "after") if swap.get(phase)]
    rows, costs = [], [value(its, "cost") or 0 for phase in phases for its in swap[phase].values()]
    more = {"cost": 2 * any(0 < usd < FINE_USD for usd in costs)}  # decimals, as in the table of figures
    for kind in dict.fromkeys(kind for phase in phases for kind in swap[phase]):
        cells = [
            " → ".join(number(value(swap[phase].get(kind), name), by, digits + more.get(name, 0)) for phase in phases)
            for name, by, digits in _SWAP_COLUMNS.values()
        ]
        rows.append(("", [plain(kind), *cells]))
    if rows:
        title = f"The same questions under each preference, {' → '.join(phases)} training"
        yield table(title, ["preference", *_SWAP_COLUMNS], rows, no_wrap=True)
    rows = []
    for label, figure, kind, other in _RATIOS:
        found = [swap.get(phase) or {} for phase in ("before", "after")]
        cells = [_ratio(figure, value(its.get(kind), figure), value(its.get(other), figure)) for its in found]
        if cells != [NOTHING, NOTHING]:
            rows.append(("", [label, *cells]))
    if rows:
        yield table("Does it heed the preference?", ["", "before", "after"], rows, no_wrap=True)


def _ratio(figure: str, first: float | None, second: float | None) -> str:
    """Return the ratio of a figure under two kinds of preference; both figures where they are shares."""
    if first is not None and second is not None and figure == "local_share":
        return f"{number(first, 100, 0)} % vs {number(second, 100, 0)} %"
    return f"{first / second:.2f}" if first is not None and second else NOTHING
