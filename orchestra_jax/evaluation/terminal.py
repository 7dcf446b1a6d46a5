"""The proof of learning: what a finished run's summary says, as tables in the terminal and as three pictures.

A summary is a JSON-able mapping. `after` or `benchmarks` is needed; what else is missing is left out of tables and
pictures.

    name, seed, steps, seconds   of the run; seconds in total
    before, after                figures (below), with tool_shares {family: {tool: share}} and greedy (figures at
                                 temperature 0) beside them; family "all" covers every question
    baselines                    figures by script
    preference_swap              {"before" | "after": {kind: figures and local_share}}: the same questions under each
                                 kind of preference
    benchmarks                   {name: {"before" | "after": figures}} of the other benchmarks; one with parts has
                                 {part: figures} instead

Beside the figures of a benchmark `turn_caps`, {turns: figures}, where there are any.

Figures: accuracy, valid_rate and utility in [0, 1]; cost and cost_per_correct in dollars; latency in seconds; calls;
failed and counted, the questions that are in no other figure and those that are. Where a judge was asked: exact_match,
judged and judge_disagrees in [0, 1]. Beside them `intervals`, at 95 %: {figure: {"wilson" | "bootstrap": [low, high]}},
and where each question has several samples `pass^k` and `pass@k`: {k: share of the questions}.
Where there are models on the menu: model_calls, strongest_share and own_share, see `measures.delegation`; where calls
were made, `several`, see `measures.several`.
What is not known is null: a cost per correct answer where nothing was solved, every mean where everything failed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

NOTHING = "–"
FINE_USD = 0.0005  # a cost below it, .05 cents, needs more decimals
Figures = Mapping[str, Any]
Row = tuple[str, Figures, str]  # label, figures, style

# column: (figure, factor, decimals)
_COLUMNS: Mapping[str, tuple[str, float, int]] = {
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
_SWAP_COLUMNS: Mapping[str, tuple[str, float, int]] = {
    "accuracy %": ("accuracy", 100, 1),
    "cost cents": ("cost", 100, 2),
    "latency s": ("latency", 1, 1),
    "local share %": ("local_share", 100, 0),
}

# label: figure, and the two kinds of preference it is compared under
_RATIOS = (
    ('cost under "cost" ÷ under "accuracy"', "cost", "cost", "accuracy"),
    ('latency under "fast" ÷ under "cost"', "latency", "fast", "cost"),
    ('local share of searches, "local" vs "accuracy"', "local_share", "local", "accuracy"),
)


def value(figures: Mapping[str, Any] | None, name: str) -> float | None:
    """A figure as a float (infinities included); None where it is missing or not a number."""
    try:
        number = float((figures or {})[name])
    except (KeyError, TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def plain(name: str) -> str:
    """A name as words: "random_tool" gives "random tool"."""
    return name.replace("_", " ")


def print_summary(summary: Mapping[str, Any], console: Console | None = None, *, directory: Path | None = None) -> None:
    """Prints what the run learned.

    Args:
        summary: see the module; a missing figure is shown as a dash.
        console: standard output if None.
        directory: where the pictures and summary.json lie; `outputs/<name>` if None.

    Raises:
        ValueError: the summary has neither `after` nor `benchmarks`.
    """
    if not (summary.get("after") or summary.get("benchmarks")):
        raise ValueError("The summary has no 'after' figures: evaluate the trained policy before reporting.")
    console = console or Console()
    console.print()
    print_figures(console, _title(summary), list(_rows(summary)))
    for line in _changes(summary):
        console.print(line, highlight=False)
    swap = {phase: kinds for phase, kinds in (summary.get("preference_swap") or {}).items() if kinds}
    if swap:
        console.print()
        console.print(_swap_table(swap))
        ratios = _ratio_table(swap)
        if ratios.row_count:
            console.print()
            console.print(ratios)
    if directory is not None or summary.get("name"):
        where = directory or Path("outputs") / str(summary["name"])
        console.print(f"\nPictures and summary.json are in {where}", markup=False, highlight=False, soft_wrap=True)


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False
    )


def _shown(number: float | None, factor: float, decimals: int) -> str:
    if number is None:
        return NOTHING
    return f"{factor * number:.{decimals}f}" if math.isfinite(number) else "∞"


def _rows(summary: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of the main table."""
    before, after = summary.get("before") or {}, summary.get("after") or {}
    if before:
        yield "before training", before, ""
    if after:
        yield "after training", after, "bold green"
    if greedy := after.get("greedy"):
        yield "after, greedy", greedy, "green"
    for name, phases in (summary.get("benchmarks") or {}).items():
        for phase, style in (("before", ""), ("after", "bold green")):
            yield from benchmark_rows(f"{name}, {phase}", phases.get(phase) or {}, style)
    for name, figures in (summary.get("baselines") or {}).items():
        yield plain(name), figures, "dim"


def benchmark_rows(name: str, figures: Figures, style: str = "") -> Iterator[Row]:
    """The rows of one benchmark: its figures and those at temperature 0, or one row for each of its parts."""
    if all(isinstance(part, Mapping) for part in figures.values()):
        for part, its in figures.items():
            yield f"{name}: {plain(part)}", its, style
    else:
        yield name, figures, style
        if greedy := figures.get("greedy"):
            yield f"{name}, greedy", greedy, style


def cap_rows(name: str, figures: Figures) -> Iterator[Row]:
    """The rows of one benchmark under each cap of turns, where there are any."""
    parts = {f"{name}: {plain(part)}": its for part, its in figures.items() if isinstance(its, Mapping)}
    for label, its in {name: figures, **parts}.items():
        for cap, found in (its.get("turn_caps") or {}).items():
            yield f"{label}, {cap} turns", found, ""


def _title(summary: Mapping[str, Any]) -> str:
    parts = [str(summary.get("name") or "results")]
    if summary.get("steps") is not None:
        parts.append(f"{summary['steps']} steps")
    if (seconds := value(summary, "seconds")) is not None:
        parts.append(f"{seconds / 60:.1f} min")
    if summary.get("seed") is not None:
        parts.append(f"seed {summary['seed']}")
    return ", ".join(parts)


def print_figures(console: Console, title: str, rows: Sequence[Row], *, intervals: bool = False) -> None:
    """Prints the table of `figures_table`, below it `interval_lines` if asked, and what is in none of its figures."""
    console.print(figures_table(title, rows))
    for line in interval_lines(rows) if intervals else ():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in footnotes(rows):
        console.print(line, markup=False, highlight=False, soft_wrap=True, style="yellow")


def figures_table(title: str, rows: Sequence[Row]) -> Table:
    """A line for each row of figures; a column that no row has is left out."""
    table = _table(title)
    columns = {
        title: column
        for title, column in _COLUMNS.items()
        if any(value(figures, column[0]) is not None for _, figures, _ in rows)
    }
    table.add_column("", overflow="fold")
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    digits = {name: _digits(rows, name, decimals) for name, _, decimals in columns.values()}
    for label, figures, style in rows:
        cells = [_shown(value(figures, name), factor, digits[name]) for name, factor, _ in columns.values()]
        table.add_row(label, *cells, style=style)
    return table


def _digits(rows: Sequence[Row], name: str, decimals: int) -> int:
    """Two decimals more where some cost would be little but zeros."""
    if name not in ("cost", "cost_per_correct"):
        return decimals
    small = any(0 < (value(figures, name) or 0.0) < FINE_USD for _, figures, _ in rows)
    return decimals + 2 * small


def interval_lines(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each row whose accuracy has an interval: Wilson's, or with several samples that of the bootstrap."""
    for label, figures, _ in rows:
        known = (figures.get("intervals") or {}).get("accuracy") or {}
        found = known.get("wilson") or known.get("bootstrap")
        if found:
            low, high = (_shown(end, 100, 1) for end in found)
            yield f"{label}: accuracy {_shown(value(figures, 'accuracy'), 100, 1)} %, 95 % interval {low} to {high} %."
        for name in ("pass^k", "pass@k"):
            if shares := figures.get(name):
                cells = [f"{k}: {_shown(value(shares, k), 100, 1)} %" for k in shares]
                yield f"{label}: {name} for k = {', '.join(cells)}."


def footnotes(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each row of which something is not in the denominators: it hides data, not skill."""
    for label, figures, _ in rows:
        failed, counted = value(figures, "failed"), value(figures, "counted")
        if failed:
            of = "" if counted is None else f" of {failed + counted:.0f}"
            none = " Nothing is known of it." if counted == 0 else ""
            yield f"{label}: {failed:.0f}{of} failed for infrastructure reasons and are in no figure.{none}"


def _changes(summary: Mapping[str, Any]) -> Iterator[str]:
    """What training changed, one line per figure."""
    before, after = summary.get("before"), summary.get("after")
    old, new = value(before, "cost_per_correct"), value(after, "cost_per_correct")
    if old is not None and new is not None:
        line = f"Cost per correct answer: {_shown(old, 100, 2)} to {_shown(new, 100, 2)} cents"
        if 0 < old < math.inf and new < math.inf:
            line += f" ([bold]{100 * (new / old - 1):+.0f} %[/bold])"
        yield line
    old, new = value(before, "accuracy"), value(after, "accuracy")
    if old is not None and new is not None:
        points = f"[bold]{100 * (new - old):+.1f} points[/bold]"
        yield f"Accuracy: {_shown(old, 100, 1)} to {_shown(new, 100, 1)} % ({points})"
    for phase, figures in (("before", before), ("after", after)):
        found = (figures or {}).get("several") or {}
        if (share := value(found, "share")) is None:
            continue
        line = f"Several calls for a question, {phase}: {_shown(share, 100, 1)} %"
        if share:
            line += (
                f"; {_shown(value(found, 'first_right'), 100, 0)} % of these right by the first call alone, "
                f"{_shown(value(found, 'answer_right'), 100, 0)} % by all, which cost "
                f"{_shown(value(found, 'cost'), 100, 3)} instead of {_shown(value(found, 'first_cost'), 100, 3)} cents"
            )
        yield line


def _swap_table(swap: Mapping[str, Mapping[str, Figures]]) -> Table:
    """Figures under each kind of preference, "before → after" in each cell where both are known."""
    phases = [phase for phase in ("before", "after") if phase in swap]
    table = _table(f"The same questions under each preference, {' → '.join(phases)} training")
    table.add_column("preference", no_wrap=True)
    for title in _SWAP_COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for kind in dict.fromkeys(kind for phase in phases for kind in swap[phase]):
        cells = []
        for name, factor, decimals in _SWAP_COLUMNS.values():
            numbers = [_shown(value(swap[phase].get(kind), name), factor, decimals) for phase in phases]
            cells.append(" → ".join(numbers))
        table.add_row(plain(kind), *cells)
    return table


def _ratio_table(swap: Mapping[str, Mapping[str, Figures]]) -> Table:
    """How far the policy heeds a preference: the same figure under two kinds of preference."""
    table = _table("Does it heed the preference?")
    table.add_column("", no_wrap=True)
    for phase in ("before", "after"):
        table.add_column(phase, justify="right", no_wrap=True)

    for label, figure, kind, other in _RATIOS:
        cells = []
        for phase in ("before", "after"):
            first, second = (value(swap.get(phase, {}).get(name), figure) for name in (kind, other))
            if first is None or second is None or (figure != "local_share" and not second):
                cells.append(NOTHING)
            elif figure == "local_share":
                cells.append(f"{_shown(first, 100, 0)} % vs {_shown(second, 100, 0)} %")
            else:
                cells.append(f"{first / second:.2f}")
        if cells != [NOTHING, NOTHING]:
            table.add_row(label, *cells)
    return table
