"""Price lists, and the one place where a call gets its price.

A call has two prices. It is *paid* by the list `pricing.name`: budgets count these dollars, before the call for the
most tokens that it may take (`ExpertClient.chat`), then the bill. An instance *shows* a list of its own, which may be
drawn (`pricing.randomise`): the ledger of a trajectory and its reward count these. A third kind is fixed: a tool that
no list names costs its own `ToolSpec.price_usd` per call, in budgets too. `PriceList.priced` turns tokens and
seconds of a call into a ledger row; `call_rows` and `policy_row` say by which list. `PriceBook` draws the shown list,
and `tools.catalogue` writes its prices into the menu.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestra_jax.types import ToolSpec, Usage

POLICY = "orchestrator"  # the policy's entry in the price lists, and the name of its ledger rows


class MissingPrice(KeyError):  # noqa: N818  named like the fact it states
    """A model or tool has no entry in the price list; the message is one sentence."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for one model or tool."""

    input: float = 0.0  # per million prompt tokens
    cached_input: float | None = None  # per million of those that were cached; None: they cost as much as others
    output: float = 0.0  # per million
    call: float = 0.0
    second: float = 0.0


@dataclass(frozen=True)
class PriceList:
    """Prices of models and tools on a date, and mean seconds by model and use ("answer", "search", ...) for menus."""

    id: str  # name of the list, which every ledger row bears
    date: str  # ISO date on which the prices held
    source: str
    entries: Mapping[str, Price]  # by model or tool
    latencies: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def cost(
        self,
        name: str,
        *,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        completion_tokens: int = 0,
        seconds: float = 0.0,
        calls: int = 1,
    ) -> float:
        """Return the dollars of `calls` calls of the model or tool `name` that together took these tokens and seconds.

        `prompt_tokens` are all input tokens; `cached_tokens` are the part of them that came from the provider's cache.

        Raises:
            MissingPrice: no entry for `name`.
            ValueError: a negative amount, or more cached than prompt tokens.
        """
        if (price := self.entries.get(name)) is None:
            raise MissingPrice(f"Price list {self.id!r} has no price for {name!r}; add it under entries.")
        if min(cached_tokens, completion_tokens, seconds, calls) < 0 or cached_tokens > prompt_tokens:
            raise ValueError(
                f"Amounts of {name!r} must not be negative, and cached_tokens={cached_tokens} is a part of "
                f"prompt_tokens={prompt_tokens}."
            )
        cached = price.input if price.cached_input is None else price.cached_input
        tokens = (
            (prompt_tokens - cached_tokens) * price.input + cached_tokens * cached + completion_tokens * price.output
        )
        return tokens / 1e6 + calls * price.call + seconds * price.second

    def priced(self, row: Usage, entry: str | None = None) -> Usage:
        """Return the ledger row of one call with the dollars of an entry (None: the row's name) and this list's id."""
        dollars = self.cost(
            entry or row.name,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens,
            completion_tokens=row.completion_tokens,
            seconds=row.seconds,
        )
        return replace(row, cost_usd=dollars, price_list=self.id)


def call_rows(
    spec: ToolSpec,
    rows: tuple[Usage, ...],
    elapsed: float,
    *,
    shown: PriceList | None = None,
    paid: PriceList | None = None,
) -> tuple[Usage, ...]:
    """Return the ledger rows of one executed call of a tool.

    A menu's fixed price is charged with the menu's latency (measured seconds where it states none). Otherwise the
    tool's own rows get the prices that the instance shows. A tool without rows costs nothing but the latency.

    Args:
        rows: rows that the tool reported; their dollars are those that were paid.
        elapsed: measured seconds of work, used where neither menu nor tool gives seconds.
        shown: price list of the instance; None: the rows keep their dollars.
        paid: price list of the dollars in `rows`; None: `shown`.
    """
    if spec.price_usd is None and rows:
        return rows if shown is None else tuple(_as_shown(row, shown, paid or shown) for row in rows)
    if (seconds := spec.latency_s) is None:
        seconds = sum(row.seconds for row in rows) if rows else elapsed
    row = Usage(
        name=spec.name,
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        cached_tokens=sum(row.cached_tokens for row in rows),
        completion_tokens=sum(row.completion_tokens for row in rows),
        cost_usd=spec.price_usd or 0.0,
        seconds=seconds,
        price_list="menu",
    )
    return (row,)


def policy_row(row: Usage, shown: PriceList, measured: float, seconds_per_token: float | None = None) -> Usage:
    """Return the ledger row of one generation of the policy: its tokens cost, its time does not.

    Args:
        row: tokens, and seconds where they are known.
        shown: price list of the instance.
        measured: seconds of work, for a row without its own.
        seconds_per_token: simulated seconds per sampled token, which take the place of both; None: the wall clock.
    """
    seconds = row.seconds or measured
    if seconds_per_token is not None:
        seconds = seconds_per_token * row.completion_tokens
    return replace(shown.priced(replace(row, seconds=0.0), POLICY), seconds=seconds)


def _as_shown(row: Usage, shown: PriceList, paid: PriceList) -> Usage:
    """Return a paid row at the instance's price. One that was not billed, or is not listed, keeps its dollars."""
    if row.name not in shown.entries or (row.estimated and row.price_list == shown.id):  # as reserved
        return replace(row, price_list=shown.id)
    if row.price_list and row.cost_usd == 0 < paid.priced(row).cost_usd:
        return replace(row, price_list=shown.id)
    return shown.priced(row)
