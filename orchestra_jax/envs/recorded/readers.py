"""Readers of recorded answers: the ZeroEval folder, long tables, RouterBench's wide ones, our own records of calls.

A long table (.csv, .tsv, .json, .jsonl, .parquet) has a row for each question and model, with the columns `question`,
`model`, `output` and `correct`, and where they are known `id`, `family`, `answer`, `prompt_tokens`, `tokens`, `cost`
(dollars) and `latency` (seconds); COLUMNS has the other names that are understood. A wide table has a row for each
question: MODEL holds whether it was right, MODEL|model_response the output and MODEL|total_cost the dollars.
"""

import csv
import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra_jax.data.rows import BadRow, rows_of, text_of
from orchestra_jax.data.sources import load_tasks
from orchestra_jax.envs.recorded.table import (
    RecordedAnswer,
    RecordedQuestion,
    Recording,
    read_answer,
    same_answer,
    tokens,
)
from orchestra_jax.money.records import calls_of

# Names that a column of a long table may have.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "prompt", "input"),
    "model": ("model", "model_name"),
    "output": ("output", "response", "model_response", "model_answer"),
    "correct": ("correct", "score", "is_correct"),
    "id": ("id", "question_id", "sample_id"),
    "family": ("family", "set", "eval_name", "task"),
    "answer": ("answer", "reference", "reference_answer"),
    "prompt_tokens": ("prompt_tokens", "input_tokens"),
    "tokens": ("tokens", "completion_tokens", "output_tokens"),
    "cost": ("cost", "cost_usd", "total_cost"),
    "latency": ("latency", "latency_s", "seconds"),
}
_RESPONSE, _COST = "|model_response", "|total_cost"
_TRUE, _FALSE = ("true", "yes"), ("false", "no")
_DATABASES = (".db", ".sqlite")

Row = Mapping[str, Any]


def read_recording(path: str | Path, references: str | Path | None = None) -> Recording:
    """Read the table at `path`.

    Args:
        references: file of questions with answers; our own record of calls needs it, to know what was right.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: a parquet file without pyarrow.
        ValueError: it is no table, or a row of it is broken; one sentence with file and line.
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"No recorded answers at {str(file)!r}.")
    if file.is_dir():
        return _zeroeval(file)
    if file.suffix in _DATABASES:
        return _record_of_calls(file, references)
    rows = _placed(file)
    if not rows:
        raise ValueError(f"{str(file)!r} has no rows.")
    return _wide(rows) if any(column.endswith(_RESPONSE) for column in rows[0][1]) else _long(rows)


def _zeroeval(folder: Path) -> Recording:
    """Read the folder of questions.jsonl and outputs/MODEL.jsonl.gz."""
    if not (folder / "questions.jsonl").is_file():
        raise FileNotFoundError(f"{str(folder)!r} has no questions.jsonl: it holds no recorded answers.")
    questions = dict[str, RecordedQuestion]()
    for place, row in _placed(folder / "questions.jsonl"):
        name, characters = _text(row, "id", place), _number(row, ("prompt_chars",), place)
        asked = _text(row, "question", place)
        count = tokens(len(asked) if characters is None else characters)
        questions[name] = RecordedQuestion(name, str(row.get("set", "")), asked, (_text(row, "answer", place),), count)
    records = dict[str, dict[str, RecordedAnswer]]()
    for file in sorted((folder / "outputs").glob("*.jsonl.gz")):
        rows = records.setdefault(file.name.removesuffix(".jsonl.gz"), {})
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    row = json.loads(line)
                    found, output = questions[row["id"]], str(row["output"])
                    rows[found.id] = RecordedAnswer(
                        output, bool(row["correct"]), found.prompt_tokens, tokens(len(output))
                    )
                except (ValueError, LookupError, TypeError):
                    raise ValueError(f"{str(file)!r}, line {number}: no answer to a question of the folder.") from None
    return Recording(questions, records)


def _long(rows: Sequence[tuple[str, Row]]) -> Recording:
    """Read a table with a row for each question and model."""
    questions, records = dict[str, RecordedQuestion](), dict[str, dict[str, RecordedAnswer]]()
    for place, row in rows:
        asked = _asked(row, place)
        model, correct = _text(row, "model", place), _right(_value(row, COLUMNS["correct"]), place)
        if asked.id in records.setdefault(model, {}):
            raise ValueError(f"{place}: {model} has answered {asked.id!r} twice.")
        output = str(_value(row, COLUMNS["output"]) or "")
        prompt, written = (_number(row, COLUMNS[name], place) for name in ("prompt_tokens", "tokens"))
        records[model][asked.id] = RecordedAnswer(
            output,
            correct,
            asked.prompt_tokens if prompt is None else round(prompt),
            tokens(len(output)) if written is None else round(written),
            _number(row, COLUMNS["cost"], place),
            _number(row, COLUMNS["latency"], place),
        )
        questions.setdefault(asked.id, asked)
    return Recording(questions, records)


def _wide(rows: Sequence[tuple[str, Row]]) -> Recording:
    """Read RouterBench's form: a row for each question."""
    models = [column.removesuffix(_RESPONSE) for column in rows[0][1] if column.endswith(_RESPONSE)]
    questions, records = (
        dict[str, RecordedQuestion](),
        dict[str, dict[str, RecordedAnswer]]({model: {} for model in models}),
    )
    for place, row in rows:
        asked = _asked(row, place)
        if asked.id in questions:
            raise ValueError(f"{place}: the question {asked.id!r} is there twice.")
        questions[asked.id] = asked
        for model in models:
            if (output := row.get(model + _RESPONSE)) is not None and row.get(model) is not None:
                text = str(output)
                cost = _number(row, (model + _COST,), place)
                correct = _right(row[model], place)
                records[model][asked.id] = RecordedAnswer(text, correct, asked.prompt_tokens, tokens(len(text)), cost)
    return Recording(questions, records)


def _record_of_calls(file: Path, references: str | Path | None) -> Recording:
    """Read our own record of paid calls (replay.path): the calls of experts that hold a question of `references`."""
    if references is None:
        raise ValueError(f"{str(file)!r} tells no right answers: name a file of questions with answers as references.")
    known = load_tasks(references)
    questions, records = dict[str, RecordedQuestion](), dict[str, dict[str, RecordedAnswer]]()
    for request, recorded in calls_of(file):
        said = "\n".join(str(message.get("content", "")) for message in request.get("messages") or ())
        asked = next((each for each in known if said and each.question in said), None)
        text = recorded.value.get("text") if isinstance(recorded.value, dict) else None
        if asked is None or recorded.is_error or not isinstance(text, str) or not recorded.usage:
            continue
        last, spent = recorded.usage[-1], sum(row.cost_usd for row in recorded.usage)
        correct = same_answer(read_answer(text), asked.answer)
        rows = records.setdefault(last.name, {})
        rows.setdefault(
            asked.id, RecordedAnswer(text, correct, last.prompt_tokens, last.completion_tokens, spent, last.seconds)
        )
        one = RecordedQuestion(asked.id, asked.family, asked.question, tuple(asked.answer), last.prompt_tokens)
        questions.setdefault(asked.id, one)
    if not questions:
        raise ValueError(f"{str(file)!r} has no call about a question of {str(references)!r}.")
    return Recording(questions, records)


def _placed(file: Path) -> list[tuple[str, Row]]:
    """Return every row with its place in words."""
    if file.suffix == ".csv":
        return list(_commas(file))
    return [(place, read()) for _, place, read in rows_of(file)]


def _commas(file: Path) -> Iterator[tuple[str, Row]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        table = csv.DictReader(lines)
        try:
            for row in table:
                if None in row or None in row.values():
                    raise BadRow(f"{str(file)!r}, line {table.line_num}: it has not as many fields as the first line.")
                # An empty field is none.
                yield f"{str(file)!r}, line {table.line_num}", {key: value for key, value in row.items() if value}
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{str(file)!r}, line {table.line_num + 1}: {error}.") from None


def _asked(row: Row, place: str) -> RecordedQuestion:
    question, name = _text(row, "question", place), _value(row, COLUMNS["id"])
    reference, family = _value(row, COLUMNS["answer"]), _value(row, COLUMNS["family"])
    references = reference if isinstance(reference, list | tuple) else [] if reference is None else [reference]
    family = "" if family is None else str(family)
    return RecordedQuestion(
        question if name is None else str(name), family, question, tuple(map(str, references)), tokens(len(question))
    )


def _value(row: Row, names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _text(row: Row, key: str, place: str) -> str:
    names = COLUMNS.get(key, (key,))
    value = _value(row, names)
    if value is None:
        raise BadRow(f"{place}: it has no {key!r}; the column is called {' or '.join(names)}.")
    return text_of(str(value), key, place)


def _number(row: Row, names: Sequence[str], place: str) -> float | None:
    """Return a number >= 0, or None if there is no such column."""
    value = _value(row, names)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not 0 <= number < math.inf:
        raise BadRow(f"{place}: {names[0]!r} must be a number >= 0, not {str(value)[:40]!r}.")
    return number


def _right(value: Any, place: str) -> bool:
    """Return whether a flag or a score from 0 to 1 says right: more than a half is."""
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    try:
        score = float(word)
    except ValueError:
        score = math.nan
    if not 0 <= score <= 1:
        raise BadRow(f"{place}: 'correct' must be true, false or a score from 0 to 1, not {str(value)[:40]!r}.")
    return score > 0.5
