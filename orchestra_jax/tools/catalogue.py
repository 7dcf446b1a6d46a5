"""All tools of a run, and the menu of one instance (§3.3): a random subset, aliases, and a price list of its own.

`separate` offers every tool and every expert under a name of its own. `released` is the form of the paper's released
evaluation: the functions `search`, `enhance_reasoning` and `answer`, each with a choice of models. `none` is an empty
menu: the policy answers by itself.

An instance is drawn from a seed alone. Its record goes into the task and says what every name of the menu stands for.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from string import ascii_uppercase
from types import MappingProxyType
from typing import Any

import numpy as np

from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.config.tools import MenuRule, ToolsConfig
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.price_book import PriceBook, PriceDraw
from orchestra_jax.money.prices import Price, PriceList
from orchestra_jax.tools.executor import ToolExecutor, ToolHandler, as_result
from orchestra_jax.tools.experts.roles import ROLES
from orchestra_jax.tools.relay import RELAY, relaying
from orchestra_jax.types import CODE, FREE, HAND_IN, OPEN_WEIGHTS, PAID, SEARCH, Task, ToolResult, ToolSpec, Usage

# Of the released form: use of a role -> (function, what the policy reads about it).
_FUNCTIONS = {
    "search": (
        "search",
        "Lets a model look for information that is missing: it writes a query, and the results are kept.",
    ),
    "reason": (
        "enhance_reasoning",
        "Lets a model think the problem through in code, which is run; code and output are kept.",
    ),
    "answer": (
        "answer",
        "Lets a model give the final answer from the question and all that was kept, and ends the task.",
    ),
}

_NO_PRICE = "Price: free."
_FUNCTION_TRAITS = {"search": (SEARCH,), "enhance_reasoning": (CODE,)}


@dataclass(frozen=True)
class Entry:
    """One tool of the catalogue.

    Attributes:
        spec: the tool without price and latency, under its name in menus without aliases.
        handler: executes a call; its rows bear what was really paid, or no dollars yet.
        role: role of an expert, see ROLES; "" for a plain tool.
        model: name of an expert in price lists.
        billed: entries of the price list that a call is charged by, the model first; none for a simulated expert,
            whose rows and spec bear its own price.
        for_task: function that makes the handler for an episode; only a simulated expert has to know the task.
    """

    spec: ToolSpec
    handler: ToolHandler
    role: str = ""
    model: str = ""
    billed: tuple[str, ...] = ()
    for_task: Callable[[Task], ToolHandler] | None = None

    def within(self, task: Task) -> "Entry":
        """Return the entry in an episode of `task`."""
        return self if self.for_task is None else replace(self, handler=self.for_task(task))

    @property
    def key(self) -> str:
        """Identity of the tool, whatever a menu calls it: "python", "generalist/gpt-5"."""
        return f"{self.role}/{self.model}" if self.role else self.spec.name


@dataclass(frozen=True)
class Instance:
    """The menu of one task.

    Attributes:
        tools: the menu with prices and latencies.
        record: JSON for the task's `extra` and the logs: the seed, the fields of the `PriceDraw`, what every name
            (of a tool, or of a choice in the released form) stands for, and what a million output tokens of each
            expert cost.
    """

    tools: tuple[ToolSpec, ...]
    record: Mapping[str, Any]


class Catalogue:
    """The tools of a run.

    Args:
        entries: keys unique; in the released form experts alone, at least one for each function; none in `none`.
        book: every list of it must hold everything that `entries` are billed by.

    Raises:
        ValueError: nothing to offer, two tools with one key, or a function without a model.
        MissingPrice: a list lacks a model or tool.
        ConfigError: every menu should have what is not offered, or more than fits.
    """

    def __init__(self, entries: Sequence[Entry], book: PriceBook, rule: MenuRule) -> None:
        self.entries = {entry.key: entry for entry in entries}
        self.book, self.rule = book, rule
        if (not entries and rule.form != "none") or len(self.entries) != len(entries):
            raise ValueError(f"A catalogue needs tools, each of them once, not {[entry.key for entry in entries]}.")
        for name in {name for entry in entries for name in entry.billed}:
            for each in (book.base, *book.lists):
                each.cost(name)
        if unknown := sorted(set(rule.always) - self.entries.keys()):
            raise ConfigError(
                f"tools.menu.always names {unknown[0]}, which is not offered here: take it out, or name some of "
                f"{', '.join(self.entries)}."
            )
        if rule.subset and rule.most and len(self._required) > rule.most:
            raise ConfigError(
                f"tools.menu.most={rule.most} does not hold what every menu has, {', '.join(self._required)}: raise it."
            )
        if rule.form == "released":
            offered = {ROLES[entry.role].use for entry in entries if entry.role}
            if missing := sorted(function for use, (function, _) in _FUNCTIONS.items() if use not in offered):
                raise ValueError(f"The released form has no model for {missing[0]!r}; name one under tools.experts.")

    @cached_property
    def _required(self) -> list[str]:
        """Keys of the tools that every menu has."""
        return [key for key in self.entries if key in HAND_IN or key in self.rule.always]

    @property
    def largest(self) -> int:
        """Number of tools in the largest menu."""
        if self.rule.form == "released":
            return len(_FUNCTIONS)
        return self._sizes(len(self.entries))[1]

    def instance(self, seed: int) -> Instance:
        """Return the instance of a seed, always the same."""
        rng = np.random.default_rng(seed)
        draw = self.book.draw(rng)
        make = self._functions if self.rule.form == "released" else self._menu
        prices = self.book.prices(draw)
        tools, names = make(rng, prices)
        offered = [self.entries[key] for key in names.values()]
        output = {entry.key: prices.entries[entry.model].output for entry in offered if entry.role and entry.billed}
        return Instance(tools, {"seed": seed, "prices": asdict(draw), "tools": names, "output_usd": output})

    def executor(
        self,
        record: Mapping[str, Any],
        task: Task,
        budget: Budget,
        own: Mapping[str, ToolHandler] = MappingProxyType({}),
    ) -> ToolExecutor:
        """Make the executor of an episode of `task`, which has the tools of the instance of `record`.

        One is made for each episode, as the released form keeps notes. `own` are handlers of further tools, which the
        task brings and no list prices: they are charged what their rows and specs say.
        """
        paid = self.book.base
        entries = {name: self.entries[key].within(task) for name, key in record["tools"].items()}
        handlers = {name: _accounted(entry, paid) for name, entry in entries.items()}
        if self.rule.form == "released":
            call = _released(task.question, entries, handlers)
            handlers = {function: call for function, _ in _FUNCTIONS.values()}
        shown = self.book.prices(PriceDraw(**record["prices"]))
        if RELAY.name in handlers:
            handlers = relaying(handlers)
        return ToolExecutor(task.tools, {**handlers, **own}, budget, shown, paid)

    def _menu(self, rng: np.random.Generator, prices: PriceList) -> tuple[tuple[ToolSpec, ...], dict[str, str]]:
        """Draw a menu of the separate form, in random order if names or subset are random."""
        chosen = list(self.entries.values())
        if self.rule.subset or self.rule.aliases:
            size = self._size(rng, len(chosen))
            required = [entry for entry in chosen if entry.key in self._required]
            optional = [entry for entry in chosen if entry.key not in self._required]
            drawn = rng.choice(len(optional), size=max(0, size - len(required)), replace=False)
            menu = required + [optional[index] for index in drawn]
            chosen = [menu[index] for index in rng.permutation(len(menu))]  # no position tells which tool it is
        aliases = iter(self._aliases(rng, sum(bool(entry.role) for entry in chosen)))
        names = {next(aliases) if entry.role and self.rule.aliases else entry.spec.name: entry for entry in chosen}
        hosted = self._hosted(rng, chosen)
        tools = tuple(_priced(entry, name, prices, entry.model in hosted) for name, entry in names.items())
        return tools, {name: entry.key for name, entry in names.items()}

    def _aliases(self, rng: np.random.Generator, count: int) -> list[str]:
        """Return names for so many experts, in the order of the menu."""
        if not self.rule.letters:
            return [f"expert-{number}" for number in range(1, count + 1)]
        names = list(ascii_uppercase)
        if count > len(names):
            names = [first + second for first, second in itertools.product(names, names)]
        return [names[index] for index in rng.permutation(len(names))[:count]]

    def _hosted(self, rng: np.random.Generator, chosen: Sequence[Entry]) -> set[str]:
        """Draw the models that run on the user's own machines in this instance, whatever their roles."""
        if not self.rule.self_hosted:
            return set()
        able = sorted({entry.model for entry in chosen if OPEN_WEIGHTS in entry.spec.traits})
        return {model for model in able if rng.random() < self.rule.self_hosted}

    def _functions(self, rng: np.random.Generator, prices: PriceList) -> tuple[tuple[ToolSpec, ...], dict[str, str]]:
        """Draw a menu of the released form: three functions, whose models are numbered in random order."""
        tools, names = list[ToolSpec](), dict[str, str]()
        for use, (function, description) in _FUNCTIONS.items():
            offered = [entry for entry in self.entries.values() if entry.role and ROLES[entry.role].use == use]
            size = self._size(rng, len(offered))
            choices: dict[str, Entry] = {}
            for index in rng.permutation(len(offered))[:size]:
                entry, prefix = offered[index], ROLES[offered[index].role].prefix
                number = 1 + sum(ROLES[other.role].prefix == prefix for other in choices.values())
                choices[f"{prefix}-{number}"] = entry
            lines = [f"{name}: {_words(entry, prices)}" for name, entry in choices.items()]
            model = {"type": "string", "enum": list(choices), "description": "\n".join(("The model.", *lines))}
            parameters = {"type": "object", "properties": {"model": model}, "required": ["model"]}
            traits = _FUNCTION_TRAITS.get(function, ())
            spec = ToolSpec(name=function, description=description, parameters=parameters, traits=traits)
            tools.append(replace(spec, terminal=function == "answer"))
            names |= {name: entry.key for name, entry in choices.items()}
        return tuple(tools), names

    def _size(self, rng: np.random.Generator, count: int) -> int:
        """Draw how many of `count` tools or models are offered."""
        fewest, most = self._sizes(count)
        return int(rng.integers(fewest, most + 1))

    def _sizes(self, count: int) -> tuple[int, int]:
        """Return the fewest and the most that are offered of `count`."""
        most = min(self.rule.most or count, count) if self.rule.subset else count
        return min(self.rule.fewest, most) if self.rule.subset else count, most


def _released(question: str, choices: Mapping[str, Entry], handlers: Mapping[str, ToolHandler]) -> ToolHandler:
    """Make the functions of one episode in the released form; a later call gets the results of earlier ones."""
    notes = list[str]()

    async def call(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        entry = choices[arguments["model"]]  # the schema lists the choices
        given = {ROLES[entry.role].argument: question} | ({"context": "\n\n".join(notes)} if notes else {})
        result = as_result(await handlers[arguments["model"]](given, budget))
        if result.is_error:
            return result
        if ROLES[entry.role].use == "answer":
            return replace(result, final=result.text)
        notes.append(result.text)
        return result

    return call


def price_words(price: Price) -> str:
    """Return a price as the menu states it, e.g. "$1.25 per million input tokens, $10 per million output tokens"."""
    parts = [
        (price.input, "per million input tokens"),
        (price.output, "per million output tokens"),
        (price.call, "per call"),
        (price.second, "per second"),
    ]
    return ", ".join(f"${dollars:.4g} {unit}" for dollars, unit in parts if dollars)


def _accounted(entry: Entry, paid: PriceList) -> ToolHandler:
    """Wrap the entry's handler: a call that reports no row spent nothing, and gets a row that says so."""
    nothing = Usage(entry.model or entry.spec.name, price_list=paid.id)

    async def call(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        result = as_result(await entry.handler(arguments, budget))
        return result if result.usage or result.refused else replace(result, usage=(nothing,))

    return call


def _priced(entry: Entry, name: str, prices: PriceList, hosted: bool) -> ToolSpec:
    """Return the tool as the menu shows it. Prices are words of the description, since calls are charged by their rows.

    A tool that no list names is charged by its spec, whose price the chat format puts into words.
    """
    spec, latency = replace(entry.spec, name=name, local=entry.spec.local or hosted), _latency(entry, prices)
    if not entry.billed:
        return spec
    price = _price(entry, prices)
    words = f"{spec.description} {price}" + (" Runs locally." if spec.local else "")
    if latency is not None:
        words += f" Latency: about {latency:.3g} s."
    return replace(spec, description=words, traits=(*spec.traits, FREE if price == _NO_PRICE else PAID))


def _words(entry: Entry, prices: PriceList) -> str:
    latency = _latency(entry, prices)
    return f"{entry.spec.description} {_price(entry, prices)}" + (f" Latency: {latency:.3g} s." if latency else "")


def _price(entry: Entry, prices: PriceList) -> str:
    words = [price_words(prices.entries[name]) for name in entry.billed]
    stated = [text for text in words if text]
    return f"Price: {', and '.join(stated)}." if stated else _NO_PRICE


def _latency(entry: Entry, prices: PriceList) -> float | None:
    return role_seconds(entry.model, entry.role, prices) if entry.role else None


def role_seconds(model: str, role: str, prices: PriceList) -> float | None:
    """Return the mean seconds of an expert in a role, else of its other uses; None if none was measured."""
    uses = prices.latencies.get(model)
    return uses.get(ROLES[role].use, sum(uses.values()) / len(uses)) if uses else None


def instance_seed(seed: int, task: str, draw: int) -> int:
    """Return the seed of an instance, from the seed of the run, the task and the draw of its place in the stream."""
    return int.from_bytes(hashlib.blake2b(repr((seed, task, draw)).encode(), digest_size=8).digest())


def models_of(tools: ToolsConfig) -> list[str]:
    """Return the names of all models that play a role or judge."""
    judges = set() if tools.judge == "match" else {tools.judge}
    return sorted({model for models in tools.experts.values() for model in models} | judges)
