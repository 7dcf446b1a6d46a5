"""Questions that a user asks in the quickstart's world, read back into what the world knows of them.

The simulated experts answer only what they were made for: sums, facts about the world's people, who is older, days of
the week, and three kinds of hard counting. The policy has a word for each of them and for nothing else.
"""

import re
from collections.abc import Iterator, Sequence
from math import perm

import numpy as np

from orchestra_jax.envs.quickstart.facts import ATTRIBUTES, DAYS, FIRST_NAMES
from orchestra_jax.envs.quickstart.questions import QuickstartQuestion
from orchestra_jax.envs.quickstart.world import QuickstartWorld
from orchestra_jax.types import Preference, Task

WISHES = {
    "best": "Be right.",
    "cheap": "Keep the cost low.",
    "fast": "Be fast.",
    "local": "Keep my data here.",
}
_EXAMPLES = "'What is 7 * 8 + 3?', 'Anna is older than Boris. Who is younger?' or 'Which digit ends 7 to the power 45?'"
_ROW = r"In how many ways can (\d+) people take the two end seats of row (\d+)\?"
_SIDES = r"How many diagonals does a polygon with (\d+) sides of length (\d+) have\?"


def posed(world: QuickstartWorld, tools: Sequence[str], question: str, wish: str | None) -> Task:
    """Return the task of a user's question, with all of `tools` at prices of the held-out tasks.

    Args:
        wish: what the user says beside the question; None: that it be right.

    Raises:
        ValueError: the world has no such question.
    """
    asked = _read(world, " ".join(question.split()))
    rng = np.random.default_rng([world.seed, 4])
    whole = world.menu("easy", world.price_lists["eval"][:1], rng, full=True)  # the same for every question
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
            f"{_EXAMPLES}. For any question train on env=qa, or your own logs (docs/serve.md)."
        )
    return found


def _readings(world: QuickstartWorld, text: str) -> Iterator[QuickstartQuestion]:
    yield from _sums(text)
    for attribute, (values, form, _) in ATTRIBUTES.items():
        before, after = form.split("{name}")
        name = text.removeprefix(before).removesuffix(after)
        if text == form.format(name=name) and (truth := world.facts.get((name, attribute))):
            wrong = tuple(value for value in values if value != truth)[:5]
            yield QuickstartQuestion("lookup", text, truth, f"{name} {attribute}", wrong)
    if found := re.fullmatch(r"(\w+) is older than (\w+)\. Who is (older|younger)\?", text):
        older, younger, wanted = found.groups()
        if {older, younger} <= set(FIRST_NAMES) and older != younger:
            answer, wrong_one = (older, younger) if wanted == "older" else (younger, older)
            yield QuickstartQuestion("easy", text, answer, f"{older} {younger} older", (wrong_one,))
    if (found := re.fullmatch(r"Which day comes (\d{1,2}) days after (\w+)\?", text)) and found[2] in DAYS:
        answer = DAYS[(DAYS.index(found[2]) + int(found[1])) % 7]
        others = tuple(day for day in DAYS if day != answer)
        yield QuickstartQuestion("easy", text, answer, f"{found[2]} {found[1]} days", others)
    yield from _hard(text)


def _sums(text: str) -> Iterator[QuickstartQuestion]:
    number = r"(\d{1,2})"
    for form in (rf"{number} \* {number}(?: ([+-]) {number})?", rf"{number} (\+) {number} \* {number}"):
        if found := re.fullmatch(rf"What is ({form})\?", text):
            first, *rest = found.groups()[1:]
            if rest[0] == "+":
                value = int(first) + int(rest[1]) * int(rest[2])
            else:
                value = int(first) * int(rest[0]) + int(f"{rest[1] or '+'}{rest[2] or 0}")
            yield QuickstartQuestion("arith", text, str(value), found[1], _near(value, (10, -10, 2, -1)))


def _hard(text: str) -> Iterator[QuickstartQuestion]:
    if found := re.fullmatch(_ROW, text):
        keywords, value = f"{found[1]} people row {found[2]}", perm(int(found[1]), 2)
    elif found := re.fullmatch(_SIDES, text):
        sides = int(found[1])
        keywords, value = f"{found[1]} sides length {found[2]}", sides * (sides - 3) // 2
    elif found := re.fullmatch(r"Which digit ends (\d) to the power (\d{1,2})\?", text):
        keywords, value = f"{found[1]} power {found[2]}", pow(int(found[1]), int(found[2]), 10)
    else:
        return
    yield QuickstartQuestion("hard", text, str(value), keywords, _near(value, (1, -1, 3, -2)))


def _near(value: int, differences: Sequence[int]) -> tuple[str, ...]:
    return tuple(str(abs(value + each)) for each in differences if abs(value + each) != value)
