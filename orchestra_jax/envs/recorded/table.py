"""Recorded answers: questions, what models answered, the split by question, and the evidence that a menu may show.

The evidence on a model is measured on the training split alone: everything that makes it takes a `Recording` that holds
no other question, so that no number of the other splits can be in what a menu says.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

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
_TOKEN = "token"  # the use in a price list's latencies that gives seconds per output token
_MOST_KINDS = 6
_SECONDS_PER_TOKEN = 1 / 60  # of a model without one


@dataclass(frozen=True, slots=True)
class RecordedQuestion:
    """A question that models were asked.

    Attributes:
        id: unique within the table.
        family: kind of question, for evidence and reports; may be "".
        answer: reference answers; empty: what a model recorded as correct said is right.
        prompt_tokens: tokens of the whole prompt that the models got.
    """

    id: str
    family: str
    question: str
    answer: tuple[str, ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """The answer of one model to one question.

    Attributes:
        output: text of the model.
        correct: whether it was found right.
        prompt_tokens, completion_tokens: tokens of the call.
        cost_usd: dollars of the call, for models that no price list has; None: unknown.
        seconds: duration of the call; None: unknown, the list's seconds per token tell it.
    """

    output: str
    correct: bool
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None = None
    seconds: float | None = None

    @property
    def answer(self) -> str:
        """The answer within the output; "" if none can be read."""
        return read_answer(self.output)


@dataclass(frozen=True)
class Recording:
    """A table of recorded answers.

    Attributes:
        questions: by id.
        records: by model, then by question; a model need not have answered every question.
    """

    questions: Mapping[str, RecordedQuestion]
    records: Mapping[str, Mapping[str, RecordedAnswer]]

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(self.records)

    def of(self, ids: Iterable[str], models: Iterable[str] | None = None) -> "Recording":
        """Return the table of these questions and models alone: nothing of the others can be read from it."""
        questions = {name: self.questions[name] for name in ids}
        kept = self.records if models is None else {model: self.records[model] for model in models}
        records = {
            model: {name: row for name in questions if (row := rows.get(name)) is not None}
            for model, rows in kept.items()
        }
        return Recording(questions, records)

    def split(self, seed: int, shares: Sequence[float] = (0.6, 0.2, 0.2)) -> dict[str, tuple[str, ...]]:
        """Return the ids of each of SPLITS, drawn within each family, so that every split has its share of each."""
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
        """Table of right answers; an answer that was not recorded is wrong."""
        return np.array(
            [[name in rows and rows[name].correct for rows in self.records.values()] for name in self.questions]
        )

    def cost(self, prices: PriceList) -> Float[np.ndarray, "Q M"]:
        """Return the dollars of each call; infinite where none was recorded.

        Raises:
            MissingPrice: neither the list nor the record has a price.
        """
        return np.array(
            [
                [dollars(model, rows[name], prices) if name in rows else np.inf for model, rows in self.records.items()]
                for name in self.questions
            ]
        )


def dollars(model: str, record: RecordedAnswer, prices: PriceList) -> float:
    """Return the dollars of a call by the list, else by its record."""
    if model not in prices.entries and record.cost_usd is not None:
        return record.cost_usd
    return prices.cost(model, prompt_tokens=record.prompt_tokens, completion_tokens=record.completion_tokens)


def has_answer(output: str) -> bool:
    """Return whether an output has the "answer" of the JSON that a model was asked for."""
    return _FIELD.search(output) is not None


def read_answer(output: str) -> str:
    """Return the last "answer" of the JSON that a model was asked for, even if broken; else as `extract_answer`."""
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
    """Return whether an answer is right, by the rule that the recorded correctness was computed with.

    If the reference is a Python literal in quotes or brackets, every character counts, but not the quotes. If it is a
    number, the first number of the answer counts ("10 hours").
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
    """Return the text without blanks and one pair of quotes around it."""
    core = text.strip()
    return core[1:-1] if len(core) > 1 and core[0] == core[-1] and core[0] in _QUOTES else core


def tokens(characters: float) -> int:
    """Return the estimated tokens of a text of so many characters."""
    return max(1, round(characters / CHARS_PER_TOKEN))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Means of one model over the questions of the training split.

    Attributes:
        accuracy: share of right answers.
        by_family: share of right answers by kind of question.
        prompt_tokens, completion_tokens: tokens of a call.
        cost_usd: recorded dollars of a call; None: none were recorded.
    """

    accuracy: float
    by_family: Mapping[str, float]
    prompt_tokens: float
    completion_tokens: float
    cost_usd: float | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of questions that a menu tells apart; empty if there is one, or more than it has room for."""
        named = tuple(family for family in self.by_family if family)
        return named if 1 < len(named) <= _MOST_KINDS else ()

    @property
    def description(self) -> str:
        """Text for a menu: percent right by kind, as in "87/96/58"; no name, no price, no seconds."""
        shares = [self.by_family[kind] for kind in self.kinds] or [self.accuracy]
        return "/".join(str(round(100 * share)) for share in shares)


def evidence_of(training: Recording) -> dict[str, Evidence]:
    """Return the evidence by model.

    Args:
        training: the questions of the training split alone, each answered by every model.
    """
    families: dict[str, list[str]] = {}
    for name, asked in sorted(training.questions.items()):
        families.setdefault(asked.family, []).append(name)
    found = {}
    for model, rows in training.records.items():
        costs = [row.cost_usd for row in rows.values() if row.cost_usd is not None]
        found[model] = Evidence(
            fmean(row.correct for row in rows.values()),
            {family: fmean(rows[name].correct for name in names) for family, names in sorted(families.items())},
            fmean(row.prompt_tokens for row in rows.values()),
            fmean(row.completion_tokens for row in rows.values()),
            fmean(costs) if costs else None,
        )
    return found


def call_seconds(model: str, record: RecordedAnswer, prices: PriceList) -> float:
    """Return the seconds of a call: as recorded, else its tokens at the speed that the list states."""
    if record.seconds is not None:
        return record.seconds
    return record.completion_tokens * prices.latencies.get(model, {}).get(_TOKEN, _SECONDS_PER_TOKEN)


def with_latencies(prices: PriceList, training: Recording) -> PriceList:
    """Return the list with the mean seconds of each model's calls on the training split, as its menus show them."""
    found = {
        model: {"answer": fmean(call_seconds(model, row, prices) for row in rows.values())}
        for model, rows in training.records.items()
    }
    return replace(prices, latencies={**prices.latencies, **found})
