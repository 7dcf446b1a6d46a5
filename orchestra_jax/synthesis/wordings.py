"""Preferences by models: one proposes wordings and P for a menu, another reads each wording without being told P.

A wording is kept if the reader finds in it what P says. Two of the three wordings of a request are for training, the
third is for evaluation. Kinds are balanced: each is asked for equally often.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.config.synthesis import SynthesisConfig
from orchestra_jax.data.preferences import KINDS, MAKER, Pair, makers
from orchestra_jax.io.whole import write_whole
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.prices import PriceList
from orchestra_jax.synthesis.card import card, save_card
from orchestra_jax.synthesis.cast import Cast
from orchestra_jax.synthesis.near import Seen, normal
from orchestra_jax.synthesis.stages import Row, StageResult, Stages
from orchestra_jax.tools.experts.cards import model_cards
from orchestra_jax.tools.experts.forms import array, form, string
from orchestra_jax.types import CODE, FREE, SEARCH, ToolSpec

PREFERENCES = "preferences.jsonl"
# Features that P can weigh, in the words that both models are told.
FEATURES: Mapping[str, str] = {
    "low_cost": "spending little money",
    "fast": "a quick answer",
    "local": "tools that run on the user's own machines",
    "free": "tools that cost nothing",
    "open": "models with open weights",
    "closed": "models with closed weights",
    MAKER: "models made by one company; its name is written as {maker}",
    "search": "tools that search, rather than memory",
    "code": "tools that write or run code",
    "models": "language models, rather than plain tools",
    "plain": "plain tools, rather than language models",
}
TARGETS: tuple[tuple[str, ...], ...] = (
    (),
    *((name,) for name in FEATURES),
    *[("local", "low_cost"), ("open", "fast"), (MAKER, "low_cost"), ("search", "fast"), ("code", "low_cost")],
    *[("open", "low_cost"), ("local", "fast"), ("low_cost", "fast")],
)
WORDINGS = 3  # of each request, the last for evaluation
_WORDS = (3, 60)
_WRITERS = tuple(
    "a nurse on a night shift/a student with a deadline/the head of a small bakery/a tax adviser/a retired engineer/"
    "a journalist/a lawyer with confidential files/a mother of three/a biologist in the field/a games developer/"
    "a civil servant/a founder of a start-up/a teacher/a hobby astronomer/a system administrator/a translator/"
    "a hospital's data officer/a farmer/a doctoral student/a travel agent/an auditor/a chess trainer".split("/")
)
_TONES = tuple("polite/curt/chatty/formal/with the reason for it/as an order/hesitant/in one long sentence".split("/"))
_WEIGHTS = {name: {"type": "number", "minimum": 0, "maximum": 1} for name in FEATURES}
PROPOSAL = form(
    weights={"type": "object", "properties": _WEIGHTS, "additionalProperties": False},
    instructions=array(string(1, 400), WORDINGS, WORDINGS),
)
READING = form(wants={"type": "array", "items": {"enum": list(FEATURES)}})


@dataclass(frozen=True)
class WordingRequest:
    """One request to the proposer.

    Attributes:
        number: chooses who speaks and how.
        target: the features that the preference is about.
    """

    number: int
    target: tuple[str, ...]
    tools: tuple[ToolSpec, ...]


def requests(settings: SynthesisConfig, prices: PriceList, seed: int) -> list[WordingRequest]:
    """Return requests that are balanced over the targets, each with a menu of its own."""
    found = []
    for number in range(settings.preferences):
        target, rng = TARGETS[number % len(TARGETS)], np.random.default_rng([seed, number])
        found.append(WordingRequest(number, target, menu(prices, rng)))
    return found


def menu(prices: PriceList, rng: np.random.Generator) -> tuple[ToolSpec, ...]:
    """Return some models of the price list under aliases, some of them run by the user, and plain tools."""
    cards = model_cards()
    models = [name for name in sorted(prices.entries) if name in cards]
    chosen = [models[at] for at in rng.permutation(len(models))[: int(rng.integers(3, 8))]]
    form = {"type": "object"}
    found = [
        ToolSpec("python", "Runs Python code.", form, latency_s=2.0, local=True, traits=(CODE, FREE)),
        ToolSpec("local_search", "Searches passages.", form, latency_s=1.0, local=True, traits=(SEARCH, FREE)),
        ToolSpec("web_search", "Searches the web.", form, price_usd=0.01, latency_s=3.0, traits=(SEARCH,)),
    ]
    for number, name in enumerate(chosen, start=1):
        card, price = cards[name], prices.entries[name]
        seconds = float(rng.integers(5, 100))
        local = card.open_weights and rng.random() < 0.5
        words = f"{card.about} {card.origin} ${price.input:g} / ${price.output:g} per million tokens in / out."
        found.append(ToolSpec(f"expert-{number}", words, form, latency_s=seconds, local=local, traits=card.traits))
    return tuple(found[at] for at in rng.permutation(len(found)))


async def propose(request: WordingRequest, out: StageResult, cast: Cast) -> None:
    """Keep rows {"instruction", "prefers", "compute", "latency", "outcome", "number", "place"} of one proposal."""
    value = await cast.ask("writer", _proposal_prompt(request), PROPOSAL, check=lambda value: _flaw(value, request))
    weights = {name: weight for name, weight in value["weights"].items() if weight}
    prefers = {name: weight for name, weight in weights.items() if name not in ("low_cost", "fast")}
    compute = max(weights.get("low_cost", 0.0), weights.get("free", 0.0))  # a wish for free tools is a wish to save
    for place, instruction in enumerate(value["instructions"]):
        out.keep(
            {
                "instruction": " ".join(instruction.split()),
                "prefers": prefers,
                "compute": compute,
                "latency": weights.get("fast", 0.0),
                "outcome": 1.0,
                "number": request.number,
                "place": place,
            }
        )


async def read(row: Row, out: StageResult, cast: Cast) -> None:
    """Keep a wording in which the reader finds the features that P weighs, and no others."""
    value = await cast.ask("checker", _reading_prompt(row["instruction"]), READING)
    found, meant = set(value["wants"]), wanted(row)
    if "free" in meant | found:  # tools that cost nothing are a way of spending little
        found.discard("low_cost")
        meant.discard("low_cost")
    if found == meant:
        out.keep(row)
        return
    why = f"It was written for {_listed(meant)} and is read as {_listed(found)}."
    out.reject("words and P differ", why, row["instruction"])


def wanted(row: Row) -> set[str]:
    """Return the features that the P of a row weighs."""
    return {*row["prefers"], *(["low_cost"] if row["compute"] else []), *(["fast"] if row["latency"] else [])}


async def make(
    cfg: WorldConfig, settings: SynthesisConfig, folder: Path, stages: Stages, cast: Cast
) -> tuple[str, bool]:
    """Write a file of preferences with its card; return a sentence on it, and whether both splits have any."""
    prices = price_book(cfg).base
    proposed = await stages.run("proposals", requests(settings, prices, cfg.seed), partial(propose, cast=cast))
    sound = await stages.run("readings", proposed.rows, partial(read, cast=cast))
    pairs = await stages.run("pairs", [sound.rows], sift)
    counts = {split: Counter(row["name"] for row in pairs.rows if row["split"] == split) for split in ("train", "eval")}
    figures = {"pairs": {split: dict(sorted(count.items())) for split, count in counts.items()}}
    write_whole(folder / PREFERENCES, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in pairs.rows))
    lines = [
        f"{sum(count.values())} wordings for {split}: {', '.join(f'{name} {n}' for name, n in sorted(count.items()))}."
        for split, count in counts.items()
    ]
    about = "Instructions and what they weigh."
    save_card(folder, card(settings, cfg, stages.done, figures), "Preferences", about, lines)
    total = {split: sum(count.values()) for split, count in counts.items()}
    told = (
        f"{total['train']} wordings for training and {total['eval']} for evaluation are in {folder / PREFERENCES}, "
        "which data.preferences_file takes."
    )
    return told, all(total.values())


async def sift(rows: Sequence[Row], out: StageResult) -> None:
    """Keep wordings that repeat none before them: first those for evaluation, so that training has none like them."""
    seen = Seen()
    ordered = sorted(rows, key=lambda row: (row["place"] != WORDINGS - 1, row["number"], row["place"]))
    for row in ordered:
        if (earlier := seen.add(row["instruction"])) is not None:
            out.reject("near-duplicate", f"It repeats: {earlier}", row["instruction"])
            continue
        fields = {key: row[key] for key in ("instruction", "prefers", "compute", "latency", "outcome")}
        split = "eval" if row["place"] == WORDINGS - 1 else "train"
        out.keep({"split": split, "name": Pair(split=split, **fields).name, **fields})


def _proposal_prompt(request: WordingRequest) -> str:
    target = _listed(set(request.target))
    who, tone = _WRITERS[request.number % len(_WRITERS)], _TONES[request.number // len(_WRITERS) % len(_TONES)]
    tools = "\n".join(_line(spec) for spec in request.tools)
    maker = "Write {maker}, with its braces, for the company's name. " if MAKER in request.target else ""
    return (
        "Users of an assistant with tools say in a sentence or two how it should work, and a vector P says the same in "
        f"numbers from 0 (does not matter) to 1 (matters most). An example of the tools:\n{tools}\n\n"
        f"Features that P can weigh:\n{_meanings()}\n\n"
        f"Write {WORDINGS} instructions that say the same wish in quite different words, and its weights. The wish is "
        f"about this alone: {target}. Weigh only what the instructions say. They must fit any menu of such tools, so "
        f"they name no tool, no model and no price, and ask no question. {maker}"
        f"Who speaks: {who}; how: {tone}."
    )


def _reading_prompt(instruction: str) -> str:
    return (
        "A user of an assistant with tools says how it should work. Which of these features does the user ask for? "
        f"List all that the words ask for and none that they do not; an empty list if it is none of them.\n"
        f"{_meanings()}\n\nThe user's words: {instruction}"
    )


def _meanings() -> str:
    return "\n".join(f"- {name}: {meaning}" for name, meaning in FEATURES.items())


def _listed(features: set[str]) -> str:
    names = [name for name in FEATURES if name in features]
    return "; ".join(f"{name} ({FEATURES[name]})" for name in names) or "that the answer is right, and nothing else"


def _line(spec: ToolSpec) -> str:
    price = "" if spec.price_usd is None else f" ${spec.price_usd:g} per call."
    place = " Runs on the user's machines." if spec.local else ""
    return f"- {spec.name}: {spec.description}{price} About {spec.latency_s:g} s.{place}"


def _flaw(value: Any, request: WordingRequest) -> str | None:
    """Return a clause on the fault of a proposal, or None."""
    given = {name for name, weight in value["weights"].items() if weight}
    if "free" in request.target:
        given.discard("low_cost")
    if given != set(request.target):
        return f"weights must be above 0 for {sorted(request.target)} and for nothing else, not for {sorted(given)}"
    names = {spec.name for spec in request.tools}
    for text in value["instructions"]:
        words = normal(text).split()
        if not _WORDS[0] <= len(words) <= _WORDS[1]:
            return f"an instruction has {len(words)} words, not {_WORDS[0]} to {_WORDS[1]}"
        if "$" in text or names & set(re.findall(r"[\w-]+", text.casefold())):  # `normal` parts "web_search"
            return "an instruction names a price or a tool"
        rest = text.replace("{maker}", "")
        if text.count("{maker}") != int(MAKER in request.target) or "{" in rest or "}" in rest:
            return "{maker} must stand once in each instruction about a maker, and in no other, with no further braces"
        known = [maker for maker in makers(request.tools) if normal(maker) in words]
        if known:
            return f"an instruction names {known[0]}"
    return None


assert set(FEATURES) == {*KINDS, MAKER, "low_cost", "fast"}
