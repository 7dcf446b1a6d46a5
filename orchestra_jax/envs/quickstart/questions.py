"""The arithmetic, easy and hard questions of the quickstart world; lookups are about its facts."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import perm

import numpy as np

from orchestra_jax.envs.quickstart.facts import DAYS, FIRST_NAMES


@dataclass(frozen=True)
class QuickstartQuestion:
    """A question before it is posed under a menu and a preference.

    Attributes:
        keywords: words of the question that make a good query (lookup) or program (arith). In other families no tool
            uses them, but demonstrated calls there teach copying, for which arithmetic alone is too rare.
        distractors: plausible wrong answers.
    """

    family: str
    text: str
    answer: str
    keywords: str
    distractors: tuple[str, ...]


def is_held_out(*facts: object) -> bool:
    """Return whether a question about these numbers or names, in any order, belongs to the evaluation split."""
    return zlib.crc32(repr(sorted(map(str, facts))).encode()) % 5 == 0


def _arithmetic(rng: np.random.Generator) -> tuple[QuickstartQuestion, tuple[object, ...]]:
    while True:
        a, b, c = (int(x) for x in (*rng.integers(2, 33, 2), rng.integers(2, 100)))
        expression, value = [
            (f"{a} * {b}", a * b),
            (f"{a} * {b} + {c}", a * b + c),
            (f"{a} * {b} - {c}", a * b - c),
            (f"{c} + {a} * {b}", c + a * b),
        ][int(rng.integers(4))]
        # Results below 100 are one token: what is hard here is the choice of tools, not the copying of digits.
        if 0 <= value < 100:
            wrong = tuple(str(abs(value + d)) for d in (10, -10, 2, -1) if abs(value + d) != value)
            facts = expression.replace("+", " ").replace("-", " ").replace("*", " ").split()
            return QuickstartQuestion("arith", f"What is {expression}?", str(value), expression, wrong), tuple(facts)


def _easy(rng: np.random.Generator) -> tuple[QuickstartQuestion, tuple[object, ...]]:
    if rng.random() < 0.5:
        first, second = (str(n) for n in rng.choice(FIRST_NAMES, 2, replace=False))
        elder = bool(rng.random() < 0.5)
        text = f"{first} is older than {second}. Who is {'older' if elder else 'younger'}?"
        answer, wrong = (first, second) if elder else (second, first)
        return QuickstartQuestion("easy", text, answer, f"{first} {second} older", (wrong,)), (first, second)
    start, step = int(rng.integers(7)), int(rng.integers(2, 7))
    answer = DAYS[(start + step) % 7]
    text = f"Which day comes {step} days after {DAYS[start]}?"
    others = tuple(day for day in DAYS if day != answer)
    return QuickstartQuestion("easy", text, answer, f"{DAYS[start]} {step} days", others), (DAYS[start], step)


def _hard(rng: np.random.Generator) -> tuple[QuickstartQuestion, tuple[object, ...]]:
    facts: tuple[object, ...]
    kind = int(rng.integers(3))
    if kind == 0:
        people, rows = int(rng.integers(3, 11)), int(rng.integers(2, 40))
        text = f"In how many ways can {people} people take the two end seats of row {rows}?"
        value, keywords, facts = perm(people, 2), f"{people} people row {rows}", (people, rows)
    elif kind == 1:
        sides, length = int(rng.integers(5, 16)), int(rng.integers(2, 40))
        text = f"How many diagonals does a polygon with {sides} sides of length {length} have?"
        value, keywords, facts = sides * (sides - 3) // 2, f"{sides} sides length {length}", (sides, length)
    else:
        base, power = int(rng.integers(2, 10)), int(rng.integers(11, 100))
        text, value = f"Which digit ends {base} to the power {power}?", pow(base, power, 10)
        keywords, facts = f"{base} power {power}", (base, power)
    wrong = tuple(str(abs(value + d)) for d in (1, -1, 3, -2) if abs(value + d) != value)
    return QuickstartQuestion("hard", text, str(value), keywords, wrong), facts


# Make a question of the family and the numbers or names that it is about.
GENERATORS: Mapping[str, Callable[[np.random.Generator], tuple[QuickstartQuestion, tuple[object, ...]]]] = {
    "arith": _arithmetic,
    "easy": _easy,
    "hard": _hard,
}
