"""A dry run: what a step will cost, before a dollar is spent."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from orchestra_jax.money.budgets import COUNTED_ROLES
from orchestra_jax.money.prices import PriceList
from orchestra_jax.types import Usage

TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one model or tool is expected to take in a step.

    Attributes:
        name: model or tool, or "total".
        calls, tokens, usd: expected: the mean of the trajectories given, times those of a step.
        worst_usd: dollars if every trajectory were as dear in this as the dearest one that was given.
    """

    name: str
    calls: float
    tokens: float
    usd: float
    worst_usd: float


def predict(
    ledgers: Iterable[Iterable[Usage]], trajectories: int, prices: PriceList | None = None
) -> tuple[Forecast, ...]:
    """What a step costs outside, from the ledgers of past trajectories, or of one made up before the first step.

    Args:
        ledgers: the rows of every past trajectory; those of the policy itself are left out.
        trajectories: trajectories of a step.
        prices: computes all dollars anew with this list; None takes those of the rows.

    Returns:
        One forecast per model or tool, dearest first, then the total, whose worst case is that of whole trajectories.

    Raises:
        ValueError: no ledgers.
        MissingPrice: `prices` has no entry for a row.
    """
    samples: list[dict[str, list[Usage]]] = []
    for ledger in ledgers:
        rows: dict[str, list[Usage]] = defaultdict(list)
        for row in ledger:
            if row.role in COUNTED_ROLES:
                rows[row.name].append(prices.charge(row) if prices else row)
        samples.append(rows)
    if not samples:
        raise ValueError("A forecast needs the ledger of at least one trajectory; make one up if there is none yet.")

    def forecast(name: str, each: list[list[Usage]]) -> Forecast:
        rows = [row for part in each for row in part]
        scale = trajectories / len(each)
        return Forecast(
            name,
            scale * len(rows),
            scale * sum(row.prompt_tokens + row.completion_tokens for row in rows),
            scale * math.fsum(row.cost_usd for row in rows),
            trajectories * max(math.fsum(row.cost_usd for row in part) for part in each),
        )

    names = sorted({name for rows in samples for name in rows})
    table = [forecast(name, [rows.get(name, []) for rows in samples]) for name in names]
    everything = [[row for part in rows.values() for row in part] for rows in samples]
    return (*sorted(table, key=lambda line: -line.usd), forecast(TOTAL, everything))
