"""Read a user's question as one of the quickstart world's own, with its steps and its answer.

The simulated experts answer only such questions: sums with results below 100, facts about the world's people and their
bosses, and who is older. The policy knows no other words.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from orchestra_jax.envs.quickstart.facts import ATTRIBUTES, FIRST_NAMES
from orchestra_jax.envs.quickstart.questions import RESULTS, QuickstartQuestion, near
from orchestra_jax.envs.quickstart.world import QuickstartWorld, draw_offers
from orchestra_jax.types import Preference, Task

WISHES = {
    "best": "Be right.",
    "cheap": "Keep the cost low.",
    "fast": "Be fast.",
    "local": "Keep my data here.",
}
_EXAMPLES = "'What is 7 * 8 + 3?' or 'Anna is older than Boris. Who is younger?'"


def posed(world: QuickstartWorld, tools: Sequence[str], question: str, wish: str | None) -> Task:
    """Return the task of a user's question, with all of `tools` at prices of the held-out tasks.

    Args:
        wish: what the user says beside the question; None: that it be right.

    Raises:
        ValueError: the world has no such question.
    """
    asked = _read(world, " ".join(question.split()))
    rng = np.random.default_rng([world.seed, 4])
    whole = world.menu(["compare"], draw_offers("eval", rng), rng, full=True)  # the same for every question
    menu = tuple(spec for spec in whole if spec.name in tools)
    words = WISHES["best"] if wish is None else _sentence(wish)
    return world.pose(f"asked-{asked.text}", asked, menu, Preference("asked", words))


def _sentence(wish: str) -> str:
    """Return a wish as the world's users write theirs."""
    text = " ".join(wish.split()).rstrip(".")
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _read(world: QuickstartWorld, text: str) -> QuickstartQuestion:
    """Return the question of the world that a text is, with its answer."""
    found = next(_readings(world, text), None)
    if found is None:
        people = world.people["eval"][0]
        raise ValueError(
            f"The quickstart's world knows no such question: ask one of its own, such as 'Where was {people} born?', "
            f"{_EXAMPLES}. Its sums have results from 0 to {RESULTS[-1]}. For any question train on env=qa, "
            "or your own logs (docs/serve.md)."
        )
    return found


def _readings(world: QuickstartWorld, text: str) -> Iterator[QuickstartQuestion]:
    yield from _sums(text)
    for name, attribute, about_boss in _facts(text):
        if (name, attribute) in world.facts and not about_boss:
            yield world.lookup(name, attribute)
        elif about_boss and (name, "boss") in world.facts:
            yield from filter(None, [world.hops(name, attribute)])
    for form in (r"How old are (.+) and (.+) together\?", r"How much older is (.+) than (.+)\?"):
        found = re.fullmatch(form, text)
        if found and {(found[1], "age"), (found[2], "age")} <= world.facts.keys():
            yield from filter(None, [world.ages(found[1], found[2], together="together" in form)])
    if found := re.fullmatch(r"(\w+) is older than (\w+)\. Who is (older|younger)\?", text):
        older, younger, wanted = found.groups()
        if {older, younger} <= set(FIRST_NAMES) and older != younger:
            answer, wrong_one = (older, younger) if wanted == "older" else (younger, older)
            yield QuickstartQuestion.simple("compare", text, answer, f"{older} {younger} older", (wrong_one,))


def _facts(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the person and the attribute that a text may ask about, and whether it is about that person's boss."""
    forms = {attribute: form for attribute, (_, form, _) in ATTRIBUTES.items()} | {"boss": "Who is the boss of {name}?"}
    for attribute, form in forms.items():
        before, after = form.split("{name}")
        name = text.removeprefix(before).removesuffix(after)
        if text == form.format(name=name):
            person = name.removeprefix("the boss of ")
            yield person, attribute, person != name


def _sums(text: str) -> Iterator[QuickstartQuestion]:
    number = r"(\d{1,2})"
    for form in (rf"{number} \* {number}(?: ([+-]) {number})?", rf"{number} (\+) {number} \* {number}"):
        if found := re.fullmatch(rf"What is ({form})\?", text):
            first, *rest = found.groups()[1:]
            if rest[0] == "+":
                value = int(first) + int(rest[1]) * int(rest[2])
            else:
                value = int(first) * int(rest[0]) + int(f"{rest[1] or '+'}{rest[2] or 0}")
            if value in RESULTS:
                yield QuickstartQuestion.simple("arith", text, str(value), found[1], near(value, (10, -10, 2, -1)))
