"""The tables of a report."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from orchestra_jax.evaluation.intervals import bootstrap, wilson
from orchestra_jax.evaluation.reports.measured import Measured
from orchestra_jax.evaluation.reports.pairs import pairs
from orchestra_jax.evaluation.reports.published import PLACES, PUBLISHED
from orchestra_jax.evaluation.reports.table import Table, number, span


def tables(found: Sequence[Measured]) -> list[Table]:
    """Figures by benchmark with the paper's rows, calls by tool, and every two policies on the same questions."""
    labels = list(dict.fromkeys(one.label for one in found))
    made = []
    for label in labels:
        same = [one for one in found if one.label == label]
        made.append(_figures(label, same))
        made.append(_calls(label, same))
        if len(same) > 1:
            made.append(pairs(label, same))
    return [table for table in made if table.rows]


def _figures(label: str, found: Sequence[Measured]) -> Table:
    rows = []
    for one in found:
        items = list(one.items.values())
        solved, cost = sum(item.solved for item in items), sum(item.cost for item in items)
        rows.append([
            one.run, str(len(items)), str(one.failed),
            number(solved / len(items) if items else None, 100, 1), span(wilson(solved, len(items)), 100, 1),
            number(cost / len(items) if items else None, 100, 3), span(bootstrap([i.cost for i in items]), 100, 3),
            number(cost / solved if solved else None, 100, 2),
            number(float(np.mean([i.seconds for i in items])) if items else None, 1, 1),
            number(float(np.mean([i.calls.total() for i in items])) if items else None, 1, 2),
        ])  # fmt: skip
    place = PLACES.get(found[0].source)
    for row in PUBLISHED if place is not None else ():
        own = [
            f"published: {row[0]}",
            "",
            "",
            f"{row[place or 0]:.1f}",
            "",
            f"{row[3]:.1f}",
            "",
            "",
            f"{60 * row[4]:.0f}",
        ]
        rows.append([*own, ""])
    columns = [
        "policy", "answered", "failed", "accuracy %", "95 %", "cents a question", "95 %", "cents per correct",
        "seconds", "calls",
    ]  # fmt: skip
    note = (
        "Means are over the answered questions; what failed for infrastructure reasons is in none of them. Accuracy: "
    )
    note += "Wilson's interval; cents: bootstrap over questions."
    if place is not None:
        note += " Published rows: arXiv 2511.21689, Table 1, whose cents and seconds are means over HLE and FRAMES."
    return Table(label, columns, rows, note)


def _calls(label: str, found: Sequence[Measured]) -> Table:
    counts = [sum((item.calls for item in one.items.values()), Counter[str]()) for one in found]
    tools = sorted({tool for count in counts for tool in count})
    rows = [
        [tool, *(f"{c[tool] / max(1, len(one.items)):.3f} ({c[tool] / max(1, c.total()):.0%})" for c, one in cells)]
        for tool in tools
        for cells in [list(zip(counts, found, strict=True))]
    ]
    note = "Calls a question, and the share of all calls in brackets."
    return Table(f"{label}: calls by tool", ["tool", *(one.run for one in found)], rows, note)
