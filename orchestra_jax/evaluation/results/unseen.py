"""What changes with tools and prices that a policy never saw in training (Tables 2 and 4)."""

from collections.abc import Sequence

from orchestra_jax.evaluation.intervals import wilson
from orchestra_jax.evaluation.results import published
from orchestra_jax.evaluation.results.measured import Measured, cost, solved
from orchestra_jax.evaluation.results.offers import UNSEEN_PRICES, UNSEEN_TOOLS
from orchestra_jax.evaluation.results.pairs import changes, differences
from orchestra_jax.evaluation.results.table import Table, number, span


def unseen(found: Sequence[Measured]) -> list[Table]:
    """A table for each benchmark that a policy has been asked both as in training and otherwise."""
    made = []
    for asked in dict.fromkeys(one.asked for one in found):
        same = [one for one in found if one.asked == asked]
        rows = []
        for policy in dict.fromkeys(one.policy for one in same):
            own = sorted((one for one in same if one.policy == policy), key=lambda one: one.offer.unseen)
            seen = [one for one in own if not one.offer.unseen]
            new = [one for one in own if one.offer.unseen]
            if seen and new:
                usual = max(seen, key=lambda one: len(one.offer.tools or ()))  # not the one without models
                rows += [_row(usual, None), *(_row(one, usual) for one in new)]
        made.append(_table(asked, rows, same[0]))
    return made


def _table(asked: str, rows: list[list[str]], first: Measured) -> Table:
    note = (
        "Differences are from the policy as in training, on the questions that both answered, with paired bootstrap "
        "intervals. Unseen tools: one on offer was on no menu of training; unseen prices: something that was costs "
        "what it never cost there; of a policy without a record of training, by the paper's."
    )
    if rows and first.whole and published.is_published(first.source):
        for new in ((), (UNSEEN_TOOLS,), (UNSEEN_PRICES,)):
            _, theirs = published.rows(first.source, new)
            row, costs = theirs[-1], theirs[-1].costs(first.source)
            cents = f"{costs[0]:.1f}" if costs else ""
            rows.append([f"published: {row.name}", "", "", f"{row.accuracy(first.source):.1f}", "", cents, *[""] * 5])
        note += f" Published rows: {published.SOURCE}, Tables 1, 2 and 4."
    columns = [
        "policy", "tools and prices", "answered", "accuracy %", "95 %", "cents a question", "questions of both",
        "points of accuracy", "95 %", "cents more", "95 %",
    ]  # fmt: skip
    return Table(f"{asked}: tools and prices never seen", columns, rows, note)


def _row(one: Measured, seen: Measured | None) -> list[str]:
    items = one.all_items
    known = one.interval(solved) if one.samples > 1 else wilson(sum(i.solved for i in items), len(items))
    own = [
        one.run, " and ".join(one.offer.unseen) or "as in training", str(len(one.items)),
        number(one.mean(solved), 100, 1), span(known, 100, 1), number(one.mean(cost), 100, 3),
    ]  # fmt: skip
    both = len(differences(seen, one, solved)) if seen else 0
    return [*own, str(both), *changes(seen, one)] if seen and both else [*own, *[""] * 5]
