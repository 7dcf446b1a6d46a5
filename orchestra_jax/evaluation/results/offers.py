"""What an evaluation offers, tools and price lists, and which of it a policy has not seen in training (Tables 2, 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestra_jax.config import record
from orchestra_jax.evaluation.calls import is_model
from orchestra_jax.io.shipped import CONF
from orchestra_jax.io.untrusted import read_yaml
from orchestra_jax.money.price_book import PRICES
from orchestra_jax.money.prices import Price, PriceList

UNSEEN_TOOLS, UNSEEN_PRICES = "unseen tools", "unseen prices"
# What the paper trains with; it stands in where no training of the policy is on record.
_PAPER = {"tools": CONF / "tools" / "paper_train.yaml", "experiment": CONF / "experiment" / "hle.yaml"}


@dataclass(frozen=True)
class Offer:
    """What is on the menus of an evaluation.

    Attributes:
        tools: plain tools by name, experts as "role/model"; None: not on record.
        prices: name of the price list of its menus.
        unseen: UNSEEN_TOOLS, UNSEEN_PRICES, both or neither, see `offer_of`.
        menu: how menus are made of the tools, in words, where not each is one of its own on every menu.
    """

    tools: tuple[str, ...] | None
    prices: str = ""
    unseen: tuple[str, ...] = ()
    menu: str = ""

    @property
    def words(self) -> str:
        """In words, such as "no tools" or "tools and models"."""
        if self.tools is None:
            return "tools not on record"
        if not self.tools:
            return "no tools"
        what = "tools and models" if any(map(is_model, self.tools)) else "basic tools"
        return f"{what}, {self.menu}" if self.menu else what


@dataclass(frozen=True)
class _Prices:
    """The price lists that training draws from, what completes them, and the range of the factors on each price."""

    names: tuple[str, ...]
    base: str
    low: float
    high: float

    @classmethod
    def of(cls, pricing: Mapping[str, Any]) -> "_Prices":
        drawn, base = pricing.get("randomise") or {}, str(pricing.get("name", ""))
        names = tuple(map(str, drawn.get("lists") or [base]))
        return cls(names, base, float(drawn.get("low", 1.0)), float(drawn.get("high", 1.0)))


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
    offered, prices = _evaluated(config["tools"]), str(config["pricing"].get("name", ""))
    tools = _listed(offered, config["tools"])
    if training is None:
        known, priced = _paper()
        own = [tool for tool in tools if "/" in tool]
    else:
        # What training shows in its own evaluations alone is not seen.
        shown = training.get("tools", {})
        known, priced = _listed(shown, shown), _Prices.of(training.get("pricing", {}))
        own = list(tools)
    seen = {_what(tool) for tool in known}
    unseen = [UNSEEN_TOOLS] if any(_what(tool) not in seen for tool in own) else []
    both = [_what(tool) for tool in own if _what(tool) in seen]
    unseen += [UNSEEN_PRICES] if _new_prices(both, prices, priced) else []
    return Offer(tools, prices, tuple(unseen), _menu(offered))


def _what(tool: str) -> str:
    """The model, in whatever role; else the tool."""
    return tool.rpartition("/")[2]


def _evaluated(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of tools that evaluation has, of the group `tools` of a config."""
    offer: Mapping[str, Any] = config.get("evaluation") or {}
    return offer if offer.get("own") else config


def _menu(config: Mapping[str, Any]) -> str:
    rule = config.get("menu") or {}
    parts = ["the released form"] if rule.get("form") == "released" else []
    return " and ".join([*parts, *(["random subsets"] if rule.get("subset") else [])])


def _listed(config: Mapping[str, Any], group: Mapping[str, Any]) -> tuple[str, ...]:
    """The tools of a menu; simulated experts, which the whole group `tools` of settings has, are on every one."""
    if (config.get("menu") or {}).get("form") == "none":
        return ()
    experts = [f"{role}/{model}" for role, models in (config.get("experts") or {}).items() for model in models]
    servers = [_server(entry) for entry in config.get("mcp") or []]
    return tuple(map(str, [*(config.get("names") or []), *servers, *experts, *(group.get("simulated") or {})]))


def _server(entry: Any) -> str:
    """An MCP server, whose tools no config knows: its name, else its host or the last word of its command."""
    given = {"server": entry} if isinstance(entry, str) else entry
    label = str(given.get("name") or given.get("server"))
    return f"mcp:{urlsplit(label).netloc or label.rpartition('/')[2]}"


@cache
def _paper() -> tuple[tuple[str, ...], _Prices]:
    tools, experiment = (read_yaml(file) for file in _PAPER.values())
    assert isinstance(tools, dict)
    assert isinstance(experiment, dict)
    return _listed(tools, tools), _Prices.of(experiment["pricing"])


def _new_prices(tools: Sequence[str], name: str, before: _Prices) -> bool:
    """Whether the list `name`, which evaluation shows as it is, has a price of a tool that training cannot have had."""
    now, base = _list(name), _list(before.base)
    known = [_list(each) for each in before.names]
    if now is None or base is None or None in known:  # somebody's own
        return bool(tools) and name not in (before.base, *before.names)
    whole = [each.over(base).entries for each in known if each]
    priced = [tool for tool in tools if tool in now.entries]
    return any(not any(_may_cost(now.entries[tool], each.get(tool), before) for each in whole) for tool in priced)


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
