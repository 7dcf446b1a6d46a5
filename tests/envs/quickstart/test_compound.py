"""Compound questions: their answers are true by brute force, and no single call gives one."""

import asyncio
import functools
import itertools
import re

import numpy as np
import pytest

from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.quickstart.demonstrations import read_answer
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment
from orchestra_jax.envs.quickstart.facts import ATTRIBUTES, COMPOUND, EXPERTS
from orchestra_jax.envs.quickstart.questions import QuickstartQuestion
from orchestra_jax.envs.quickstart.world import QuickstartWorld, draw_offers
from orchestra_jax.money.budgets import Budget
from orchestra_jax.types import Preference, ToolCall

WORLD = QuickstartWorld(3)
NAME = r"[A-Z]\w+ [A-Z]\w+"


def drawn(family: str, split: str, count: int) -> list[QuickstartQuestion]:
    rng = np.random.default_rng(1)
    return [WORLD.question(family, split, rng) for _ in range(count)]


@functools.cache
def read() -> tuple[dict[tuple[str, ...], str], dict[tuple[str, str], str]]:
    """Read the web corpus sentence by sentence; return who has which boss, and each person's attributes."""
    told = {tuple(re.findall(NAME, sentence)): sentence for sentence in WORLD.web_corpus if "boss" in sentence}
    known = {
        (name, attribute): match[1]
        for sentence in WORLD.web_corpus
        for attribute, (_, _, form) in ATTRIBUTES.items()
        for name in re.findall(NAME, sentence)[:1]
        if (match := re.fullmatch(form.format(name=name, value="(.+)"), sentence))
    }
    return told, known


def brute_force(text: str) -> set[str]:
    """Return every answer that the web corpus gives to the question."""
    found, (told, known) = set(), read()
    names = re.findall(NAME, text)
    if "boss" in text:
        (boss,) = {pair[1] for pair in told if pair[0] == names[0]}
        for attribute, (_, form, _) in ATTRIBUTES.items():
            if form.format(name=f"the boss of {names[0]}") == text:
                found.add(known[boss, attribute])
    else:
        first, second = (int(known[name, "age"]) for name in names)
        found.add(str(first + second if "together" in text else first - second))
    return found


@pytest.mark.parametrize("family", COMPOUND)
def test_the_answer_is_what_the_corpus_says(family: str):
    for question in drawn(family, "eval", 12):
        assert brute_force(question.text) == {question.answer}


@pytest.mark.parametrize(("family", "split"), list(itertools.product(COMPOUND, ("train", "eval"))))
def test_no_single_call_answers(family: str, split: str):
    environment = QuickstartEnvironment(RunConfig())
    environment.world = WORLD
    rng = np.random.default_rng(0)

    async def answers(question: QuickstartQuestion) -> list[str | None]:
        menu = WORLD.menu([kind for kind, _ in question.steps], draw_offers(split, rng), rng, full=True)
        task = WORLD.pose("t", question, menu, Preference("accuracy", ""))
        episode = environment.reset(task, Budget())
        names = dict.fromkeys(re.findall(NAME, " ".join(words for _, words in question.steps)))
        queries = [f"{name} {word}" for name in names for word in (*ATTRIBUTES, "boss", "")]
        queries.append(question.text)
        calls = [ToolCall(tool, {"query": q}) for q in queries for tool in ("local_search", "web_search")]
        calls += [ToolCall(name, {}) for name in EXPERTS]
        calls += [ToolCall("python", {"code": query}) for query in queries]
        return [read_answer(await episode.step(call)) for call in calls]

    for question in drawn(family, split, 25):
        assert question.answer not in asyncio.run(answers(question)), question
    asyncio.run(environment.close())
