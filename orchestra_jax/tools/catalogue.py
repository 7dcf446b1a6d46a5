"""All tools of a run, and the menu of one instance (§3.3): a random subset, aliases, and a price list of its own.

Two forms. `separate` offers every tool and every expert under a name of its own. `released` is the form of the paper's
released evaluation: the functions `search`, `enhance_reasoning` and `answer`, each with a choice of models.

An instance is drawn from a seed alone, and its record, which goes into the task, says what every name stands for.
"""

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import Price, PriceList, choose
from orchestra_jax.tools.base import ToolHandler
from orchestra_jax.tools.menu import sample_menu
from orchestra_jax.types import Task, ToolResult, ToolSpec, Usage

FORMS = ("separate", "released")
ANSWER_TOOL = ToolSpec(
    name="answer",
    description="Gives the final answer and ends the task.",
    parameters={
        "type": "object",
        "properties": {"answer": {"type": "string", "description": "The final answer, as short as it can be."}},
        "required": ["answer"],
    },
)
# Role -> (function of the released form, prefix of its choices there, use whose latency the price list gives).
ROLES = {
    "query_writer": ("search", "search", "search"),
    "code_writer": ("enhance_reasoning", "reasoner", "reason"),
    "math": ("answer", "answer-math", "answer"),
    "generalist": ("answer", "answer", "answer"),
}
_FUNCTIONS = {
    "search": "Lets a model look for information that is missing: it writes a query, and the results are kept.",
    "enhance_reasoning": "Lets a model think the problem through in code, which is run; code and output are kept.",
    "answer": "Lets a model give the final answer from the question and all that was kept, and ends the task.",
}


@dataclass(frozen=True)
class Entry:
    """One tool of the catalogue.

    Attributes:
        spec: without price and latency; its name is what the menu shows without aliases.
        handler: executes a call; its rows bear the run's prices, or none yet.
        role: of an expert, see ROLES; "" for a plain tool.
        model: of an expert: its name in price lists.
        billed: entries of the price list that a call is charged by, the model first; none for a simulated expert,
            whose rows and spec bear its own price.
        for_task: of a simulated expert, which has to know the task: makes its handler for an episode.
    """

    spec: ToolSpec
    handler: ToolHandler
    role: str = ""
    model: str = ""
    billed: tuple[str, ...] = ()
    for_task: Callable[[Task], ToolHandler] | None = None

    def within(self, task: Task) -> "Entry":
        """The entry in an episode of `task`."""
        return self if self.for_task is None else replace(self, handler=self.for_task(task))

    @property
    def key(self) -> str:
        """What the tool is, whatever a menu calls it: "python", "generalist/gpt-5"."""
        return f"{self.role}/{self.model}" if self.role else self.spec.name


@dataclass(frozen=True)
class MenuRule:
    """How instances are drawn.

    Attributes:
        form: one of FORMS.
        subset: offer a random part of the catalogue, else everything.
        fewest, most: tools of a random part (models of each function in the released form); None: all there are.
        aliases: call experts expert-1, expert-2, ..., in the random order of the menu, so that names tell nothing.
    """

    form: str = "separate"
    subset: bool = False
    fewest: int = 1
    most: int | None = None
    aliases: bool = False


class PriceBook:
    """The price lists of a run.

    Args:
        base: what is really paid: budgets count by it.
        lists: one of them is drawn for each instance; empty: `base`.
        low, high: and every price is multiplied by a factor of its own in this range.
    """

    def __init__(self, base: PriceList, lists: Sequence[PriceList] = (), low: float = 1.0, high: float = 1.0) -> None:
        self.base, self.lists, self._range = base, tuple(lists) or (base,), (low, high)
        self.find = lru_cache(maxsize=1024)(self._find)

    def draw(self, rng: np.random.Generator) -> PriceList:
        """The list of one instance."""
        drawn = choose(self.lists, rng)
        return drawn if self._range == (1.0, 1.0) else drawn.randomised(rng, *self._range)

    def _find(self, name: str) -> PriceList:
        """The list with the id `name`; raises ValueError where this book cannot have drawn it."""
        whole, _, factors = name.rpartition("*")
        for prices in self.lists:
            if prices.id == name:
                return prices
            if prices.id == whole:
                scaled = prices.scaled(int(factors.rpartition("@")[2]), *self._range)
                if scaled.id == name:
                    return scaled
        raise ValueError(f"No price list {name!r} in this run; keep pricing.* as it was when the task was made.")


@dataclass(frozen=True)
class Instance:
    """What one task offers.

    Attributes:
        tools: the menu with prices and latencies.
        record: JSON for the task's `extra` and the logs: the seed, the id of the price list, and what every name (of a
            tool, or of a choice in the released form) stands for.
    """

    tools: tuple[ToolSpec, ...]
    record: Mapping[str, Any]


class Catalogue:
    """The tools of a run.

    Args:
        entries: keys unique; in the released form experts alone, at least one for each function.
        prices: must hold everything that `entries` are billed by.
        rule: how instances are drawn.

    Raises:
        ValueError: nothing to offer, two tools with one key, or a function without a model.
        MissingPrice: a list lacks a model or tool.
    """

    def __init__(self, entries: Sequence[Entry], prices: PriceBook, rule: MenuRule) -> None:
        self.entries = {entry.key: entry for entry in entries}
        self.prices, self.rule = prices, rule
        if not entries or len(self.entries) != len(entries):
            raise ValueError(f"A catalogue needs tools, each of them once, not {[entry.key for entry in entries]}.")
        for name in {name for entry in entries for name in entry.billed}:
            for each in (prices.base, *prices.lists):
                each.cost(name)
        if rule.form == "released":
            offered = {ROLES[entry.role][0] for entry in entries if entry.role}
            if missing := sorted(set(_FUNCTIONS) - offered):
                raise ValueError(f"The released form has no model for {missing[0]!r}; name one under tools.experts.")

    def instance(self, seed: int) -> Instance:
        """The instance of a seed, always the same."""
        rng = np.random.default_rng(seed)
        prices = self.prices.draw(rng)
        released = self.rule.form == "released"
        tools, names = self._functions(rng, prices) if released else self._menu(rng, prices)
        return Instance(tools, {"seed": seed, "prices": prices.id, "tools": names})

    def handlers(self, record: Mapping[str, Any], task: Task) -> dict[str, ToolHandler]:
        """The handlers of a menu by the names it shows; fresh for every episode, as the released form keeps notes.

        Args:
            record: of the instance.
            task: of the episode; the released form's models are asked its question.
        """
        prices = self.prices.find(record["prices"])
        entries = {name: self.entries[key].within(task) for name, key in record["tools"].items()}
        if self.rule.form == "released":
            return _Notes(task.question, entries, prices, self.prices.base).handlers()
        return {name: _repriced(entry, prices, self.prices.base) for name, entry in entries.items()}

    def _menu(self, rng: np.random.Generator, prices: PriceList) -> tuple[tuple[ToolSpec, ...], dict[str, str]]:
        """The separate form: the chosen tools, in random order where names or subset are random."""
        chosen = list(self.entries.values())
        if self.rule.subset or self.rule.aliases:
            menu = sample_menu(
                [replace(entry.spec, name=entry.key) for entry in chosen],
                rng,
                must_include=[entry.key for entry in chosen if entry.key == ANSWER_TOOL.name],
                size_range=self._sizes(len(chosen)),
            )
            chosen = [self.entries[spec.name] for spec in menu]
        numbers = itertools.count(1)
        names = {
            f"expert-{next(numbers)}" if entry.role and self.rule.aliases else entry.spec.name: entry
            for entry in chosen
        }
        tools = tuple(_priced(entry, name, prices) for name, entry in names.items())
        return tools, {name: entry.key for name, entry in names.items()}

    def _functions(self, rng: np.random.Generator, prices: PriceList) -> tuple[tuple[ToolSpec, ...], dict[str, str]]:
        """The released form: three functions, whose models are named by number in random order."""
        tools, names = list[ToolSpec](), dict[str, str]()
        for function, description in _FUNCTIONS.items():
            offered = [entry for entry in self.entries.values() if entry.role and ROLES[entry.role][0] == function]
            fewest, most = self._sizes(len(offered)) or (len(offered), len(offered))
            size = int(rng.integers(fewest, most + 1))
            choices: dict[str, Entry] = {}
            for index in rng.permutation(len(offered))[:size]:
                entry, prefix = offered[index], ROLES[offered[index].role][1]
                number = 1 + sum(ROLES[other.role][1] == prefix for other in choices.values())
                choices[f"{prefix}-{number}"] = entry
            lines = [f"{name}: {_words(entry, prices)}" for name, entry in choices.items()]
            model = {"type": "string", "enum": list(choices), "description": "\n".join(("The model.", *lines))}
            parameters = {"type": "object", "properties": {"model": model}, "required": ["model"]}
            tools.append(ToolSpec(function, description, parameters))
            names |= {name: entry.key for name, entry in choices.items()}
        return tuple(tools), names

    def _sizes(self, count: int) -> tuple[int, int] | None:
        if not self.rule.subset:
            return None
        most = min(self.rule.most or count, count)
        return min(self.rule.fewest, most), most


class _Notes:
    """One episode in the released form: what its functions found, for those that are called later."""

    def __init__(self, question: str, choices: Mapping[str, Entry], prices: PriceList, base: PriceList) -> None:
        self._question, self._choices, self._prices, self._base = question, choices, prices, base
        self._notes: list[str] = []

    def handlers(self) -> dict[str, ToolHandler]:
        return dict.fromkeys(_FUNCTIONS, self._call)

    async def _call(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        entry = self._choices[arguments["model"]]  # the schema lists the choices
        asked = entry.spec.parameters["required"][0]
        given = {asked: self._question} | ({"context": "\n\n".join(self._notes)} if self._notes else {})
        result = await _repriced(entry, self._prices, self._base)(given, budget)
        if result.is_error:
            return result
        if ROLES[entry.role][0] == "answer":
            return replace(result, final=result.text)
        self._notes.append(result.text)
        return result


async def give_answer(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
    """Handler of ANSWER_TOOL."""
    return ToolResult("The answer is given.", (Usage(ANSWER_TOOL.name),), final=arguments["answer"])


def price_words(price: Price) -> str:
    """A price as the menu states it, e.g. "$1.25 per million input tokens, $10 per million output tokens"."""
    parts = [
        (price.input, "per million input tokens"),
        (price.output, "per million output tokens"),
        (price.call, "per call"),
        (price.second, "per second"),
    ]
    return ", ".join(f"${dollars:.4g} {unit}" for dollars, unit in parts if dollars)


def _repriced(
    entry: Entry, prices: PriceList, base: PriceList
) -> Callable[[Mapping[str, Any], Budget], Awaitable[ToolResult]]:
    """The entry's handler with rows by the instance's price list. What the provider did not bill stays free."""

    async def call(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        answer = await entry.handler(arguments, budget)
        result = ToolResult(answer) if isinstance(answer, str) else answer
        rows = result.usage or (Usage(entry.model or entry.spec.name, price_list=prices.id),)  # not made: nothing spent
        return replace(result, usage=tuple(_reprice(row, prices, base) for row in rows))

    return call


def _reprice(row: Usage, prices: PriceList, base: PriceList) -> Usage:
    if row.name not in prices.entries or (row.price_list and row.cost_usd == 0 < base.charge(row).cost_usd):
        return replace(row, price_list=prices.id)
    return prices.charge(row)


def _priced(entry: Entry, name: str, prices: PriceList) -> ToolSpec:
    """The tool as the menu shows it. Prices are words of the description, since calls are charged by their rows.

    A simulated expert is charged by its spec, whose price the chat format puts into words.
    """
    latency = _latency(entry, prices)
    words = f" {_price(entry, prices)}" + (" Runs locally." if entry.spec.local else "")
    if latency is not None:
        words += f" Latency: about {latency:.3g} s."
    described = "" if entry.key == ANSWER_TOOL.name or entry.for_task else words
    return replace(entry.spec, name=name, description=f"{entry.spec.description}{described}")


def _words(entry: Entry, prices: PriceList) -> str:
    latency = _latency(entry, prices)
    return f"{entry.spec.description} {_price(entry, prices)}" + (f" Latency: {latency:.3g} s." if latency else "")


def _price(entry: Entry, prices: PriceList) -> str:
    words = [price_words(prices.entries[name]) for name in entry.billed]
    stated = [text for text in words if text]
    return f"Price: {', and '.join(stated)}." if stated else "Price: free."


def _latency(entry: Entry, prices: PriceList) -> float | None:
    """Mean seconds of the expert in its role; of its other uses where that one was not measured."""
    uses = prices.latencies.get(entry.model, {})
    if not entry.role or not uses:
        return None
    return uses.get(ROLES[entry.role][2], sum(uses.values()) / len(uses))
