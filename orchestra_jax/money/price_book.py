"""The price lists of a run: the one that is paid, and those that are drawn for its instances."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.config.schema import PricingConfig, WorldConfig
from orchestra_jax.io.shipped import CONF
from orchestra_jax.money.prices import Price, PriceList

PRICES = CONF / "pricing"


@dataclass(frozen=True, slots=True)
class PriceDraw:
    """The price list that an instance got, as its record keeps it.

    Attributes:
        list: the id of the list.
        seed: seed of the factors of its prices; None: the prices as they are.
        low, high: range of the factors.
    """

    list: str
    seed: int | None = None
    low: float = 1.0
    high: float = 1.0


class PriceBook:
    """The price lists of a run.

    Args:
        base: the list that is really paid; budgets count by it.
        lists: the lists that instances draw from; empty: `base`.
        low, high: range of the factors; every price of an instance is multiplied by one of its own.
    """

    def __init__(self, base: PriceList, lists: Sequence[PriceList] = (), low: float = 1.0, high: float = 1.0) -> None:
        self.base, self.lists, self._range = base, tuple(lists) or (base,), (low, high)
        self.prices = lru_cache(maxsize=1024)(self._prices)

    def draw(self, rng: np.random.Generator) -> PriceDraw:
        """Draw the list of one instance."""
        name = self.lists[int(rng.integers(len(self.lists)))].id
        return PriceDraw(name) if self._range == (1.0, 1.0) else PriceDraw(name, int(rng.integers(2**32)), *self._range)

    def _prices(self, draw: PriceDraw) -> PriceList:
        """Return the list that was drawn; raise ValueError where this book cannot have drawn it."""
        found = next((prices for prices in self.lists if prices.id == draw.list), None)
        if found is None or (draw.low, draw.high) != self._range:
            raise ValueError(f"{draw} is not of this run; keep pricing.* as it was when the task was made.")
        return found if draw.seed is None else found.scaled(draw.seed, draw.low, draw.high)


def price_book(cfg: WorldConfig) -> PriceBook:
    """Load the price lists of a run. In each of them "orchestrator" is the price of the policy's own tokens.

    A drawn list that lacks a model takes its price from pricing.name.

    Raises:
        ConfigError: a list is not there or broken, or has no price for the policy.
    """
    pricing = cfg.pricing
    base = _load("pricing.name", pricing.name)
    drawn = [_load("pricing.randomise.lists", name) for name in pricing.randomise.lists]
    drawn = [prices.over(base) if base.entries.keys() - prices.entries.keys() else prices for prices in drawn]
    lists = [_with_policy(prices, pricing) for prices in drawn]
    return PriceBook(_with_policy(base, pricing), lists, pricing.randomise.low, pricing.randomise.high)


def _load(key: str, name: str) -> PriceList:
    file = PRICES / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in PRICES.glob("*.yaml")))
        raise ConfigError(f"{key}={name} is no price list: use one of {known}.")
    try:
        return PriceList.load(file)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _with_policy(prices: PriceList, pricing: PricingConfig) -> PriceList:
    """Return the list with the entry "orchestrator": the configured price, or the list's own for that model."""
    listed = prices.entries.get(pricing.orchestrator)
    given = pricing.orchestrator_input, pricing.orchestrator_output
    if None in given and listed is None:
        raise ConfigError(
            f"Price list {prices.id!r} has no price for the policy, {pricing.orchestrator}: set "
            "pricing.orchestrator=NAME, or pricing.orchestrator_input and pricing.orchestrator_output."
        )
    price = listed or Price()
    cached_given = given[0] is not None or pricing.orchestrator_cached_input is not None
    price = replace(
        price,
        input=price.input if given[0] is None else given[0],
        output=price.output if given[1] is None else given[1],
        cached_input=pricing.orchestrator_cached_input if cached_given else price.cached_input,
    )
    return replace(prices, entries={**prices.entries, "orchestrator": price})
