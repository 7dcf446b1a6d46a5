"""The quickstart world: generated facts, question families, tools, price lists and preferences, all from one seed.

Families of plain-English questions, each with another right tool or order of tools (docs/quickstart.md). Questions,
people, price lists and preference wordings of the evaluation split never occur in training.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from orchestra_jax.envs.quickstart.facts import (
    ATTRIBUTES,
    BOSS,
    CATALOGUE,
    CHANCES,
    FAMILIES,
    FIRST_NAMES,
    LAST_NAMES,
    RIVALS,
    TOOL_NAMES,
    pick,
)
from orchestra_jax.envs.quickstart.preferences import PREFERENCE_SHARES, draw_preference
from orchestra_jax.envs.quickstart.questions import GENERATORS, QuickstartQuestion, is_held_out, near
from orchestra_jax.types import Preference, Task, ToolSpec

FAMILY_SHARES = (0.18, 0.16, 0.18, 0.24, 0.24)

BOSS_NAMES = 12  # so many first names and last names are those of bosses

OFFER_UNITS = (1, 10)  # steps of cents and of seconds: no figure of one column stands in the other
PriceOffers = Mapping[str, tuple[int, int]]  # cents and seconds of a call of each of TOOL_NAMES


def draw_offers(split: str, rng: np.random.Generator, gap: int = 1) -> PriceOffers:
    """Draw rivals' figures of 1 to 9 units, `gap` or more apart; any may be the lowest. No list is in both splits."""
    found: dict[str, tuple[int, int]] = {}
    for rivals in RIVALS.values():
        columns = [rng.permutation(np.arange(1 + rng.integers(gap), 10, gap)) * unit for unit in OFFER_UNITS]
        found |= zip(rivals, zip(*(column.tolist() for column in columns), strict=False), strict=False)
    held_out = zlib.crc32(repr(found).encode()) % 5 == 0
    return found if held_out == (split == "eval") else draw_offers(split, rng, gap)


class QuickstartWorld:
    """All that the seed fixes: people, their facts and bosses, and the corpora; the local one is partly out of date."""

    def __init__(self, seed: int = 0, people: int = 1200) -> None:
        self.seed = seed
        rng = np.random.default_rng([seed, 0])
        # A search takes words in any order: bosses share no name with those who have one.
        self.bosses = _split(rng, FIRST_NAMES[:BOSS_NAMES], LAST_NAMES[:BOSS_NAMES])
        self.people = _split(rng, FIRST_NAMES[BOSS_NAMES:], LAST_NAMES[BOSS_NAMES:], people)
        known = [name for some in (*self.people.values(), *self.bosses.values()) for name in some]
        self.facts = {
            (name, attribute): pick(values, rng) for name in known for attribute, (values, _, _) in ATTRIBUTES.items()
        }
        self.local_facts: dict[tuple[str, str], str] = {}
        for split, some in self.people.items():
            self.facts |= {(name, "boss"): pick(self.bosses[split], rng) for name in some}
        for (name, attribute), value in self.facts.items():
            values = self.bosses["train"] if attribute == "boss" else ATTRIBUTES[attribute][0]
            old = pick([other for other in values if other != value], rng)
            self.local_facts[name, attribute] = value if rng.random() < CHANCES["local_search"] else old
        self.local_corpus, self.web_corpus = _sentences(self.local_facts), _sentences(self.facts)

    def question(self, family: str, split: str, rng: np.random.Generator) -> QuickstartQuestion:
        """Draw a question of the family; no question, whatever the order of its parts, is in both splits."""
        if family in GENERATORS:
            while True:
                question, facts = GENERATORS[family](rng)
                # A search may say a number of the question.
                copied = family != "compare" and question.answer in map(str, facts)
                if is_held_out(*facts) == (split == "eval") and not copied:
                    return question
        name, attribute = pick(self.people[split], rng), pick([*ATTRIBUTES, "boss"], rng)
        if family == "lookup":
            return self.lookup(name, attribute)
        if family == "sum":
            found = self.ages(name, pick(self.people[split], rng), together=bool(rng.random() < 0.5))
        else:
            found = self.hops(name, "born" if attribute == "boss" else attribute)
        return found or self.question(family, split, rng)

    def lookup(self, name: str, attribute: str) -> QuickstartQuestion:
        """Return the question about one fact."""
        truth = self.facts[name, attribute]
        text = f"Who is the boss of {name}?" if attribute == "boss" else ATTRIBUTES[attribute][1].format(name=name)
        return QuickstartQuestion.simple("lookup", text, truth, f"{name} {attribute}", self._wrong(attribute, truth))

    def ages(self, name: str, other: str, *, together: bool) -> QuickstartQuestion | None:
        """Return the question about two people's ages; None where one look-up would give the answer."""
        first, second = int(self.facts[name, "age"]), int(self.facts[other, "age"])
        value = first + second if together else first - second
        shown = {facts[who, "age"] for facts in (self.facts, self.local_facts) for who in (name, other)}
        if name == other or value < 0 or str(value) in shown:
            return None
        text = f"How old are {name} and {other} together?" if together else f"How much older is {name} than {other}?"
        steps = ("lookup", f"{name} age"), ("lookup", f"{other} age"), ("arith", f"{{0}} {'+-'[not together]} {{1}}")
        return QuickstartQuestion("sum", text, str(value), steps, near(value, (10, -10, 2, -1)))

    def hops(self, name: str, attribute: str) -> QuickstartQuestion | None:
        """Return the question about a fact of a person's boss; None where the person's own facts give the answer."""
        truth = self.facts[self.facts[name, "boss"], attribute]
        if truth in (self.facts[name, attribute], self.local_facts[name, attribute]):
            return None
        text = ATTRIBUTES[attribute][1].format(name=f"the boss of {name}")
        steps = ("lookup", f"{name} boss"), ("lookup", f"{{0}} {attribute}")
        return QuickstartQuestion("hops", text, truth, steps, self._wrong(attribute, truth))

    def _wrong(self, attribute: str, truth: str) -> tuple[str, ...]:
        values = self.bosses["train"] if attribute == "boss" else ATTRIBUTES[attribute][0]
        return tuple(value for value in values if value != truth)[:5]

    def menu(
        self,
        kinds: Sequence[str],
        offers: PriceOffers,
        rng: np.random.Generator,
        tools: Sequence[str] = TOOL_NAMES,
        *,
        full: bool = False,
        short: bool = False,
    ) -> tuple[ToolSpec, ...]:
        """Draw the `tools` that do steps of these kinds, and others (`full`: all, `short`: one), at these prices."""
        needed = [name for name in tools if any(name in RIVALS[kind] for kind in kinds)]
        rest = [name for name in tools if name not in needed]
        extra = rng.permutation(rest)[: 1 if short else int(rng.integers(1, len(rest) + 1))].tolist()
        offered = set(tools) if full else {*needed, *extra}
        menu = [
            replace(CATALOGUE[name], price_usd=cents / 100, latency_s=float(seconds))
            for name, (cents, seconds) in offers.items()
            if name in offered
        ]
        return tuple(menu[i] for i in rng.permutation(len(menu)))

    def task(
        self, split: str, index: int, tools: Sequence[str] = TOOL_NAMES, *, short: bool = False, gap: int = 1
    ) -> Task:
        """Return instance `index` of the split: question, menu and preference drawn from (seed, split, index)."""
        return self.paired_tasks(split, index, 1, tools, short=short, gap=gap)[0]

    def paired_tasks(
        self, split: str, index: int, k: int, tools: Sequence[str] = TOOL_NAMES, *, short: bool = False, gap: int = 1
    ) -> list[Task]:
        """Return instance `index` under `k` different preferences, which call for other plans as a rule."""
        rng = np.random.default_rng([self.seed, 1 + ("train", "eval").index(split), index])
        family = FAMILIES[int(rng.choice(len(FAMILIES), p=FAMILY_SHARES))]
        question = self.question(family, split, rng)
        kinds, names, odds = [kind for kind, _ in question.steps], [*PREFERENCE_SHARES], [*PREFERENCE_SHARES.values()]
        menu = self.menu(kinds, draw_offers(split, rng, gap), rng, tools, short=short)
        chosen = rng.choice(names, k, replace=False, p=odds).tolist()
        wishes = [draw_preference(name, split, kinds, menu, rng) for name in chosen]
        ids = [f"{split}-{index}", *(f"{split}-{index}-{number}" for number in range(1, k))]
        return [self.pose(name, question, menu, wish) for name, wish in zip(ids, wishes, strict=True)]

    def swap_tasks(
        self,
        index: int,
        wishes: Sequence[str],
        tools: Sequence[str] = TOOL_NAMES,
        reprice: Callable[[PriceOffers], PriceOffers] = dict,
    ) -> list[Task]:
        """Return held-out question `index` with all of `tools` on the menu, once under each kind of preference.

        Args:
            reprice: makes other prices of those that were drawn.
        """
        rng = np.random.default_rng([self.seed, 3, index])
        family = FAMILIES[int(rng.choice(len(FAMILIES), p=FAMILY_SHARES))]
        question = self.question(family, "eval", rng)
        kinds, offers = [kind for kind, _ in question.steps], reprice(draw_offers("eval", rng))
        # Drawn whole: the same offers and wordings, whatever is left out.
        whole = self.menu(kinds, offers, rng, full=True)
        menu = tuple(spec for spec in whole if spec.name in tools)
        return [
            self.pose(f"swap-{index}-{wish}", question, menu, draw_preference(wish, "eval", kinds, menu, rng))
            for wish in wishes
        ]

    @staticmethod
    def pose(task_id: str, question: QuickstartQuestion, menu: tuple[ToolSpec, ...], preference: Preference) -> Task:
        """Return the task of a question under a menu and a preference."""
        extra = {"steps": question.steps, "distractors": question.distractors}
        return Task(task_id, question.text, (question.answer,), menu, preference, question.family, extra)


def _split(
    rng: np.random.Generator, first_names: Sequence[str], last_names: Sequence[str], most: int | None = None
) -> dict[str, list[str]]:
    """Return `most` of all full names in random order, three quarters of them for training."""
    names = [f"{first} {last}" for first in first_names for last in last_names]
    chosen = [names[i] for i in rng.permutation(len(names))[:most]]
    return {"train": chosen[: len(chosen) * 3 // 4], "eval": chosen[len(chosen) * 3 // 4 :]}


def _sentences(facts: Mapping[tuple[str, str], str]) -> list[str]:
    forms = {attribute: sentence for attribute, (_, _, sentence) in ATTRIBUTES.items()} | {"boss": BOSS}
    return [forms[attribute].format(name=name, value=value) for (name, attribute), value in facts.items()]
