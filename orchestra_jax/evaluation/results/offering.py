"""The tools and price lists of an evaluation, and which of them its policy never saw in training (Tables 2 and 4).

The records of both runs (run.json) hold the tools and name the price lists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestra_jax.config import record
from orchestra_jax.config.cli import register
from orchestra_jax.evaluation.calls import is_model
from orchestra_jax.io.foreign_yaml import read_yaml
from orchestra_jax.io.shipped import CONF
from orchestra_jax.money import price_files
from orchestra_jax.money.price_files import PRICES
from orchestra_jax.money.prices import PriceList

UNSEEN_TOOLS, UNSEEN_PRICES = "unseen tools", "unseen prices"


@dataclass(frozen=True)
class Offering:
    """The menus of an evaluation.

    Attributes:
        tools: plain tools by name, experts as "role/model"; None: not on record.
        prices: name of the price list of the menus.
        unseen: UNSEEN_TOOLS, UNSEEN_PRICES, both or neither, see `offering`.
        menu: how menus are made of the tools, in words, if not every tool is on every menu by itself.
    """

    tools: tuple[str, ...] | None
    prices: str = ""
    unseen: tuple[str, ...] = ()
    menu: str = ""

    @property
    def words(self) -> str:
        """The kind of tools in words, such as "no tools" or "tools and models"."""
        if self.tools is None:
            return "tools not on record"
        if not self.tools:
            return "no tools"
        kind = "tools and models" if any(map(is_model, self.tools)) else "basic tools"
        return f"{kind}, {self.menu}" if self.menu else kind


def training_config(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the config of the training that the policy of a record comes from, or None if it is not on record."""
    if found.get("kind") == "train":
        return dict(found["config"])
    for parent in reversed(found.get("parents", [])):  # adapters before the model below them
        if "run" in parent and (made := record.read(Path(parent["run"]))) is not None and made.get("kind") == "train":
            return dict(made["config"])
    return None


def offering(config: Mapping[str, Any], training: Mapping[str, Any] | None) -> Offering:
    """Return the tools and prices of an evaluation's config, and which of them are new.

    Tools are unseen if one on offer was not on offer in training. Prices are unseen if something that training offered
    too costs what no price list of training asks for it; so a new model is a new tool and no new price. Without a
    record of training both are compared with the paper's, and of the tools the models alone.

    Args:
        config: of the evaluation, as run.json has it.
        training: of the training, as its run.json has it; None: unknown.
    """
    if "tools" not in config or "pricing" not in config:
        return Offering(None)
    group = config["tools"]
    evaluated = group.get("evaluation") or {}
    offered, prices = evaluated if evaluated.get("own") else group, str(config["pricing"].get("name", ""))
    tools = _tools(offered, group)
    if training is None:
        paper, experiment = (_conf(name) for name in ("tools/paper_train", "experiment/hle"))
        known, lists = _tools(paper, paper), _price_lists(experiment["pricing"])
        compared = [tool for tool in tools if "/" in tool]
    else:
        # The tools of training's own evaluations are not seen in training.
        shown = training.get("tools", {})
        known, lists = _tools(shown, shown), _price_lists(training.get("pricing", {}))
        compared = list(tools)
    seen, named = {_model(tool) for tool in known}, [_model(tool) for tool in compared]
    unseen = [UNSEEN_TOOLS] if any(tool not in seen for tool in named) else []
    if _has_new_price([tool for tool in named if tool in seen], prices, lists):
        unseen.append(UNSEEN_PRICES)
    rule = offered.get("menu") or {}
    forms = {"the released form": rule.get("form") == "released", "random subsets": rule.get("subset")}
    return Offering(tools, prices, tuple(unseen), " and ".join(words for words, holds in forms.items() if holds))


def _model(tool: str) -> str:
    """Return the model, in whatever role; else the tool."""
    return tool.rpartition("/")[2]


def _tools(config: Mapping[str, Any], group: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tools of a menu. Simulated experts, which only the whole group `tools` has, are on every menu."""
    if (config.get("menu") or {}).get("form") == "none":
        return ()
    experts = [f"{role}/{model}" for role, models in (config.get("experts") or {}).items() for model in models]
    servers = [_server(entry) for entry in config.get("mcp") or []]
    return tuple(map(str, [*(config.get("names") or []), *servers, *experts, *(group.get("simulated") or {})]))


def _server(entry: Any) -> str:
    """Return the name of an MCP server, whose tools no config knows, else its host or its command's last word."""
    given = {"server": entry} if isinstance(entry, str) else entry
    label = str(given.get("name") or given.get("server"))
    return f"mcp:{urlsplit(label).netloc or label.rpartition('/')[2]}"


def _price_lists(pricing: Mapping[str, Any]) -> list[str]:
    """Return the names of the price lists of a training: first the one that completes the others."""
    drawn = (pricing.get("randomise") or {}).get("lists") or []
    return [str(pricing.get("name", "")), *map(str, drawn)]


def _has_new_price(tools: Sequence[str], name: str, lists: Sequence[str]) -> bool:
    """Return whether the list `name` asks a price for a tool that none of the lists of training asks."""
    now, known = _price_list(name), [_price_list(each) for each in lists]
    if now is None or None in known:  # somebody's own lists, of which only the names are known
        return bool(tools) and name not in lists
    asked = {tool: [each.entries.get(tool) for each in known if each] for tool in tools}
    return any(now.entries[tool] not in prices for tool, prices in asked.items() if tool in now.entries)


@cache
def _price_list(name: str) -> PriceList | None:
    file = PRICES / f"{name}.yaml"
    return price_files.load(file) if file.is_file() else None


@cache
def _conf(name: str) -> Mapping[str, Any]:
    register()  # the files may ask whether a path is there
    found = read_yaml(CONF / f"{name}.yaml")
    assert isinstance(found, dict)
    return found
