"""The quickstart world: generated facts, question families, tools, price lists and preferences, all from one seed.

Four families of plain-English questions, each with a different right tool:

======== ========================================= =============================================================
family   example                                   tools that can answer it
======== ========================================= =============================================================
arith    What is 37 * 4 + 9?                       the Python sandbox
lookup   Where was Alice Moreno born?              local search (free, slow, partly out of date), web search
easy     Boris is older than Anna. Who is younger? experts: small .80, medium .90, large .98
hard     Which digit ends 7 to the power 45?       the large expert
======== ========================================= =============================================================

Questions, people, price lists and preference wordings of the evaluation split never occur in training.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from orchestra_jax.envs.quickstart.facts import (
    ATTRIBUTES,
    CATALOGUE,
    FAMILIES,
    FIRST_NAMES,
    LAST_NAMES,
    OFFERS,
    STALE,
    TOOL_NAMES,
    pick,
    success_probability,
)
from orchestra_jax.envs.quickstart.preferences import PREFERENCE_SHARES, draw_preference
from orchestra_jax.envs.quickstart.questions import GENERATORS, QuickstartQuestion, is_held_out
from orchestra_jax.types import Preference, Task, ToolSpec

# Share of menus that offer every tool able to answer.
CHOICE_SHARE = 0.8
FAMILY_SHARES = (0.26, 0.32, 0.22, 0.20)
# The same for policy steps: in lookup and easy questions the right tool depends on the preference, which takes longest
# to learn.
TRAINING_SHARES = (0.14, 0.34, 0.38, 0.14)

PriceOffers = tuple[tuple[int, int], ...]  # cents and seconds of a call of each of TOOL_NAMES


class QuickstartWorld:
    """All that the seed fixes: people and facts, the corpora (the local one is partly out of date), price lists."""

    def __init__(self, seed: int = 0, people: int = 1600, price_lists: int = 64) -> None:
        self.seed = seed
        rng = np.random.default_rng([seed, 0])
        names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
        chosen = [names[i] for i in rng.permutation(len(names))[:people]]
        self.people = {"train": chosen[: people * 3 // 4], "eval": chosen[people * 3 // 4 :]}
        self.facts = {
            (name, attribute): pick(values, rng) for name in chosen for attribute, (values, _, _) in ATTRIBUTES.items()
        }
        self.stale = {key for key in self.facts if rng.random() < STALE}
        self.local_facts = {
            (name, attribute): pick([v for v in ATTRIBUTES[attribute][0] if v != value], rng)
            if (name, attribute) in self.stale
            else value
            for (name, attribute), value in self.facts.items()
        }
        self.local_corpus, self.web_corpus = _sentences(self.local_facts), _sentences(self.facts)
        lists: dict[PriceOffers, None] = {}
        while len(lists) < price_lists:
            drawn = tuple(
                (int(rng.integers(low, high + 1)), int(rng.integers(fast, slow + 1)))
                for (low, high), (fast, slow) in OFFERS.values()
            )
            lists[drawn] = None
        known = price_lists * 3 // 4
        self.price_lists = {"train": list(lists)[:known], "eval": list(lists)[known:]}

    def question(self, family: str, split: str, rng: np.random.Generator) -> QuickstartQuestion:
        """Draw a question of the family; no question, whatever the order of its parts, is in both splits."""
        if family == "lookup":
            return self._lookup(split, rng)
        while True:
            question, facts = GENERATORS[family](rng)
            if is_held_out(*facts) == (split == "eval"):
                return question

    def _lookup(self, split: str, rng: np.random.Generator) -> QuickstartQuestion:
        name = pick(self.people[split], rng)
        attribute = pick(list(ATTRIBUTES), rng)
        values, question, _ = ATTRIBUTES[attribute]
        truth = self.facts[name, attribute]
        wrong = tuple(v for v in rng.permutation(values)[:6].tolist() if v != truth)
        return QuickstartQuestion("lookup", question.format(name=name), truth, f"{name} {attribute}", wrong)

    def menu(
        self,
        family: str,
        price_lists: Sequence[PriceOffers],
        rng: np.random.Generator,
        tools: Sequence[str] = TOOL_NAMES,
        *,
        full: bool = False,
    ) -> tuple[ToolSpec, ...]:
        """Draw a subset of `tools` that can still answer the question, or all of them, and one of the price lists."""
        able = [name for name in tools if success_probability(name, family) >= 0.5]
        # Mostly all the tools that can do it, so that there is something to choose; sometimes just one of them.
        needed = able if rng.random() < CHOICE_SHARE else [pick(able, rng)]
        rest = [name for name in tools if name not in able]
        extra = rng.permutation(rest)[: int(rng.integers(1, len(rest) + 1))].tolist()
        offered = set(tools) if full else {*needed, *extra}
        menu = [
            replace(CATALOGUE[name], price_usd=cents / 100, latency_s=float(seconds))
            for name, (cents, seconds) in zip(TOOL_NAMES, price_lists[int(rng.integers(len(price_lists)))], strict=True)
            if name in offered
        ]
        return tuple(menu[i] for i in rng.permutation(len(menu)))

    def task(self, split: str, index: int, tools: Sequence[str] = TOOL_NAMES) -> Task:
        """Return instance `index` of the split: question, menu and preference drawn from (seed, split, index)."""
        return self.paired_tasks(split, index, 1, tools=tools)[0]

    def paired_tasks(
        self,
        split: str,
        index: int,
        count: int,
        shares: Sequence[float] = FAMILY_SHARES,
        tools: Sequence[str] = TOOL_NAMES,
    ) -> list[Task]:
        """Return instance `index` under `count` different preferences; families are drawn by `shares`.

        Preferences that call for different tools come first: in one step the policy sees the same question and menu
        with different right choices, so that learning the family does not drown learning the preference.
        """
        rng = np.random.default_rng([self.seed, 1 + ("train", "eval").index(split), index])
        family = FAMILIES[int(rng.choice(4, p=shares))]
        question = self.question(family, split, rng)
        menu = self.menu(family, self.price_lists[split], rng, tools)
        kinds = rng.choice(
            list(PREFERENCE_SHARES), len(PREFERENCE_SHARES), replace=False, p=list(PREFERENCE_SHARES.values())
        ).tolist()
        names = [f"{split}-{index}" + (f"-{n}" if n else "") for n in range(len(kinds))]
        tasks = [
            self.pose(name, question, menu, draw_preference(kind, split, family, menu, rng))
            for name, kind in zip(names, kinds, strict=True)
        ]
        # As a group of rollouts sees it that has learned who can answer: Eq. 2 normalises over those tools only.
        able = [spec for spec in menu if success_probability(spec.name, family) >= 0.5]
        best = [best_tool(task, able) for task in tasks]
        first = {tool: best.index(tool) for tool in best}
        order = sorted(range(len(tasks)), key=lambda n: first[best[n]] != n)
        return [tasks[n] for n in order[:count]]

    def swap_tasks(
        self,
        index: int,
        kinds: Sequence[str],
        tools: Sequence[str] = TOOL_NAMES,
        price_lists: Sequence[PriceOffers] = (),
    ) -> list[Task]:
        """Return held-out question `index` with all of `tools` on the menu, once under each kind of preference."""
        rng = np.random.default_rng([self.seed, 3, index])
        family = FAMILIES[int(rng.choice(4, p=FAMILY_SHARES))]
        question = self.question(family, "eval", rng)
        # Drawn whole: the same offers and wordings, whatever is left out.
        whole = self.menu(family, price_lists or self.price_lists["eval"], rng, full=True)
        menu = tuple(spec for spec in whole if spec.name in tools)
        return [
            self.pose(f"swap-{index}-{kind}", question, menu, draw_preference(kind, "eval", family, menu, rng))
            for kind in kinds
        ]

    @staticmethod
    def pose(task_id: str, question: QuickstartQuestion, menu: tuple[ToolSpec, ...], preference: Preference) -> Task:
        """Return the task of a question under a menu and a preference."""
        extra = {"keywords": question.keywords, "distractors": question.distractors}
        return Task(task_id, question.text, (question.answer,), menu, preference, question.family, extra)


def _sentences(facts: Mapping[tuple[str, str], str]) -> list[str]:
    return [ATTRIBUTES[attribute][2].format(name=name, value=value) for (name, attribute), value in facts.items()]


def expected_utility(task: Task, tools: Sequence[ToolSpec] = ()) -> dict[str, float]:
    """Return the worth of one call of each tool to the user, given the family and every skill, price and latency.

    Success probability times P . features, with cost and latency min-max normalised over `tools` (Eq. 2 with one run
    of each as the group), by default the whole menu.
    """
    preference, tools = task.preference, tools or task.tools

    def saving(value: Callable[[ToolSpec], float]) -> Mapping[str, float]:
        values = {spec.name: value(spec) for spec in tools}
        low, high = min(values.values()), max(values.values())
        return {name: (high - v) / (high - low) if high > low else 0.0 for name, v in values.items()}

    cheap, fast = saving(lambda spec: spec.price_usd or 0.0), saving(lambda spec: spec.latency_s or 0.0)

    def expected(spec: ToolSpec) -> float:
        utility = preference.outcome + preference.compute * cheap[spec.name] + preference.latency * fast[spec.name]
        return success_probability(spec.name, task.family) * (utility + preference.tools.get(spec.name, 0.0))

    return {spec.name: expected(spec) for spec in tools}


def best_tool(task: Task, tools: Sequence[ToolSpec] = ()) -> str:
    """Return the tool with the highest expected utility for the user."""
    expected = expected_utility(task, tools)
    return max(expected, key=expected.__getitem__)
