"""What an evaluation offers, tools and price lists, and which of it a policy has not seen in training (Tables 2, 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from orchestra_jax.config import record
from orchestra_jax.money.prices import Price, PriceList
from orchestra_jax.outside import read_yaml
from orchestra_jax.shipped import CONF
from orchestra_jax.tools.build import PRICES

UNSEEN_TOOLS, UNSEEN_PRICES = "unseen tools", "unseen prices"
# What the paper trains with; it stands in where no training of the policy is on record.
_PAPER = {"tools": CONF / "tools" / "paper_train.yaml", "experiment": CONF / "experiment" / "hle.yaml"}


@dataclass(frozen=True)
class Offer:
    """What is on the menus of an evaluation.

    Attributes:
        tools: plain tools by name, experts as "role/model"; None: not on record.
        prices: names of the price lists of its menus.
        unseen: UNSEEN_TOOLS, UNSEEN_PRICES, both or neither, see `offer_of`.
    """

    tools: tuple[str, ...] | None
    prices: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """In words, such as "no tools" or "tools and models"."""
        if self.tools is None:
            return "tools not on record"
        if not self.tools:
            return "no tools"
        return "tools and models" if any("/" in tool for tool in self.tools) else "basic tools"


@dataclass(frozen=True)
class _Prices:
    """Price lists and the range of the factors on each price."""

    names: tuple[str, ...]
    low: float
    high: float

    @classmethod
    def of(cls, pricing: Mapping[str, Any]) -> "_Prices":
        drawn = pricing.get("randomise") or {}
        names = drawn.get("lists") or [pricing.get("name", "")]
        return cls(tuple(map(str, names)), float(drawn.get("low", 1.0)), float(drawn.get("high", 1.0)))


def trained_on(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The config of the training that the policy of a record comes from; None: there is none on record."""
    if found.get("kind") == "train":
        return dict(found["config"])
    for parent in reversed(found.get("parents", [])):  # adapters before what they are on
        if "run" in parent and (made := record.read(Path(parent["run"]))) is not None and made.get("kind") == "train":
            return dict(made["config"])
    return None


def offer_of(config: Mapping[str, Any], training: Mapping[str, Any] | None) -> Offer:
    """What a config evaluates with, and what of it is new.

    Tools are unseen where one on offer was not on offer in training; prices are unseen where something that was on
    offer in training too costs what no price list of training, nor its random factors, can have made it cost. So a
    model that is new is a new tool, not a new price. Without a record of training both are compared with the paper's,
    and of the tools the models alone: plain tools are nobody's in particular.

    Args:
        config: of the evaluation, as run.json has it.
        training: of the training, likewise; None: unknown.
    """
    if "tools" not in config or "pricing" not in config:
        return Offer(None)
    tools, prices = _tools(config["tools"]), _Prices.of(config["pricing"])
    if training is None:
        known, priced = _paper()
        own = [tool for tool in tools if "/" in tool]
    else:
        known, priced = _menus(training.get("tools", {})), _Prices.of(training.get("pricing", {}))
        own = list(tools)
    seen = {_what(tool) for tool in known}
    unseen = [UNSEEN_TOOLS] if any(_what(tool) not in seen for tool in own) else []
    both = [_what(tool) for tool in own if _what(tool) in seen]
    unseen += [UNSEEN_PRICES] if _new_prices(both, prices, priced) else []
    return Offer(tools, prices.names, tuple(unseen))


def _what(tool: str) -> str:
    """The model, in whatever role; else the tool."""
    return tool.rpartition("/")[2]


def _tools(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What evaluation offers, of the group `tools` of a config."""
    offer = config.get("evaluation") or {}
    return _listed(offer if offer.get("own") else config)


def _menus(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What training offers; what it shows in its own evaluations alone is not seen."""
    return _listed(config)


def _listed(config: Mapping[str, Any]) -> tuple[str, ...]:
    if (config.get("menu") or {}).get("form") == "none":
        return ()
    experts = [f"{role}/{model}" for role, models in (config.get("experts") or {}).items() for model in models]
    return tuple(map(str, [*(config.get("names") or []), *experts]))


@cache
def _paper() -> tuple[tuple[str, ...], _Prices]:
    tools, experiment = (read_yaml(file) for file in _PAPER.values())
    assert isinstance(tools, dict)
    assert isinstance(experiment, dict)
    return _menus(tools), _Prices.of(experiment["pricing"])


def _new_prices(tools: Sequence[str], now: _Prices, before: _Prices) -> bool:
    if now == before or not tools:
        return False
    lists, known = [_list(name) for name in now.names], [_list(name) for name in before.names]
    if None in lists or None in known:  # somebody's own
        return not set(now.names) <= set(before.names)
    wider = (now.low, now.high) != (1.0, 1.0) and (now.low < before.low or now.high > before.high)
    return wider or any(
        name in prices.entries
        and not any(_may_cost(prices.entries[name], each.entries.get(name), before) for each in known if each)
        for name in tools
        for prices in lists
        if prices
    )


def _may_cost(price: Price, listed: Price | None, known: _Prices) -> bool:
    """Whether training can have shown this price: that of a list, times a factor of its range."""
    if listed is None:
        return False
    pairs = [(getattr(price, unit), getattr(listed, unit)) for unit in ("input", "output", "call", "second")]
    factors = [now / then for now, then in pairs if then]
    if any(now and not then for now, then in pairs):
        return False
    same = not factors or max(factors) - min(factors) <= 1e-9 * max(factors)
    return same and all(known.low * (1 - 1e-9) <= factor <= known.high * (1 + 1e-9) for factor in factors)


@cache
def _list(name: str) -> PriceList | None:
    file = PRICES / f"{name}.yaml"
    return PriceList.load(file) if file.is_file() else None
