"""Rows of the terminal's table for benchmarks, whole and by part, and the lines below it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestra_jax.evaluation.figures import Figures, Row, number, plain, value


def benchmark_rows(name: str, figures: Figures, style: str = "") -> Iterator[Row]:
    """Yield the rows of one benchmark: its figures and those at temperature 0, or one row for each of its parts."""
    if all(isinstance(part, Mapping) for part in figures.values()):
        for part, its in figures.items():
            yield f"{name}: {plain(part)}", its, style
    else:
        yield name, figures, style
        if greedy := figures.get("greedy"):
            yield f"{name}, greedy", greedy, style


def cap_rows(name: str, figures: Figures) -> Iterator[Row]:
    """Yield the rows of one benchmark under each cap of turns, if there are any."""
    parts = {f"{name}: {plain(part)}": its for part, its in figures.items() if isinstance(its, Mapping)}
    for label, its in {name: figures, **parts}.items():
        for cap, found in (its.get("turn_caps") or {}).items():
            yield f"{label}, {cap} turns", found, ""


def interval_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each accuracy with an interval: Wilson's, or with several samples the bootstrap's."""
    for label, figures, _ in rows:
        known = (figures.get("intervals") or {}).get("accuracy") or {}
        if found := known.get("wilson") or known.get("bootstrap"):
            low, high = (number(end, 100, 1) for end in found)
            yield f"{label}: accuracy {number(value(figures, 'accuracy'), 100, 1)} %, 95 % interval {low} to {high} %."
        for name in ("pass^k", "pass@k"):
            if shares := figures.get(name):
                cells = [f"{k}: {number(value(shares, k), 100, 1)} %" for k in shares]
                yield f"{label}: {name} for k = {', '.join(cells)}."


def footnotes(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each row with failures, which hide data and not skill."""
    for label, figures, _ in rows:
        failed, counted = value(figures, "failed"), value(figures, "counted")
        if failed:
            of = "" if counted is None else f" of {failed + counted:.0f}"
            none = " Nothing is known of it." if counted == 0 else ""
            why = f" Most often: {reason}" if (reason := figures.get("failure")) else ""
            yield f"{label}: {failed:.0f}{of} failed for infrastructure reasons and are in no figure.{none}{why}"


def gains_of_calls(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what several calls for a question gain, a line for each phase."""
    for phase in ("before", "after"):
        found = (summary.get(phase) or {}).get("several") or {}
        if (share := value(found, "share")) is None:
            continue
        line = f"Several calls for a question, {phase}: {number(share, 100, 1)} %"
        if share:
            line += (
                f"; {number(value(found, 'first_right'), 100, 0)} % of these right by the first call alone, "
                f"{number(value(found, 'answer_right'), 100, 0)} % by all, which cost "
                f"{number(value(found, 'cost'), 100, 3)} instead of {number(value(found, 'first_cost'), 100, 3)} cents"
            )
        yield line
