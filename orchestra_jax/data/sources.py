"""Questions with reference answers from the files that public benchmarks come in."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestra_jax import hub
from orchestra_jax.config.choices import QuestionFormat
from orchestra_jax.types import Preference, Task, ToolSpec

Row = Mapping[str, Any]
# The quickstart's environment makes its tasks itself.
_NO_FILES = (QuestionFormat.auto, QuestionFormat.quickstart)
FORMATS = tuple(kind for kind in QuestionFormat if kind not in _NO_FILES)
_SUFFIXES = (".jsonl", ".json", ".tsv", ".parquet")


@dataclass(frozen=True, slots=True)
class Question:
    """A question before it gets tools and a preference; the fields are those of `Task`."""

    id: str
    question: str
    answer: tuple[str, ...]
    family: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def task(self, tools: Sequence[ToolSpec], preference: Preference) -> Task:
        """The question with its menu and preference."""
        return Task(self.id, self.question, self.answer, tuple(tools), preference, self.family, self.extra)


def load_tasks(path: str | Path, format: str = "auto") -> list[Question]:  # noqa: A002
    """Reads a file, or every file of a folder in the order of their names.

    Args:
        path: a .jsonl, .json (a list of rows), .tsv or .parquet file, a folder of them, or a data set's id on the hub.
        format: one of FORMATS, or "auto": known by the keys of each file's first row.

    HLE rows with an image are left out (the paper's text-only subset), and so are GeneralThought rows without a
    reference answer and further rows of the same question_id.

    Raises:
        FileNotFoundError: nothing to read at `path`.
        ImportError: a parquet file without pyarrow.
        ValueError: an unknown format, broken JSON, a row without a key (names file, line and key), a repeated id, or
            no question at all.
    """
    if format != "auto" and format not in FORMATS:
        raise ValueError(f"Unknown format {format!r} of questions; known are auto, {', '.join(FORMATS)}.")
    questions: dict[str, Question] = {}
    for file in _files(Path(path)):
        kind = format
        for number, place, row in _rows(file):
            if not isinstance(row, Mapping):
                raise ValueError(f"{place}: a row must be an object with named fields, not {type(row).__name__}.")
            kind = _detect(row) if kind == "auto" else kind
            question = _read(kind, row, place, number, file.stem)
            if question is None or (kind == "general_thought" and question.id in questions):
                continue
            if question.id in questions:
                raise ValueError(f"{place}: the id {question.id!r} occurs twice; ids must be unique.")
            questions[question.id] = question
    if not questions:
        raise ValueError(f"{str(path)!r} holds no usable question of format {format!r}.")
    return list(questions.values())


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix not in _SUFFIXES:
            raise ValueError(f"{str(path)!r} must end in {', '.join(_SUFFIXES)}.")
        return [path]
    files = sorted(file for file in hub.files_of(path) if file.suffix in _SUFFIXES)
    if not files:
        raise FileNotFoundError(f"No {', '.join(_SUFFIXES)} file at {str(path)!r}; check the path (data.path).")
    return files


def _rows(file: Path) -> Iterator[tuple[int, str, Any]]:
    """Number, place in words and content of every row."""
    if file.suffix == ".jsonl":
        with file.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    place = f"{str(file)!r}, line {number}"
                    yield number, place, _parse(line, place)
        return
    rows: Iterable[Any]
    if file.suffix == ".parquet":
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise ImportError(f"Reading {file.name!r} needs pyarrow: pip install 'orchestra-jax[data]'.") from None
        batches = parquet.ParquetFile(file).iter_batches(batch_size=1024)
        rows = (row for batch in batches for row in batch.to_pylist())
    elif file.suffix == ".tsv":
        rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines(keepends=True), delimiter="\t")
    else:
        rows = _parse(file.read_text(encoding="utf-8"), f"{str(file)!r}, row 1")
        if not isinstance(rows, list):
            raise ValueError(f"{str(file)!r} must be a JSON list of rows.")
    for number, row in enumerate(rows, 1):
        yield number, f"{str(file)!r}, row {number}", row


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not valid JSON ({error}).") from None


def _detect(row: Row) -> str:
    if "reference_answer" in row:
        return "general_thought"
    if "Prompt" in row:
        return "frames"
    if "answer_type" in row or "image" in row:
        return "hle"
    answer = row.get("answer")
    if isinstance(answer, str) and "####" in answer:
        return "gsm8k"
    return "jsonl"  # nq, hotpot and the released FRAMES file are rows of question and answer too


def _read(kind: str, row: Row, place: str, number: int, stem: str) -> Question | None:
    """One row as a question; None where the format leaves it out."""

    def get(key: str) -> Any:
        if row.get(key) is None:
            raise ValueError(f"{place}: no {key!r}, which every row of format {kind!r} needs.")
        return row[key]

    fallback = f"{stem}-{number}"
    match kind:
        case "gsm8k":
            if "####" not in str(get("answer")):
                raise ValueError(f"{place}: 'answer' has no '####' before the final answer, as gsm8k rows do.")
            final = row["answer"].rpartition("####")[2].strip()
            return Question(fallback, get("question"), (final,), "gsm8k")
        case "frames" if "Prompt" in row:
            extra = {key: row[key] for key in ("wiki_links", "reasoning_types") if row.get(key)}
            return Question(f"frames-{number}", get("Prompt"), _answers(get("Answer")), "frames", extra)
        case "frames":
            return Question(str(get("id")), get("question"), _answers(get("answer")), "frames")
        case "hle":
            if row.get("image"):
                return None
            extra = {key: row[key] for key in ("answer_type", "raw_subject") if row.get(key)}
            family = str(row.get("category") or "hle")
            return Question(str(get("id")), get("question"), _answers(get("answer")), family, extra)
        case "general_thought":
            if not row.get("reference_answer") and "reference_answer" in row:
                return None
            answers = _answers(get("reference_answer"))
            family = str(row.get("task") or "general_thought")
            extra = {key: row[key] for key in ("question_source",) if row.get(key)}
            return Question(str(get("question_id")), get("question"), answers, family, extra)
        case "nq" | "hotpot":
            return Question(fallback, get("question"), _answers(get("answer")), str(row.get("type") or kind))
        case _:
            family = str(row.get("family") or "")
            identity = fallback if row.get("id") is None else str(row["id"])
            return Question(identity, get("question"), _answers(get("answer")), family, dict(row.get("extra") or {}))


def _answers(value: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list | tuple) else (str(value),)
