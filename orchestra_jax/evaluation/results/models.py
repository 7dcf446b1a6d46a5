"""Whom the policies ask: the strongest model, and models of their own kind (Fig. 3 and appendix A)."""

from collections.abc import Sequence

from orchestra_jax.evaluation.calls import Shares, shares
from orchestra_jax.evaluation.results import published
from orchestra_jax.evaluation.results.measured import Measured
from orchestra_jax.evaluation.results.table import Table, number, span


def models(label: str, found: Sequence[Measured]) -> Table:
    """Of the calls of models, the shares of the strongest and of the policy's own kind; nothing without such calls."""
    rows = []
    for one in found:
        items = one.all_items
        known = [item.delegated for item in items if item.delegated]
        if not known or not any(each.models for each in known):
            continue
        several = [[item.delegated for item in samples if item.delegated] for samples in one.items.values()]
        rows.append([one.run, f"{sum(each.models for each in known) / len(known):.3f}", *_cells(shares(several), one)])
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


def _cells(found: Shares, one: Measured) -> list[str]:
    return [
        number(found.strongest, 100, 1), span(found.strongest_interval, 100, 1),
        number(found.own, 100, 1), span(found.own_interval, 100, 1), one.model or "–",
    ]  # fmt: skip
