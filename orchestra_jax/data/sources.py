"""Questions with reference answers, read from files of public benchmarks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestra_jax.config.choices import QuestionFormat
from orchestra_jax.data.rows import SUFFIXES, BadRow, Row, answers_of, rows_of, text_of
from orchestra_jax.io import hub
from orchestra_jax.types import Preference, Task, ToolSpec

# The quickstart's environment makes its tasks itself.
_NO_FILES = (QuestionFormat.auto, QuestionFormat.quickstart)
# What `_detect` and `read_question` look at. The other columns of a parquet file, such as long thoughts, are not read.
_COLUMNS = frozenset(
    "id question answer Prompt Answer wiki_links reasoning_types image category answer_type raw_subject question_id "
    "reference_answer task question_source type family extra".split()
)
FORMATS = tuple(kind for kind in QuestionFormat if kind not in _NO_FILES)


@dataclass(frozen=True, slots=True)
class Question:
    """A question before it gets tools and a preference; its fields are fields of `Task`."""

    id: str
    question: str
    answer: tuple[str, ...]
    family: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def task(self, tools: Sequence[ToolSpec], preference: Preference) -> Task:
        """Return the question as a task with a menu and a preference."""
        return Task(self.id, self.question, self.answer, tuple(tools), preference, self.family, self.extra)


@dataclass
class Skipped:
    """Rows of files of tasks that were left out because no question could be made of them.

    Attributes:
        count: number of such rows.
        first: problem of the first one, a sentence with file and line.
    """

    count: int = 0
    first: str = ""

    def add(self, problem: str) -> None:
        """Count one more row."""
        self.count += 1
        self.first = self.first or problem

    def __str__(self) -> str:
        """Return a sentence for the user; "" if nothing was skipped."""
        rows = f"{self.count} rows" if self.count > 1 else "1 row"
        return f"Skipped {rows} (data.on_bad_row=skip), first: {self.first}" if self.count else ""


def load_tasks(path: str | Path, format: str = "auto", *, skipped: Skipped | None = None) -> list[Question]:  # noqa: A002
    """Read a file, or every file of a folder in the order of their names.

    Args:
        path: a .jsonl, .json (a list of rows), .tsv or .parquet file, a folder of them, or a data set's id on the hub.
        format: one of FORMATS, or "auto": recognised by the keys of each file's first row.
        skipped: counts rows that no question can be made of, which are left out; None: the first one raises.

    HLE rows with an image are left out (the paper's text-only subset), and so are GeneralThought rows whose reference
    answer is missing or blank, and further rows of the same question_id.

    Raises:
        FileNotFoundError: nothing to read at `path`.
        ImportError: a parquet file without pyarrow.
        ValueError: an unknown format, a broken file, no question at all, or a `BadRow`: what is wrong with one, by file
            and line (no JSON or UTF-8, a key that it lacks or that holds something else, an id that was there before).
    """
    if format != "auto" and format not in FORMATS:
        raise ValueError(f"Unknown format {format!r} of questions; known are auto, {', '.join(FORMATS)}.")
    questions: dict[str, Question] = {}
    for file in question_files(Path(path)):
        kind = format
        for number, place, read in rows_of(file, _COLUMNS):
            try:
                row = read()
                kind = _detect(row) if kind == "auto" else kind
                question = read_question(kind, row, place, number, file.stem)
                if question is None or (kind == "general_thought" and question.id in questions):
                    continue
                if question.id in questions:
                    raise BadRow(f"{place}: the id {question.id!r} occurs twice; ids must be unique.")
            except BadRow as problem:
                if skipped is None:
                    raise
                skipped.add(str(problem))
                continue
            questions[question.id] = question
    if not questions:
        reason = f" {skipped}" if skipped is not None and skipped.count else ""
        raise ValueError(f"{str(path)!r} holds no usable question of format {format!r}.{reason}")
    return list(questions.values())


def is_blank(value: Any) -> bool:
    """Return whether a cell says nothing: null, an empty list, or a text of blanks."""
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def question_files(path: Path) -> list[Path]:
    """Return the file itself, the files of a folder in the order of their names, or those of a data set on the hub.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file of another suffix.
    """
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise ValueError(f"{str(path)!r} must end in {', '.join(SUFFIXES)}.")
        return [path]
    files = sorted(file for file in hub.files_of(path) if file.suffix in SUFFIXES)
    if not files:
        raise FileNotFoundError(f"No {', '.join(SUFFIXES)} file at {str(path)!r}; check the path (data.path).")
    return files


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


def read_question(kind: str, row: Row, place: str, number: int, stem: str) -> Question | None:
    """Read one row of a format as a question; return None where the format leaves it out.

    Args:
        place: file and line in words.
        number, stem: of the row, and the name of its file, for an id where it has none.

    Raises:
        BadRow: no question can be made of it.
    """

    def get(key: str) -> Any:
        if row.get(key) is None:
            raise BadRow(f"{place}: no {key!r}, which every row of format {kind!r} needs.")
        return row[key]

    def text(key: str) -> str:
        return text_of(get(key), key, place)

    def answers(key: str) -> tuple[str, ...]:
        return answers_of(get(key), key, place)

    def optional(key: str, default: str = "") -> str:
        return text(key) if row.get(key) else default

    def name(key: str) -> str:
        return answers_of(get(key), key, place, most=1)[0]

    def kept(*keys: str) -> dict[str, Any]:
        return {key: row[key] for key in keys if row.get(key)}

    fallback = f"{stem}-{number}"
    match kind:
        case "gsm8k":
            if "####" not in text("answer"):
                raise BadRow(f"{place}: 'answer' has no '####' before the final answer, as gsm8k rows do.")
            final = answers_of(text("answer").rpartition("####")[2].strip(), "answer", place)
            return Question(fallback, text("question"), final, "gsm8k")
        case "frames" if "Prompt" in row:
            extra = kept("wiki_links", "reasoning_types")
            return Question(f"frames-{number}", text("Prompt"), answers("Answer"), "frames", extra)
        case "frames":
            return Question(name("id"), text("question"), answers("answer"), "frames")
        case "hle":
            if row.get("image"):
                return None
            family = optional("category", "hle")
            return Question(name("id"), text("question"), answers("answer"), family, kept("answer_type", "raw_subject"))
        case "general_thought":
            if "reference_answer" in row and is_blank(row["reference_answer"]):
                return None
            reference, family = answers("reference_answer"), optional("task", "general_thought")
            return Question(name("question_id"), text("question"), reference, family, kept("question_source"))
        case "nq" | "hotpot":
            return Question(fallback, text("question"), answers("answer"), optional("type", kind))
        case _:
            given = row.get("extra") or {}
            if not isinstance(given, Mapping):
                raise BadRow(f"{place}: 'extra' must be an object with named fields, not {type(given).__name__}.")
            identity = fallback if row.get("id") is None else name("id")
            return Question(identity, text("question"), answers("answer"), optional("family"), dict(given))
