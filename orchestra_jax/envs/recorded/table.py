"""Recorded answers: questions, what models answered, the split by question, and the evidence that a menu may show.

The evidence on a model is measured on the training split alone: everything that makes it takes a `Recording` that holds
no other question, so that no number of the other splits can be in what a menu says.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from orchestra_jax.money.prices import PriceList
from orchestra_jax.tools.answers import extract_answer, matches, parse_number

CHARS_PER_TOKEN = 3.6  # where a table has no tokens; the convention of the recorded ZeroEval answers
SPLITS = ("train", "validation", "test")
_FIELD = re.compile(r'"answer"\s*:\s*')
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_QUOTES = ("'", '"')
_LITERAL = (*_QUOTES, "[", "(", "{")
_TOKEN = "token"  # the use in a price list's latencies that gives seconds per output token
_TOLD = {
    "cost_usd": "{} dollars a call", "seconds": "{} seconds", "prompt_tokens": "{} tokens in",
    "completion_tokens": "{} out",
}  # fmt: skip
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


@dataclass(frozen=True, eq=False)
class Recording:
    """A table of recorded answers, column by column: every model has answered every question.

    Attributes:
        questions: by id; the first axis of the columns has their order.
        models: names; the second axis has their order.
        outputs, correct, prompt_tokens, completion_tokens: see `RecordedAnswer`.
        cost_usd, seconds: likewise; nan: unknown.
        notes: lines that tell what was read, what is estimated and what was left out.
    """

    questions: Mapping[str, RecordedQuestion]
    models: tuple[str, ...]
    outputs: Shaped[np.ndarray, "Q M"]
    correct: Bool[np.ndarray, "Q M"]
    prompt_tokens: Int[np.ndarray, "Q M"]
    completion_tokens: Int[np.ndarray, "Q M"]
    cost_usd: Float[np.ndarray, "Q M"]
    seconds: Float[np.ndarray, "Q M"]
    notes: tuple[str, ...] = ()

    @classmethod
    def of_cells(
        cls,
        questions: Sequence[RecordedQuestion],
        models: Sequence[str],
        asked: Int[np.ndarray, " R"],
        by: Int[np.ndarray, " R"],
        cells: Mapping[str, Shaped[np.ndarray, " R"]],
        notes: Sequence[str] = (),
        only: Collection[str] | None = None,
    ) -> "Recording":
        """Make the table of the questions that every model has answered.

        Args:
            asked, by: numbers of the question and the model of each answer, each pair once.
            cells: the columns, with an entry for each answer.
            only: models of the table, where they are among `models`; None: all of these.

        Raises:
            ValueError: no question is answered by every model.
        """
        if only is not None and (others := [model for model in models if model not in only]):
            notes = [*notes, f"  not read: answers of {', '.join(others)[:400]}, which env.options.path does not have"]
            chosen = [k for k, model in enumerate(models) if model in only]
            rows, places = np.isin(by, chosen), np.cumsum(np.isin(np.arange(len(models)), chosen)) - 1
            models, asked, by = [models[k] for k in chosen], asked[rows], places[by[rows]]
            cells = {name: column[rows] for name, column in cells.items()}
        complete = np.bincount(asked, minlength=len(questions)) == len(models)
        if not complete.all():
            counts, lost = np.bincount(by, minlength=len(models)), int((~complete).sum())
            fewest = int(counts.argmin())
            least = f"{models[fewest]!r} has answered {counts[fewest]} of {len(questions)} questions"
            if lost == len(questions):
                why = _why_none(questions, len(asked), f"{len(models)} models; {least}")
                raise ValueError(f"No question of env.options.path is answered by every model: {why}.")
            notes = [*notes, f"  left out: {lost} questions that some model has not answered ({least})"]
            rest = np.bincount(asked[by != fewest], minlength=len(questions)) == len(models) - 1
            if rest.sum() >= 2 * complete.sum():
                kept_without = f"without the rows of {models[fewest]!r} {rest.sum()} would be"
                notes.append(f"  {complete.sum()} questions are kept; {kept_without}")
        kept, place = complete[asked], np.cumsum(complete) - 1
        columns = {}
        for name, column in cells.items():
            columns[name] = np.empty((int(complete.sum()), len(models)), column.dtype)
            columns[name][place[asked[kept]], by[kept]] = column[kept]
        notes = [*notes, _as_read(columns)]
        found = {each.id: each for each, whole in zip(questions, complete, strict=True) if whole}
        return cls(found, tuple(models), notes=tuple(notes), **columns)

    @classmethod
    def of_answers(
        cls,
        questions: Sequence[RecordedQuestion],
        answers: Mapping[str, Mapping[str, RecordedAnswer]],
        notes: Sequence[str] = (),
        only: Collection[str] | None = None,
    ) -> "Recording":
        """Make the table of answers by model, then by question; `only` and ValueError as in `of_cells`."""
        number = {each.id: n for n, each in enumerate(questions)}
        placed = [(number[name], k, row) for k, rows in enumerate(answers.values()) for name, row in rows.items()]
        asked, by, rows = zip(*placed, strict=True)
        kinds = {"prompt_tokens": int, "completion_tokens": int, "cost_usd": float, "seconds": float, "correct": bool}
        cells: dict[str, np.ndarray] = {
            name: np.array([getattr(row, name) for row in rows], kind) for name, kind in kinds.items()
        }
        cells["outputs"] = np.array([row.output for row in rows], object)
        return cls.of_cells(questions, tuple(answers), np.array(asked), np.array(by), cells, notes, only)

    @cached_property
    def _rows(self) -> Mapping[str, int]:
        return {name: row for row, name in enumerate(self.questions)}

    def answer(self, model: str, question: str) -> RecordedAnswer:
        """Return the answer of a model to the question of an id."""
        cell = self._rows[question], self.models.index(model)
        cost, seconds = float(self.cost_usd[cell]), float(self.seconds[cell])
        return RecordedAnswer(
            str(self.outputs[cell]),
            bool(self.correct[cell]),
            int(self.prompt_tokens[cell]),
            int(self.completion_tokens[cell]),
            None if math.isnan(cost) else cost,
            None if math.isnan(seconds) else seconds,
        )

    def of(self, ids: Iterable[str]) -> "Recording":
        """Return the table of these questions alone: nothing of the others can be read from it."""
        questions = {name: self.questions[name] for name in ids}
        rows = np.array([self._rows[name] for name in questions], int)
        return replace(self, questions=questions, **{name: getattr(self, name)[rows] for name in COLUMNS_OF_ANSWERS})

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

    def cost(self, prices: PriceList) -> Float[np.ndarray, "Q M"]:
        """Return the dollars of each call.

        Raises:
            MissingPrice: neither the list nor the record has a price.
        """
        return np.array(
            [[dollars(model, self.answer(model, name), prices) for model in self.models] for name in self.questions]
        )


def digits(number: float) -> str:
    """Return a number with three digits, and no exponent."""
    return np.format_float_positional(number, 3, fractional=False, trim="-")


def _why_none(questions: Sequence[RecordedQuestion], rows: int, fewest: str) -> str:
    """Return why no question has an answer of every model, and the fix."""
    texts = len({plain(each.question) for each in questions})
    if len(questions) == texts:
        return f"leave some models out ({fewest})"
    if rows == len(questions):
        return (
            f"each id has one answer alone, as ids of calls have, while {rows} rows ask {texts} questions; leave out "
            "the column of ids, and a question is its own"
        )
    return (
        f"{texts} questions are written in {len(questions)} ways, by blanks, capitals or their ids; write each in the "
        "same way in all rows"
    )


def _as_read(columns: Mapping[str, Shaped[np.ndarray, "Q M"]]) -> str:
    """Return a line by which a reader sees cents that were taken as dollars, or milliseconds as seconds."""
    said = [f"{int(columns['correct'].sum())} of {columns['correct'].size} answers right"]
    for name, called in _TOLD.items():
        if not np.isnan(known := columns[name].astype(float)).all():
            least, most = digits(np.nanmin(known)), digits(np.nanmax(known))
            said.append(called.format(least if least == most else f"{least} to {most}"))
    return f"  as read: {'; '.join(said)}"


COLUMNS_OF_ANSWERS = ("outputs", "correct", "prompt_tokens", "completion_tokens", "cost_usd", "seconds")


def dollars(model: str, record: RecordedAnswer, prices: PriceList) -> float:
    """Return the dollars of a call by the list, else by its record."""
    if model not in prices.entries and record.cost_usd is not None:
        return record.cost_usd
    return prices.cost(model, prompt_tokens=record.prompt_tokens, completion_tokens=record.completion_tokens)


def plain(question: str) -> str:
    """Return the text of a question without what two copies of it may differ by."""
    return " ".join(question.split()).casefold()


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

    def share(self, family: str) -> float:
        """Return the share of right answers for a kind of question; for one that training does not have, of all."""
        return self.by_family.get(family, self.accuracy)

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
    families: dict[str, list[int]] = {}
    for row, (_, asked) in sorted(enumerate(training.questions.items()), key=lambda pair: pair[1][0]):
        families.setdefault(asked.family, []).append(row)
    found = {}
    for column, model in enumerate(training.models):
        right, costs = training.correct[:, column], training.cost_usd[:, column]
        known = costs[~np.isnan(costs)]
        found[model] = Evidence(
            fmean(right.tolist()),
            {family: fmean(right[rows].tolist()) for family, rows in sorted(families.items())},
            fmean(training.prompt_tokens[:, column].tolist()),
            fmean(training.completion_tokens[:, column].tolist()),
            fmean(known.tolist()) if len(known) else None,
        )
    return found


def seconds_per_token(model: str, prices: PriceList) -> float:
    """Return the seconds per output token that the list states for a model."""
    return prices.latencies.get(model, {}).get(_TOKEN, _SECONDS_PER_TOKEN)


def call_seconds(model: str, record: RecordedAnswer, prices: PriceList) -> float:
    """Return the seconds of a call: as recorded, else its tokens at the speed that the list states."""
    return record.completion_tokens * seconds_per_token(model, prices) if record.seconds is None else record.seconds


def with_latencies(prices: PriceList, training: Recording) -> PriceList:
    """Return the list with the mean seconds of each model's calls on the training split, as its menus show them."""
    found = {}
    for column, model in enumerate(training.models):
        known, counts = training.seconds[:, column], training.completion_tokens[:, column]
        taken = np.where(np.isnan(known), counts * seconds_per_token(model, prices), known)
        found[model] = {**prices.latencies.get(model, {}), "answer": fmean(taken.tolist())}
    return replace(prices, latencies={**prices.latencies, **found})
