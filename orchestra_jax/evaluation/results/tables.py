"""The tables of a report: figures of several policies on several benchmarks, one benchmark after another."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestra_jax.envs.base import DO_NOTHING
from orchestra_jax.evaluation.figures import number
from orchestra_jax.evaluation.intervals import Interval, bootstrap
from orchestra_jax.evaluation.pass_at_k import pass_figures
from orchestra_jax.evaluation.results import published
from orchestra_jax.evaluation.results.comparisons import pairs, preferences, unseen
from orchestra_jax.evaluation.results.front import hypervolume, on_front
from orchestra_jax.evaluation.results.measured import Measured, cost, solved
from orchestra_jax.evaluation.results.text_table import TextTable, span

_MOST_FAMILIES = 8  # as columns


def tables(found: Sequence[Measured], bases: Mapping[str, Measured] | None = None) -> list[TextTable]:
    """Return the figures by benchmark with the paper's rows beside them, then comparisons of several benchmarks.

    Args:
        bases: see `preferences`.
    """
    made = []
    for label in dict.fromkeys(one.label for one in found):
        same = side_by_side([one for one in found if one.label == label])
        made += [_figures(label, same), _families(label, same), _passes(label, same), _calls(label, same)]
        made += [_models(label, same), pairs(label, same), _front(label, same), preferences(label, same, bases or {})]
    return [table for table in [*made, *unseen(found)] if table.rows]


def side_by_side(found: Sequence[Measured]) -> list[Measured]:
    """Return the runs on a benchmark, doing nothing once, with tools and prices in their names where these differ."""
    silent = [one for one in found if one.phase == DO_NOTHING]
    most = max(silent, key=lambda one: len(one.items), default=None)
    others = _named_by_offer([one for one in found if one.phase != DO_NOTHING])
    return [*others, replace(most, run="do nothing")] if most and others else _named_by_offer(found)


def _named_by_offer(found: Sequence[Measured]) -> list[Measured]:
    """Return the runs with their tools and prices as part of their names, where these differ."""
    menus = {(one.offer.tools, one.offer.menu) for one in found}
    price_lists = {one.offer.prices for one in found}
    tools_by_words: dict[str, set[tuple[str, ...] | None]] = {}
    for one in found:
        tools_by_words.setdefault(one.offer.words, set()).add(one.offer.tools)
    named = []
    for one in found:
        parts, words = [one.run], one.offer.words
        if len(menus) > 1:
            ambiguous = len(tools_by_words[words]) > 1
            parts.append(f"{words} ({len(one.offer.tools or ())})" if ambiguous else words)
        if len(price_lists) > 1 and one.offer.prices:
            parts.append(f"prices {one.offer.prices}")
        named.append(replace(one, run=", ".join(parts)))
    return named


def _figures(label: str, found: Sequence[Measured]) -> TextTable:
    """Return a row of figures for each policy, and the published ones of the same benchmark below."""
    rows = []
    for one in found:
        items = one.all_items
        right, spent = sum(item.solved for item in items), sum(item.cost for item in items)
        cells = [one.run, str(len(one.items)), str(one.failed)]
        cells += [number(one.mean(solved), 100, 1), span(one.accuracy_interval(), 100, 1)]
        cells += [number(one.mean(cost), 100, 3), span(one.interval(cost), 100, 3)]
        cells += [number(spent / right if right else None, 100, 2)]
        cells += [number(one.mean(lambda item: item.seconds), 1, 1), number(one.mean(lambda i: i.calls.total()), 1, 2)]
        rows.append(cells)
    source = found[0].source
    table, theirs = published.rows(source, found[0].offer.unseen) if found[0].whole else (0, [])
    for row in theirs:
        costs = row.costs(source)
        cents, seconds = ("", "") if costs is None else (f"{costs[0]:.1f}", f"{costs[1]:.0f}")
        accuracy = f"{row.accuracy(source):.1f}"
        rows.append([f"published: {row.name}", "", "", accuracy, "", cents, "", "", seconds, ""])
    columns = ["policy", "answered", "failed", "accuracy %", "95 %", "cents a question", "95 %", "cents per correct"]
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
    return TextTable(label, [*columns, "seconds", "calls"], rows, note)


def _offered(found: Sequence[Measured]) -> str:
    menus: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.offer.tools is not None and one.phase != DO_NOTHING:
            tools = ", ".join(one.offer.tools) or "nothing"
            tools += f" ({one.offer.menu})" if one.offer.menu else ""
            menus.setdefault((tools, one.offer.prices), []).append(one.run)
    runs = {key: f" to {'; '.join(names)}" if len(menus) > 1 else "" for key, names in menus.items()}
    return "".join(f" Offered{runs[key]}: {key[0]}; prices: {key[1]}." for key in menus)


def _families(label: str, found: Sequence[Measured]) -> TextTable:
    """Return the figures by family of the questions, such as a benchmark's domains, if there are a few."""
    names = sorted({item.family for one in found for item in one.all_items} - {""})
    shown = names if 1 < len(names) <= _MOST_FAMILIES else []
    rows = []
    for one in found if shown else []:
        cells = [one.run]
        for part in map(one.of_family, shown):
            cells += [number(part.mean(solved), 100, 1), span(part.accuracy_interval(), 100, 1)]
            cells += [number(part.mean(cost), 100, 3), number(part.mean(lambda item: item.seconds), 1, 1)]
        rows.append(cells)
    each = [[f"{name} %", "95 %", f"{name} cents", f"{name} seconds"] for name in shown]
    columns = ["policy", *(column for some in each for column in some)]
    note = "Accuracy, cents and seconds a question, by family; means over what was answered."
    return TextTable(f"{label}: by family", columns, rows, note)


def _passes(label: str, found: Sequence[Measured]) -> TextTable:
    """Return pass^k and pass@k of the runs with several samples of a question."""
    several = [one for one in found if one.samples > 1]
    ks = range(1, max((one.samples for one in several), default=0) + 1)
    rows = []
    for one in several:
        counts = [(len(items), sum(item.solved for item in items)) for items in one.items.values()]
        known = pass_figures(counts, one.samples)
        rows.append([one.run, *(number(known[name].get(str(k)), 100, 1) for name in known for k in ks)])
    note = (
        "pass^k: the chance that k of k samples of a question are right; pass@k: that one of k is. Of a question with "
        "c right ones of n: C(c, k) / C(n, k) and 1 - C(n - c, k) / C(n, k), without bias; means over the questions."
    )
    columns = ["policy", *(f"pass{sign}{k} %" for sign in "^@" for k in ks)]
    return TextTable(f"{label}: several samples of a question", columns, rows, note)


def _calls(label: str, found: Sequence[Measured]) -> TextTable:
    counts = [sum((item.calls for item in one.all_items), Counter[str]()) for one in found]
    sizes = [max(1, len(one.all_items)) for one in found]
    rows = []
    for tool in sorted({tool for count in counts for tool in count}):
        cells = [(c[tool] / size, c[tool] / max(1, c.total())) for c, size in zip(counts, sizes, strict=True)]
        rows.append([tool, *(f"{per_question:.3f} ({share:.0%})" for per_question, share in cells)])
    note = "Calls a question, and the share of all calls in brackets."
    return TextTable(f"{label}: calls by tool", ["tool", *(one.run for one in found)], rows, note)


def _models(label: str, found: Sequence[Measured]) -> TextTable:
    """Return the shares of model calls that go to the strongest model and to the policy's own kind (Fig. 3)."""
    rows = []
    for one in found:
        asked = [[item.model_calls for item in samples] for samples in one.items.values()]
        known = [each for some in asked for each in some]
        if not any(each.count for each in known):
            continue
        cells = [one.run, f"{sum(each.count for each in known) / len(known):.3f}"]
        own = [[(each.own or 0, each.count) for each in some] for some in asked]
        own = own if all(each.own is not None for each in known) else []
        for questions in ([[(each.strongest, each.ranked) for each in some] for some in asked], own):
            share, interval = share_of_calls(questions)
            cells += [number(share, 100, 1), span(interval, 100, 1)]
        rows.append([*cells, one.model or "–"])
    note = (
        "Calls of models are a question's. The strongest model of a menu is the one whose output tokens cost most, or "
        "where no model has such a price the one whose call does; of the policy's own kind is a model with the same "
        "family in its name, where the policy's is known. Intervals: bootstrap over questions."
    )
    if rows and found[0].whole and published.is_published(found[0].source):
        for (name, share_in_percent), place in ((published.OWN_SHARE, 4), (published.STRONGEST_SHARE, 2)):
            row = [f"published: {name}", *[""] * 6]
            row[place] = str(share_in_percent)
            rows.append(row)
        note += (
            f" Published rows: {published.SOURCE}, Fig. 3 and appendix A: the share of GPT-5's calls that went to "
            "GPT-5 and GPT-5-mini, and of Qwen3-8B's that went to GPT-5."
        )
    columns = ["policy", "calls of models", "to the strongest %", "95 %", "to its own kind %", "95 %", "its own model"]
    return TextTable(f"{label}: whom the policy asks", columns, rows, note)


def share_of_calls(questions: Sequence[Sequence[tuple[int, int]]]) -> tuple[float | None, Interval | None]:
    """Return a share of all calls with its interval by bootstrap over the questions, or None if there is no call.

    Args:
        questions: for each sample of each question, the counted calls and all calls.
    """
    sums = [(sum(part for part, _ in some), sum(whole for _, whole in some)) for some in questions]
    asked = [(part, whole) for part, whole in sums if whole]
    if not asked:
        return None, None
    parts, wholes = zip(*asked, strict=True)
    return sum(parts) / sum(wholes), bootstrap([part / whole for part, whole in asked], weights=wholes)


def _front(label: str, found: Sequence[Measured]) -> TextTable:
    """Return the front of accuracy and cost of two policies and more, and their hypervolume; no row if all is free."""
    means = [(one.run, one.mean(cost), one.mean(solved)) for one in found]
    places = {run: (100 * usd, 100 * right) for run, usd, right in means if usd is not None and right is not None}
    points, rows = list(places.values()), []
    dearest = max((cents for cents, _ in points), default=0.0)
    whole, on = hypervolume(points, dearest) / 100, on_front(points)
    if len(points) > 1 and dearest > 0:
        for place, (name, (cents, accuracy)) in enumerate(places.items()):
            rest = hypervolume(points[:place] + points[place + 1 :], dearest) / 100
            rows.append([name, f"{accuracy:.1f}", f"{cents:.3f}", "yes" if on[place] else "no", f"{whole - rest:.4f}"])
        rows.append(["all together", "", "", f"{sum(on)} of {len(points)}", f"{whole:.4f}"])
    note = (
        "On the front is who no other policy beats: none is as right for less, nor more right for as much. "
        "Hypervolume: the area under the front, accuracy (0 to 1) times cents a question, from the reference point at "
        f"accuracy 0 and the dearest policy's cost ({dearest:.3f} cents), which adds nothing itself; in a policy's "
        "row, how much smaller it is without that policy."
    )
    columns = ["policy", "accuracy %", "cents a question", "on the front", "hypervolume"]
    return TextTable(f"{label}: front of accuracy and cost", columns, rows, note)
