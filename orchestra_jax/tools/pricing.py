"""Price lists, the ledger of what was spent, and the budget that stops a run."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from orchestra_jax.types import Usage

TRAJECTORY_ROLES = ("orchestrator", "tool")


class MissingPrice(KeyError):  # noqa: N818  named like the fact it states
    """A model or tool has no entry in the price list; the message is one sentence."""

    def __str__(self) -> str:
        return str(self.args[0])


class BudgetExceeded(Exception):  # noqa: N818
    """The next call could cost more than is left; the run ends here."""


@dataclass(frozen=True, slots=True)
class Price:
    """One entry, all in dollars.

    Attributes:
        input, cached_input, output: per million tokens; without `cached_input`, cached tokens cost as much as others.
        call: per call.
        second: per second.
    """

    input: float = 0.0
    cached_input: float | None = None
    output: float = 0.0
    call: float = 0.0
    second: float = 0.0


@dataclass(frozen=True)
class PriceList:
    """What models and tools cost on a date.

    Attributes:
        id: goes into every ledger row.
        date: ISO date on which the prices held.
        source: where they come from.
        entries: price by model or tool.
        latencies: mean seconds by model and use ("answer", "search", ...), for menus; may be empty.
    """

    id: str
    date: str
    source: str
    entries: Mapping[str, Price]
    latencies: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "PriceList":
        """Reads {id, date, source, entries: {name: {input, cached_input, output, call, second}}, latencies: {...}}.

        Raises:
            ValueError: an unknown or missing key, or a price that is negative or no number.
        """
        keys = {"id", "date", "source", "entries"}
        if set(config) - {"latencies"} != keys:
            raise ValueError(f"A price list has the keys {sorted(keys)}, not {sorted(config)}.")
        entries = {}
        for name, prices in config["entries"].items():
            unknown = sorted(set(prices) - set(Price.__dataclass_fields__))
            if unknown:
                raise ValueError(f"Price of {name!r} has the unknown key {unknown[0]!r}.")
            for key, value in prices.items():
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                    raise ValueError(f"Price {key}={json.dumps(value)} of {name!r} must be a number of dollars >= 0.")
            entries[name] = Price(**prices)
        latencies = config.get("latencies", {})
        return cls(str(config["id"]), str(config["date"]), str(config["source"]), entries, latencies)

    @classmethod
    def load(cls, path: str | Path) -> "PriceList":
        """Reads a file of conf/pricing.

        Raises:
            FileNotFoundError: no such file.
            ValueError: see `from_config`; the message names the file.
        """
        file = Path(path)
        if not file.is_file():
            raise FileNotFoundError(f"No price list at {str(file)!r}; conf/pricing holds those that come with us.")
        config = OmegaConf.to_container(OmegaConf.load(file))
        if not isinstance(config, dict):
            raise ValueError(f"{file.name}: a price list is a mapping.")
        try:
            return cls.from_config({str(key): value for key, value in config.items()})
        except ValueError as error:
            raise ValueError(f"{file.name}: {error}") from None

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
        """Dollars of `calls` calls of `name` that together took these tokens and seconds.

        Args:
            name: model or tool.
            prompt_tokens: all input tokens, the cached ones included.
            cached_tokens: the part of `prompt_tokens` that came from the provider's cache.
            completion_tokens: output tokens.
            seconds: seconds billed.
            calls: number of calls.

        Raises:
            MissingPrice: no entry for `name`.
            ValueError: a negative amount, or more cached than prompt tokens.
        """
        price = self.entries.get(name)
        if price is None:
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

    def charge(self, row: Usage) -> Usage:
        """The row of one call with the dollars and the id of this list filled in."""
        dollars = self.cost(
            row.name,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens,
            completion_tokens=row.completion_tokens,
            seconds=row.seconds,
        )
        return replace(row, cost_usd=dollars, price_list=self.id)


@dataclass
class CostLedger:
    """Every call's row, in order. Totals are exact sums (math.fsum): no dollar is lost or invented.

    Attributes:
        rows: what was added.
    """

    rows: list[Usage] = field(default_factory=list)

    def add(self, *rows: Usage) -> None:
        self.rows.extend(rows)

    @property
    def cost_usd(self) -> float:
        """Dollars of the orchestrator and its tools; judges and user simulators are kept apart."""
        return math.fsum(row.cost_usd for row in self._trajectory())

    @property
    def latency_s(self) -> float:
        """Seconds of the orchestrator and its tools."""
        return math.fsum(row.seconds for row in self._trajectory())

    @property
    def total_usd(self) -> float:
        """Dollars of all roles: what a budget counts."""
        return math.fsum(row.cost_usd for row in self.rows)

    def by_role(self) -> dict[str, float]:
        """Dollars by role."""
        return self._sums(lambda row: row.role)

    def by_name(self) -> dict[str, float]:
        """Dollars by model or tool."""
        return self._sums(lambda row: row.name)

    def _trajectory(self) -> Iterable[Usage]:
        return (row for row in self.rows if row.role in TRAJECTORY_ROLES)

    def _sums(self, key: Any) -> dict[str, float]:
        groups: dict[str, list[float]] = defaultdict(list)
        for row in self.rows:
            groups[key(row)].append(row.cost_usd)
        return {name: math.fsum(values) for name, values in groups.items()}


@dataclass
class Budget:
    """A hard stop: a call starts only when its worst case still fits, calls in flight included.

    Attributes:
        max_usd: dollars of the whole run.
        spent_usd: dollars of the finished calls.
        reserved_usd: worst cases of the calls in flight.
    """

    max_usd: float
    spent_usd: float = 0.0
    reserved_usd: float = 0.0

    def reserve(self, worst_usd: float) -> None:
        """Sets aside a call's worst case before it starts; `settle` must follow, with 0 dollars when it failed.

        Raises:
            BudgetExceeded: it does not fit.
        """
        used = self.spent_usd + self.reserved_usd
        if used + worst_usd > self.max_usd:
            raise BudgetExceeded(
                f"The next call could cost ${worst_usd:.6g}, but ${used:.6g} of the budget of ${self.max_usd:.6g} is "
                "used; raise the budget to go on."
            )
        self.reserved_usd += worst_usd

    def settle(self, worst_usd: float, cost_usd: float) -> None:
        """Replaces the reserved worst case by what the call cost."""
        self.reserved_usd -= worst_usd
        self.spent_usd += cost_usd
