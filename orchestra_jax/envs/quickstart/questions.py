"""The arithmetic and the comparisons of the quickstart world; other questions are about its facts."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from orchestra_jax.envs.quickstart.facts import FIRST_NAMES

Step = tuple[str, str]  # its kind, and words for a tool's argument, where {0} stands for the first step's result


@dataclass(frozen=True)
class QuickstartQuestion:
    """A question before it is posed under a menu and a preference.

    Attributes:
        steps: steps to the answer, with the words that a demonstrated call copies. Families whose tools need no words
            have them too: copying is learned from many calls, and those of arithmetic and lookups are too few.
        distractors: plausible wrong answers.
    """

    family: str
    text: str
    answer: str
    steps: tuple[Step, ...]
    distractors: tuple[str, ...]

    @classmethod
    def simple(cls, kind: str, text: str, answer: str, words: str, distractors: tuple[str, ...]) -> Self:
        """Return a question of one step."""
        return cls(kind, text, answer, ((kind, words),), distractors)


def near(value: int, differences: Sequence[int]) -> tuple[str, ...]:
    """Return wrong numbers: those that are off by these differences."""
    return tuple(str(abs(value + each)) for each in differences if abs(value + each) != value)


def is_held_out(*facts: object) -> bool:
    """Return whether a question about these numbers or names, in any order, belongs to the evaluation split."""
    return zlib.crc32(repr(sorted(map(str, facts))).encode()) % 5 == 0


# Of sums. They are one token: what is hard here is the choice of tools, not the copying of digits.
RESULTS = range(100)


def _arithmetic(rng: np.random.Generator) -> tuple[QuickstartQuestion, tuple[object, ...]]:
    form = int(rng.integers(4))  # drawn once: where "-" follows most products, a policy writes it without reading
    while True:
        a, b, c = (int(x) for x in (*rng.integers(2, 33, 2), rng.integers(2, 100)))
        expression, value = [
            (f"{a} * {b}", a * b),
            (f"{a} * {b} + {c}", a * b + c),
            (f"{a} * {b} - {c}", a * b - c),
            (f"{c} + {a} * {b}", c + a * b),
        ][form]
        if value in RESULTS:
            facts = expression.replace("+", " ").replace("-", " ").replace("*", " ").split()
            wrong, text = near(value, (10, -10, 2, -1)), f"What is {expression}?"
            return QuickstartQuestion.simple("arith", text, str(value), expression, wrong), tuple(facts)


def _comparison(rng: np.random.Generator) -> tuple[QuickstartQuestion, tuple[object, ...]]:
    first, second = (str(n) for n in rng.choice(FIRST_NAMES, 2, replace=False))
    elder = bool(rng.random() < 0.5)
    text = f"{first} is older than {second}. Who is {'older' if elder else 'younger'}?"
    answer, wrong = (first, second) if elder else (second, first)
    return QuickstartQuestion.simple("compare", text, answer, f"{first} {second} older", (wrong,)), (first, second)


# Make a question of the family and the numbers or names that it is about.
GENERATORS: Mapping[str, Callable[[np.random.Generator], tuple[QuickstartQuestion, tuple[object, ...]]]] = {
    "arith": _arithmetic,
    "compare": _comparison,
}
