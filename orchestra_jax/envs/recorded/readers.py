"""Readers of recorded answers: the ZeroEval folder, long tables, RouterBench's wide ones, our own records of calls.

A long table (.csv, .tsv, .json, .jsonl, .parquet) has a row for each question and model; `columns.COLUMNS` is its
schema. A wide table has a row for each question: MODEL holds whether it was right, MODEL|model_response the output and
MODEL|total_cost the dollars; RouteLLM's tables have MODEL_response, or no outputs at all. Every reader tells in
`Recording.notes` what it read and what it estimated.
"""

import gzip
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, Shaped

from orchestra_jax.config.served_path import is_served
from orchestra_jax.data.rows import BadRow, rows_of, text_of
from orchestra_jax.data.sources import load_tasks
from orchestra_jax.envs.recorded.columns import COLUMNS, ONE_TEXT, SEVERAL, SHOWN, Table, Texts, open_table
from orchestra_jax.envs.recorded.table import (
    CHARS_PER_TOKEN,
    RecordedAnswer,
    RecordedQuestion,
    Recording,
    plain,
    read_answer,
    same_answer,
    tokens,
)
from orchestra_jax.money.records import calls_of

_RESPONSE, _OTHER_RESPONSE, _COST = "|model_response", "_response", "|total_cost"
_FLAGS = {"true", "false", "0", "1", ""}
_MESSAGES = re.compile(r"""(\{\s*["']\w+["']\s*:)?[\s[]*\{\s*["'](role|content)["']\s*:""")  # how JSON of them begins
_DATABASES = (".db", ".sqlite")
_OF_A_SERVER = (
    "{} is what a server kept, and no table: train on it with `experiments/train.py +experiment=my_logs "
    "path=RUN/serving/served.db model.path=RUN/policy` (docs/serve.md)."
)
_BY_CHARACTERS = f"{CHARS_PER_TOKEN} characters count as one"
_BY_SPEED = "tokens at the price list's speed, or 60 a second"
_ESTIMATES = {"prompt_tokens": _BY_CHARACTERS, "tokens": _BY_CHARACTERS, "latency": _BY_SPEED}


def read_recording(
    path: str | Path, references: str | Path | None = None, only: Collection[str] | None = None
) -> Recording:
    """Read the table at `path`.

    Args:
        references: file of questions with answers; our own record of calls needs it, to know what was right.
        only: models that are read, where the table has them; None: all.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: a table without pyarrow.
        ValueError: it is no table, or a row of it is broken; one sentence with file and line.
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"No recorded answers at {str(file)!r}.")
    if file.is_dir():
        return _zeroeval(file, only)
    if file.suffix in _DATABASES:
        return _record_of_calls(file, references, only)
    table = open_table(file)
    if "trajectory" in table.names:
        raise ValueError(_OF_A_SERVER.format(repr(str(file))))
    models, response = _wide_models(table)
    return _wide(table, models, response, only) if models else _long(table, only)


def _zeroeval(folder: Path, only: Collection[str] | None) -> Recording:
    """Read the folder of questions.jsonl and outputs/MODEL.jsonl.gz."""
    if not (folder / "questions.jsonl").is_file():
        raise FileNotFoundError(f"{str(folder)!r} is a folder without questions.jsonl: name a table, or a file of it.")
    questions = dict[str, RecordedQuestion]()
    for _, place, read in rows_of(folder / "questions.jsonl"):
        row = read()
        if missing := [key for key in ("id", "question", "answer") if row.get(key) is None]:
            raise BadRow(f"{place}: it has no {missing[0]!r}.")
        name, asked, answer = (text_of(str(row[key]), key, place) for key in ("id", "question", "answer"))
        characters = row.get("prompt_chars", len(asked))
        if isinstance(characters, bool) or not isinstance(characters, int | float) or not 0 <= characters <= 1e9:
            raise BadRow(f"{place}: 'prompt_chars' must be a number >= 0, not {str(characters)[:40]!r}.")
        if name in questions:
            raise BadRow(f"{place}: the id {name!r} was there before: give each question an id of its own.")
        questions[name] = RecordedQuestion(name, str(row.get("set", "")), asked, (answer,), tokens(characters))
    answers = dict[str, dict[str, RecordedAnswer]]()
    for file in sorted((folder / "outputs").glob("*.jsonl.gz")):
        rows = answers.setdefault(file.name.removesuffix(".jsonl.gz"), {})
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
    if not any(answers.values()):
        raise ValueError(f"{str(folder)!r} has no answers: outputs/MODEL.jsonl.gz holds those of a model.")
    count = sum(map(len, answers.values()))
    notes = [_title(folder, count, len(questions), len(answers)), *_estimates(dict.fromkeys(_ESTIMATES, count), count)]
    return Recording.of_answers(list(questions.values()), answers, notes, only)


def _long(table: Table, only: Collection[str] | None) -> Recording:
    """Read a table with a row for each question and model."""
    table.find(list(COLUMNS))
    model, asked = _whole(table, "model"), _ids(table)
    _refuse_spellings(table, model.values)
    if len(again := _repeated(asked.codes.astype(np.int64) * len(model.values) + model.codes)):
        name, who = asked.values[asked.codes[again[0]]], model.values[model.codes[again[0]]]
        raise BadRow(f"{table.place(again[0])}: {who} has answered {name[:SHOWN]!r} twice{_keep_one(again)}")
    place, made = _questions(table, asked)
    outputs, numbers = _column(table, "output").strings(), _numbers(table, tuple(COLUMNS))
    guessed = {name: int(np.isnan(numbers[name]).sum()) for name in _ESTIMATES}
    cells = _cells(outputs, numbers, np.array([each.prompt_tokens for each in made])[place])
    cells["correct"] = _whole(table, "correct").flags()
    notes = _notes(table, len(made), len(model.values), guessed)
    if empty := int((cells["outputs"] == "").sum()):
        notes.append(f"  empty output: {empty} of {table.rows} rows; an empty answer is what the model says")
    return Recording.of_cells(made, model.values, place, model.codes, cells, notes, only)


def _wide_models(table: Table) -> tuple[list[str], str | None]:
    """Return the models of a wide table, none of a long one, and what their columns of outputs have behind the name.

    Without outputs (None) the models are the columns that hold nothing but true and false.
    """

    def before(suffix: str) -> list[str]:
        return [name.removesuffix(suffix) for name in table.names if name.endswith(suffix)]

    if models := before(_RESPONSE):
        return models, _RESPONSE
    if any(name in table.names for name in COLUMNS["model"].names):
        return [], None
    if models := [name for name in before(_OTHER_RESPONSE) if name in table.names]:
        return models, _OTHER_RESPONSE
    schema = {name for column in COLUMNS.values() for name in column.names}
    if {*COLUMNS["output"].names, *COLUMNS["correct"].names} & set(table.names):
        return [], None
    others = [name for name in table.names if name not in schema]
    if not others or not {*COLUMNS["question"].names} & set(table.names):
        return [], None
    table.find((), others)
    texts = ((name, {value.strip().lower() for value in _column(table, "correct", name).values}) for name in others)
    return [name for name, found in texts if found - {""} and found <= _FLAGS], None


def _wide(table: Table, models: Sequence[str], response: str | None, only: Collection[str] | None) -> Recording:
    """Read a table with a row for each question.

    Args:
        response: what the column of a model's outputs has behind its name; None: there are no outputs.
    """
    costs = [model + _COST for model in models if model + _COST in table.names]
    own = [*models, *(model + response for model in models if response), *costs]
    table.find(("question", "id", "family", "answer"), own)
    asked = _ids(table)
    if len(again := _repeated(asked.codes)):
        name = asked.values[asked.codes[again[0]]]
        raise BadRow(f"{table.place(again[0])}: the question {name[:SHOWN]!r} is there twice{_keep_one(again)}")
    _, made = _questions(table, asked)
    prompts, parts = np.array([each.prompt_tokens for each in made]), list[dict[str, Shaped[np.ndarray, " R"]]]()
    for number, model in enumerate(models):
        flags = _column(table, "correct", model)
        said = _column(table, "output", model + response) if response else None
        rows = np.flatnonzero((flags.codes >= 0) & (said.codes >= 0 if said else True))
        known = {"cost": _column(table, "cost", model + _COST).numbers()[rows]} if model + _COST in costs else {}
        if said is None:
            known["tokens"] = np.ones(len(rows))
        texts = said.strings()[rows] if said else np.full(len(rows), f"[{model}]", object)
        cells = _cells(texts, known, prompts[rows])
        parts.append({**cells, "correct": flags.flags()[rows], "asked": rows, "by": np.full(len(rows), number)})
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    count = len(whole["asked"])
    guessed = dict.fromkeys([name for name in _ESTIMATES if response or name != "tokens"], count)
    notes = _notes(table, len(made), len(models), guessed, count, own)
    if response is None:
        notes.append(f"  without outputs: a call shows [MODEL] and has one token; models: {', '.join(models)}")
    return Recording.of_cells(made, models, whole.pop("asked"), whole.pop("by"), whole, notes, only)


def _questions(table: Table, ids: Texts) -> tuple[Int[np.ndarray, " R"], list[RecordedQuestion]]:
    """Return the number of each row's question, and the questions in the order of their first rows.

    Raises:
        BadRow: an id has two questions, references or families, or a question is a list of messages.
    """
    texts = _whole(table, "question")
    for number, text in enumerate(texts.values):
        if _MESSAGES.match(text.lstrip()[:200]) and (texts.codes == number).any():
            raise BadRow(ONE_TEXT.format(table.place(int((texts.codes == number).argmax())), table.read["question"]))
    said = dict[str, list[str | None]]()  # by column, for each id
    for name in ("question", "family", "answer"):
        if (column := table.texts(name)) is None:
            said[name] = [None] * len(ids.values)
            continue
        rows = np.flatnonzero(column.codes >= 0)
        first = np.full(len(ids.values), -1)  # of the rows of an id that say something
        first[ids.codes[rows[::-1]]] = rows[::-1]
        differs = column.codes[rows] != column.codes[first[ids.codes[rows]]]
        if differs.any():
            row = int(rows[differs.argmax()])
            raise BadRow(
                f"{table.place(row)}: the id {ids.values[ids.codes[row]][:SHOWN]!r} has another {name} than in "
                f"{table.place(int(first[ids.codes[row]]))}: give each question an id of its own, or correct it."
            )
        said[name] = [None if row < 0 else column.values[column.codes[row]] for row in first]
    codes, starts = np.unique(ids.codes, return_index=True)
    order = codes[np.argsort(starts)]
    numbers = np.zeros(len(ids.values), int)
    numbers[order] = np.arange(len(order))
    made = []
    for code in order:
        asked, family, answer = (said[name][code] for name in ("question", "family", "answer"))
        references = () if answer is None else tuple(answer.split(SEVERAL))
        made.append(RecordedQuestion(ids.values[code], family or "", asked or "", references, tokens(len(asked or ""))))
    return numbers[ids.codes], made


def _column(table: Table, name: str, called: str | None = None) -> Texts:
    found = table.texts(name, called)
    assert found is not None, f"{name} was found"
    return found


def _whole(table: Table, name: str) -> Texts:
    return _column(table, name).whole()


def _ids(table: Table) -> Texts:
    """Return the ids of the questions; without them a question is its own."""
    return _whole(table, "id" if "id" in table.read else "question")


def _numbers(table: Table, names: Sequence[str]) -> dict[str, Shaped[np.ndarray, " R"]]:
    """Return the numbers of the schema by column, nan where there are none."""
    found = {name: table.texts(name) for name in names if COLUMNS[name].most is not None}
    return {name: np.full(table.rows, np.nan) if each is None else each.numbers() for name, each in found.items()}


def _cells(
    outputs: Shaped[np.ndarray, " R"], numbers: Mapping[str, Shaped[np.ndarray, " R"]], prompts: Int[np.ndarray, " R"]
) -> dict[str, Shaped[np.ndarray, " R"]]:
    """Return the columns of a `Recording` but `correct`, with tokens estimated where there are none."""
    unknown = np.full(len(outputs), np.nan)
    written = np.array([tokens(len(text)) for text in outputs], int)
    asked, said = numbers.get("prompt_tokens", unknown), numbers.get("tokens", unknown)
    return {
        "outputs": outputs,
        "prompt_tokens": np.where(np.isnan(asked), prompts, np.rint(np.nan_to_num(asked))).astype(int),
        "completion_tokens": np.where(np.isnan(said), written, np.rint(np.nan_to_num(said))).astype(int),
        "cost_usd": numbers.get("cost", unknown),
        "seconds": numbers.get("latency", unknown),
    }


def _refuse_spellings(table: Table, models: Sequence[str]) -> None:
    """Raise ValueError if names of models differ by blanks and capitals alone, so that one model's rows are two's."""
    named = dict[str, str]()
    for model in models:
        if (other := named.setdefault(plain(model), model)) != model:
            raise ValueError(
                f"{str(table.file)!r} has the models {other!r} and {model!r}: write a model in the same way in all "
                "rows, and give two models names that differ by more than blanks and capitals."
            )


def _repeated(keys: Int[np.ndarray, " R"]) -> list[int]:
    """Return the rows whose key was there before."""
    order = np.argsort(keys, kind="stable")
    return sorted(order[1:][np.diff(keys[order]) == 0].tolist())


def _keep_one(again: Sequence[int]) -> str:
    """Return the end of a sentence on rows that repeat others."""
    return f", and {len(again) - 1} more rows are such: keep one of each." if again[1:] else ": keep one of the rows."


def _title(file: Path, rows: int, questions: int, models: int) -> str:
    return f"Recorded answers of {file.name}: {rows} answers of {models} models to {questions} questions."


def _estimates(guessed: Mapping[str, int], count: int) -> list[str]:
    return [
        f"  estimated: {name} in {rows} of {count} rows ({_ESTIMATES[name]})" for name, rows in guessed.items() if rows
    ]


def _notes(
    table: Table,
    questions: int,
    models: int,
    guessed: Mapping[str, int],
    count: int | None = None,
    others: Sequence[str] = (),
) -> list[str]:
    """Return lines that tell what was read and what was estimated."""
    named = [name if name == called else f"{name} (here {called})" for name, called in table.read.items()]
    named += [f"{len(others)} columns of models"] if others else []
    used = {*table.read.values(), *others}
    unread = [name for name in table.names if name not in used]
    lines = [_title(table.file, count or table.rows, questions, models), f"  read: {', '.join(named)}"]
    lines += [f"  not read: {', '.join(unread)[:400]}"] if unread else []
    lines += ["  without id: a question is its own"] if "id" not in table.read else []
    lines += ["  without answer: what a right model said is right"] if "answer" not in table.read else []
    return [*lines, *_estimates(guessed, count or table.rows)]


def _record_of_calls(file: Path, references: str | Path | None, only: Collection[str] | None) -> Recording:
    """Read our own record of paid calls (replay.path): the calls of experts that hold a question of `references`."""
    if is_served(str(file)):
        raise ValueError(_OF_A_SERVER.format(repr(str(file))))
    if references is None:
        raise ValueError(f"{str(file)!r} tells no right answers: name a file of questions with answers as references.")
    known = load_tasks(references)
    questions, answers = dict[str, RecordedQuestion](), dict[str, dict[str, RecordedAnswer]]()
    others = again = 0
    for request, recorded in calls_of(file):
        said = "\n".join(str(message.get("content", "")) for message in request.get("messages") or ())
        held = [each for each in known if each.question in said]
        text = recorded.value.get("text") if isinstance(recorded.value, dict) else None
        by_expert = bool(recorded.usage) and recorded.usage[-1].role == "tool"  # and not by a judge or a user
        if not held or recorded.is_error or not isinstance(text, str) or not by_expert:
            others += 1
            continue
        asked = max(held, key=lambda each: len(each.question))  # a short one may be a part of it
        last, spent = recorded.usage[-1], sum(row.cost_usd for row in recorded.usage)
        correct = same_answer(read_answer(text), asked.answer)
        rows = answers.setdefault(last.name, {})
        again += asked.id in rows
        rows.setdefault(
            asked.id, RecordedAnswer(text, correct, last.prompt_tokens, last.completion_tokens, spent, last.seconds)
        )
        one = RecordedQuestion(asked.id, asked.family, asked.question, tuple(asked.answer), last.prompt_tokens)
        questions.setdefault(asked.id, one)
    if not questions:
        raise ValueError(f"{str(file)!r} has no call about a question of {str(references)!r}.")
    count = sum(map(len, answers.values()))
    notes = [_title(file, count, len(questions), len(answers))]
    notes += [f"  not read: {others} calls that are no answer of an expert to one of these questions"] if others else []
    notes += [f"  not read: {again} further answers of a model to the same question"] if again else []
    return Recording.of_answers(list(questions.values()), answers, notes, only)
