"""What models answered to questions once: questions, their recorded answers, and the split by question."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from orchestra_jax.money.prices import PriceList
from orchestra_jax.tools.answers import extract_answer, matches, parse_number

CHARS_PER_TOKEN = 3.6  # where a table has no tokens; the convention of the recorded ZeroEval answers
SPLITS = ("train", "validation", "test")
_FIELD = re.compile(r'"answer"\s*:\s*')
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_QUOTES = ("'", '"')
_LITERAL = (*_QUOTES, "[", "(", "{")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that models were asked.

    Attributes:
        id: unique within the table.
        family: kind of question, for evidence and reports; may be "".
        answer: the reference; empty: right is what a model recorded as correct said.
        prompt_tokens: of the whole prompt that the models got.
    """

    id: str
    family: str
    question: str
    answer: tuple[str, ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Record:
    """What one model answered to one question.

    Attributes:
        output: the model's text.
        correct: whether it was found right.
        prompt_tokens, completion_tokens: of the call.
        cost_usd: what it cost, for models that no price list has; None: unknown.
        seconds: what it took; None: unknown, the stated tokens a second tell.
    """

    output: str
    correct: bool
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None = None
    seconds: float | None = None

    @property
    def answer(self) -> str:
        """The answer within the output; "" where none can be read."""
        return read_answer(self.output)


@dataclass(frozen=True)
class Recording:
    """A table of recorded answers.

    Attributes:
        questions: by id.
        records: by model, then by question; a model need not have answered every question.
    """

    questions: Mapping[str, Asked]
    records: Mapping[str, Mapping[str, Record]]

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.records)

    def of(self, ids: Iterable[str], models: Iterable[str] | None = None) -> "Recording":
        """The same table with these questions and models alone: nothing of the others can be read from it."""
        questions = {name: self.questions[name] for name in ids}
        kept = self.records if models is None else {model: self.records[model] for model in models}
        records = {
            model: {name: row for name in questions if (row := rows.get(name)) is not None}
            for model, rows in kept.items()
        }
        return Recording(questions, records)

    def split(self, seed: int, shares: Sequence[float] = (0.6, 0.2, 0.2)) -> dict[str, tuple[str, ...]]:
        """Ids of SPLITS, drawn within each family, so that every split has its share of each."""
        families: dict[str, list[str]] = {}
        for name in sorted(self.questions):
            families.setdefault(self.questions[name].family, []).append(name)
        found: dict[str, list[str]] = {name: [] for name in SPLITS}
        rng = np.random.default_rng(seed)
        for _, names in sorted(families.items()):
            order = [names[k] for k in rng.permutation(len(names))]
            first, second = (round(len(order) * part) for part in (shares[0], shares[0] + shares[1]))
            for split, part in zip(SPLITS, (order[:first], order[first:second], order[second:]), strict=True):
                found[split] += part
        return {split: tuple(names) for split, names in found.items()}

    @cached_property
    def correct(self) -> Bool[np.ndarray, "Q M"]:
        """Whether each model was right; what was not recorded is wrong."""
        return np.array(
            [[name in rows and rows[name].correct for rows in self.records.values()] for name in self.questions]
        )

    def cost(self, prices: PriceList) -> Float[np.ndarray, "Q M"]:
        """Dollars of each call; infinite where none was recorded.

        Raises:
            MissingPrice: neither the list nor the record has a price.
        """
        return np.array(
            [
                [dollars(model, rows[name], prices) if name in rows else np.inf for model, rows in self.records.items()]
                for name in self.questions
            ]
        )


def dollars(model: str, record: Record, prices: PriceList) -> float:
    """What the call costs by the list, else what it cost when it was recorded."""
    if model not in prices.entries and record.cost_usd is not None:
        return record.cost_usd
    return prices.cost(model, prompt_tokens=record.prompt_tokens, completion_tokens=record.completion_tokens)


def has_answer(output: str) -> bool:
    """Whether an output has the "answer" of the JSON that a model was asked for."""
    return _FIELD.search(output) is not None


def read_answer(output: str) -> str:
    """The last "answer" of the JSON that a model was asked for, broken JSON too; else what `extract_answer` finds."""
    found = list(_FIELD.finditer(output))
    if not found:
        return extract_answer(output)
    rest = output[found[-1].end() :].strip()
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(rest)
    except ValueError:
        return rest.partition("\n")[0].strip().rstrip("}").strip().rstrip(",").strip('"` ')
    except RecursionError:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def same_answer(answer: str, references: Sequence[str]) -> bool:
    """Whether an answer is right, by the rule that the recorded correctness was computed with.

    Where the reference is a Python literal in quotes or brackets, every character counts, but not the quotes. Where it
    is a number, the first number of the answer counts ("10 hours").
    """
    first = _NUMBER.search(answer)
    value = parse_number(first[0]) if first else None
    for reference in references:
        if reference[:1] in _LITERAL:
            wanted = unquoted(reference)
            if any(text == wanted or repr(text)[1:-1] == wanted for text in (answer, unquoted(answer))):
                return True
        elif matches(answer, [reference]) or (value is not None and value == parse_number(reference)):
            return True
    return False


def unquoted(text: str) -> str:
    """The text without blanks and one pair of quotes around it."""
    core = text.strip()
    return core[1:-1] if len(core) > 1 and core[0] == core[-1] and core[0] in _QUOTES else core


def tokens(characters: float) -> int:
    """Tokens of a text of so many characters."""
    return max(1, round(characters / CHARS_PER_TOKEN))
