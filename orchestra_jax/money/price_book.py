"""The price lists of a run: the one that is paid, and those that are drawn for its instances."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.money.price_files import completed
from orchestra_jax.money.prices import Price, PriceList
from orchestra_jax.money.run_prices import load_prices, with_policy


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
        self.prices = lru_cache(maxsize=4096)(self._prices)  # those of the demonstrations under way

    def draw(self, rng: np.random.Generator) -> PriceDraw:
        """Draw the list of one instance."""
        name = self.lists[int(rng.integers(len(self.lists)))].id
        return PriceDraw(name) if self._range == (1.0, 1.0) else PriceDraw(name, int(rng.integers(2**32)), *self._range)

    def _prices(self, draw: PriceDraw) -> PriceList:
        """Return the list that was drawn (`prices` remembers it); raise ValueError where this book cannot draw it."""
        found = next((prices for prices in self.lists if prices.id == draw.list), None)
        if found is None or (draw.low, draw.high) != self._range:
            raise ValueError(f"{draw} is not of this run; keep pricing.* as it was when the task was made.")
        return found if draw.seed is None else scaled(found, draw.seed, draw.low, draw.high)


def scaled(prices: PriceList, seed: int, low: float, high: float) -> PriceList:
    """Return the list with every entry's prices times a factor of its own, log-uniform in [low, high].

    The factor depends on the seed and the entry's name only. The id records seed and range, so a ledger row tells how
    to make its list again.

    Raises:
        ValueError: not 0 < low <= high < infinity.
    """
    if not 0 < low <= high < math.inf:
        raise ValueError(f"Price factors need 0 < low <= high, not low={low:g}, high={high:g}.")
    entries, parts = {}, [part.name for part in fields(Price)]
    for name, price in prices.entries.items():
        uniform = np.random.default_rng([seed, zlib.crc32(name.encode())]).random()
        factor = math.exp(math.log(low) + uniform * (math.log(high) - math.log(low)))
        entries[name] = Price(*(dollars and dollars * factor for dollars in map(price.__getattribute__, parts)))
    return replace(prices, id=f"{prices.id}*{low:g}..{high:g}@{seed}", entries=entries)


def price_book(cfg: WorldConfig) -> PriceBook:
    """Load the price lists of a run: the one that is paid, and those of pricing.randomise.

    A drawn list that lacks a model takes its price from pricing.name.

    Raises:
        ConfigError: a list is not there or broken, or has no price for the policy.
    """
    pricing = cfg.pricing
    base = load_prices("pricing.name", pricing.name)
    drawn = [load_prices("pricing.randomise.lists", name) for name in pricing.randomise.lists]
    drawn = [completed(prices, base) if base.entries.keys() - prices.entries.keys() else prices for prices in drawn]
    lists = [with_policy(prices, pricing) for prices in drawn]
    return PriceBook(with_policy(base, pricing), lists, pricing.randomise.low, pricing.randomise.high)
