"""What is known of a model before it is asked: measured on the training split, and on nothing else.

Everything here takes a `Recording` that holds the questions of the training split alone, so that no number of the other
splits can be in what a menu says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from orchestra_jax.envs.recorded.table import Record, Recording
from orchestra_jax.money.prices import PriceList

TOKEN = "token"  # the use in a price list's latencies that gives seconds per output token
_MOST_KINDS = 6
_SECONDS_PER_TOKEN = 1 / 60  # of a model without one


@dataclass(frozen=True, slots=True)
class Evidence:
    """Means over the questions of the training split.

    Attributes:
        accuracy: share of right answers.
        by_family: the same for each kind of question.
        prompt_tokens, completion_tokens: of a call.
        cost_usd: recorded dollars of a call; None: none were recorded.
    """

    accuracy: float
    by_family: Mapping[str, float]
    prompt_tokens: float
    completion_tokens: float
    cost_usd: float | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of questions that a menu tells apart; none where there is one, or more than it has room for."""
        named = tuple(family for family in self.by_family if family)
        return named if 1 < len(named) <= _MOST_KINDS else ()

    @property
    def description(self) -> str:
        """For a menu: percent right by kind, as in "87/96/58"; no name, no price, no seconds."""
        shares = [self.by_family[kind] for kind in self.kinds] or [self.accuracy]
        return "/".join(str(round(100 * share)) for share in shares)


def evidence_of(training: Recording) -> dict[str, Evidence]:
    """By model; `training` holds the questions of the training split alone, each answered by every model."""
    families: dict[str, list[str]] = {}
    for name, asked in sorted(training.questions.items()):
        families.setdefault(asked.family, []).append(name)
    found = {}
    for model, rows in training.records.items():
        costs = [row.cost_usd for row in rows.values() if row.cost_usd is not None]
        found[model] = Evidence(
            fmean(row.correct for row in rows.values()),
            {family: fmean(rows[name].correct for name in names) for family, names in sorted(families.items())},
            fmean(row.prompt_tokens for row in rows.values()),
            fmean(row.completion_tokens for row in rows.values()),
            fmean(costs) if costs else None,
        )
    return found


def seconds(model: str, record: Record, prices: PriceList) -> float:
    """What a call took: as recorded, else its tokens at the speed that the list states."""
    if record.seconds is not None:
        return record.seconds
    return record.completion_tokens * prices.latencies.get(model, {}).get(TOKEN, _SECONDS_PER_TOKEN)


def with_latencies(prices: PriceList, training: Recording) -> PriceList:
    """The list with the mean seconds of a call of each model on the training split, as its menus show them."""
    found = {
        model: {"answer": fmean(seconds(model, row, prices) for row in rows.values())}
        for model, rows in training.records.items()
    }
    return replace(prices, latencies={**prices.latencies, **found})
