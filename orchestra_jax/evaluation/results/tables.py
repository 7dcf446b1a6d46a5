"""The tables of a report, one after another."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestra_jax.envs.base import DO_NOTHING
from orchestra_jax.evaluation.intervals import wilson
from orchestra_jax.evaluation.pass_at_k import pass_figures
from orchestra_jax.evaluation.results import published
from orchestra_jax.evaluation.results.front_table import front
from orchestra_jax.evaluation.results.measured import Measured, cost, solved
from orchestra_jax.evaluation.results.models import models
from orchestra_jax.evaluation.results.pairs import pairs
from orchestra_jax.evaluation.results.preference import preferences
from orchestra_jax.evaluation.results.table import Table, number, span
from orchestra_jax.evaluation.results.unseen import unseen

_MOST_FAMILIES = 8  # as columns


def tables(found: Sequence[Measured], bases: Mapping[str, Measured] | None = None) -> list[Table]:
    """Figures by benchmark with the paper's rows beside them, then what compares several of them.

    Args:
        bases: see `preferences`.
    """
    made = []
    for label in dict.fromkeys(one.label for one in found):
        same = side_by_side([one for one in found if one.label == label])
        made += [_figures(label, same), _families(label, same), _passes(label, same), _calls(label, same)]
        made += [models(label, same)]
        made += [pairs(label, same), front(label, same), preferences(label, same, bases or {})]
    return [table for table in [*made, *unseen(found)] if table.rows or not table.columns]


def side_by_side(found: Sequence[Measured]) -> list[Measured]:
    """What was asked alike: doing nothing once, and with names that say what was offered, where that differs."""
    silent = [one for one in found if one.phase == DO_NOTHING]
    most = max(silent, key=lambda one: len(one.items), default=None)
    others = _told_apart([one for one in found if one.phase != DO_NOTHING])
    return [*others, replace(most, run="do nothing")] if most and others else _told_apart(found)


def _told_apart(found: Sequence[Measured]) -> list[Measured]:
    words = [one.offer.words for one in found]
    lists = [one.offer.prices for one in found]
    suffixes = []
    for one, word, prices in zip(found, words, lists, strict=True):
        tools = {other.offer.tools for other, others in zip(found, words, strict=True) if others == word}
        count = f" ({len(one.offer.tools or ())})" if len(tools) > 1 else ""
        own = [f"{word}{count}"] if len({(other.offer.tools, other.offer.menu) for other in found}) > 1 else []
        suffixes.append([*own, *([f"prices {prices}"] if len(set(lists)) > 1 and prices else [])])
    return [replace(one, run=", ".join([one.run, *suffix])) for one, suffix in zip(found, suffixes, strict=True)]


def _figures(label: str, found: Sequence[Measured]) -> Table:
    rows = []
    for one in found:
        items = one.all_items
        right, spent = sum(item.solved for item in items), sum(item.cost for item in items)
        known = one.interval(solved) if one.samples > 1 else wilson(right, len(items))
        rows.append([
            one.run, str(len(one.items)), str(one.failed),
            number(one.mean(solved), 100, 1), span(known, 100, 1),
            number(one.mean(cost), 100, 3), span(one.interval(cost), 100, 3),
            number(spent / right if right else None, 100, 2),
            number(one.mean(lambda item: item.seconds), 1, 1), number(one.mean(lambda i: i.calls.total()), 1, 2),
        ])  # fmt: skip
    source = found[0].source
    table, theirs = published.rows(source, found[0].offer.unseen) if found[0].whole else (0, [])
    for row in theirs:
        costs = row.costs(source)
        cents, seconds = ("", "") if costs is None else (f"{costs[0]:.1f}", f"{costs[1]:.0f}")
        rows.append([
            f"published: {row.name}", "", "", f"{row.accuracy(source):.1f}", "", cents, "", "", seconds, "",
        ])  # fmt: skip
    columns = [
        "policy", "answered", "failed", "accuracy %", "95 %", "cents a question", "95 %", "cents per correct",
        "seconds", "calls",
    ]  # fmt: skip
    note = (
        "Means are over the answered questions; what failed for infrastructure reasons is in none of them. Accuracy: "
        "Wilson's interval; cents: bootstrap over questions."
    )
    if any(one.samples > 1 for one in found):
        note += f" Up to {max(one.samples for one in found)} samples a question: there both are bootstrap's."
    note += _offered(found)
    if theirs:
        note += f" Published rows: {published.SOURCE}, Table {table}"
        note += ", whose cents and seconds are means over HLE and FRAMES." if theirs[0].costs(source) else "."
    return Table(label, columns, rows, note)


def _offered(found: Sequence[Measured]) -> str:
    """A sentence for each menu there is."""
    menus: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.offer.tools is not None and one.phase != DO_NOTHING:
            what = ", ".join(one.offer.tools) or "nothing"
            what += f" ({one.offer.menu})" if one.offer.menu else ""
            menus.setdefault((what, one.offer.prices), []).append(one.run)
    who = {key: f" to {'; '.join(runs)}" if len(menus) > 1 else "" for key, runs in menus.items()}
    return "".join(f" Offered{who[key]}: {key[0]}; prices: {key[1]}." for key in menus)


def _families(label: str, found: Sequence[Measured]) -> Table:
    """Figures by family of the questions, where there are a few: a benchmark's domains or sets."""
    names = sorted({item.family for one in found for item in one.all_items} - {""})
    shown = names if 1 < len(names) <= _MOST_FAMILIES else []
    rows = []
    for one in found:
        cells = [one.run]
        for name in shown:
            kept = {key: [i for i in items if i.family == name] for key, items in one.items.items()}
            part = replace(one, items={key: items for key, items in kept.items() if items})
            some = part.all_items
            known = part.interval(solved) if one.samples > 1 else wilson(sum(i.solved for i in some), len(some))
            cells += [number(part.mean(solved), 100, 1), span(known, 100, 1), number(part.mean(cost), 100, 3)]
            cells += [number(part.mean(lambda item: item.seconds), 1, 1)]
        rows.append(cells)
    each = [[f"{name} %", "95 %", f"{name} cents", f"{name} seconds"] for name in shown]
    columns = ["policy", *(column for some in each for column in some)]
    note = "Accuracy, cents and seconds a question, by family; means over what was answered."
    return Table(f"{label}: by family", columns, rows if shown else [], note)


def _passes(label: str, found: Sequence[Measured]) -> Table:
    """pass^k and pass@k of those with several samples of a question."""
    several = [one for one in found if one.samples > 1]
    most = max((one.samples for one in several), default=0)
    rows = []
    for one in several:
        counts = [(len(items), sum(item.solved for item in items)) for items in one.items.values()]
        known = pass_figures(counts, one.samples)
        rows.append([
            one.run,
            *(number(known[name].get(str(k)), 100, 1) for name in known for k in range(1, most + 1)),
        ])  # fmt: skip
    columns = ["policy", *(f"pass{sign}{k} %" for sign in "^@" for k in range(1, most + 1))]
    note = (
        "pass^k: the chance that k of k samples of a question are right; pass@k: that one of k is. Of a question with "
        "c right ones of n: C(c, k) / C(n, k) and 1 - C(n - c, k) / C(n, k), without bias; means over the questions."
    )
    return Table(f"{label}: several samples of a question", columns, rows, note)


def _calls(label: str, found: Sequence[Measured]) -> Table:
    counts = [sum((item.calls for item in one.all_items), Counter[str]()) for one in found]
    sizes = [max(1, len(one.all_items)) for one in found]
    rows = [
        [tool, *(f"{c[tool] / size:.3f} ({c[tool] / max(1, c.total()):.0%})" for c, size in cells)]
        for tool in sorted({tool for count in counts for tool in count})
        for cells in [list(zip(counts, sizes, strict=True))]
    ]
    note = "Calls a question, and the share of all calls in brackets."
    return Table(f"{label}: calls by tool", ["tool", *(one.run for one in found)], rows, note)
