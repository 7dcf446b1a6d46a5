"""Whom the policies ask: the strongest model, and models of their own kind (Fig. 3 and appendix A)."""

from collections.abc import Sequence

from orchestra_jax.evaluation.intervals import Interval, bootstrap
from orchestra_jax.evaluation.results import published
from orchestra_jax.evaluation.results.measured import Measured
from orchestra_jax.evaluation.results.table import Table, number, span


def models(label: str, found: Sequence[Measured]) -> Table:
    """Of the calls of models, the shares of the strongest and of the policy's own kind; nothing without such calls."""
    rows = []
    for one in found:
        items = one.all_items
        known = [item.model_calls for item in items if item.model_calls]
        if not known or not any(each.count for each in known):
            continue
        asked = [[item.model_calls for item in samples if item.model_calls] for samples in one.items.values()]
        cells = [one.run, f"{sum(each.count for each in known) / len(known):.3f}"]
        own_known = all(each.own is not None for each in known)
        for pairs in (
            [[(each.strongest, each.ranked) for each in some] for some in asked],
            [[(each.own or 0, each.count) for each in some] for some in asked] if own_known else [],
        ):
            share, interval = share_of_calls(pairs)
            cells += [number(share, 100, 1), span(interval, 100, 1)]
        rows.append([*cells, one.model or "–"])
    if rows and found[0].whole and published.is_published(found[0].source):
        for (name, share), place in ((published.OWN_SHARE, 4), (published.STRONGEST_SHARE, 2)):
            row = [f"published: {name}", *[""] * 6]
            row[place] = str(share)
            rows.append(row)
    columns = [
        "policy", "calls of models", "to the strongest %", "95 %", "to its own kind %", "95 %", "its own model",
    ]  # fmt: skip
    note = (
        "Calls of models are a question's. The strongest model of a menu is the one whose output tokens cost most, or "
        "where no model has such a price the one whose call does; of the policy's own kind is a model with the same "
        "family in its name, where the policy's is known. Intervals: bootstrap over questions."
    )
    if len(rows) and rows[-1][0].startswith("published"):
        note += (
            f" Published rows: {published.SOURCE}, Fig. 3 and appendix A: the share of GPT-5's calls that went to "
            "GPT-5 and GPT-5-mini, and of Qwen3-8B's that went to GPT-5."
        )
    return Table(f"{label}: whom the policy asks", columns, rows, note)


def share_of_calls(questions: Sequence[Sequence[tuple[int, int]]]) -> tuple[float | None, Interval | None]:
    """Return a share of all calls with its interval, by bootstrap over the questions, or None if there is no call.

    Args:
        questions: of each sample of each question, the calls that are meant and all calls.
    """
    sums = [(sum(part for part, _ in some), sum(whole for _, whole in some)) for some in questions]
    asked = [(part, whole) for part, whole in sums if whole]
    if not asked:
        return None, None
    parts, wholes = zip(*asked, strict=True)
    return sum(parts) / sum(wholes), bootstrap([part / whole for part, whole in asked], weights=wholes)
