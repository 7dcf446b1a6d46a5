"""Question files: every format, every way in which a file can be wrong."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.data.sources import Question, load_tasks
from orchestra_jax.types import Preference, ToolSpec

needs_data = pytest.mark.skipif("ORCHESTRA_DATA" not in os.environ, reason="needs ORCHESTRA_DATA")


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS: dict[str, tuple[list[dict[str, Any]], Question]] = {
    "gsm8k": ([{"question": "q", "answer": "steps\n#### 1,000"}], Question("f-1", "q", ("1,000",), "gsm8k")),
    "frames": (
        [{"Prompt": "q", "Answer": "a", "wiki_links": ["w"], "reasoning_types": "Tabular"}],
        Question("frames-1", "q", ("a",), "frames", {"wiki_links": ["w"], "reasoning_types": "Tabular"}),
    ),
    "hle": (
        [
            {"id": "i", "question": "seen", "image": "data:image/png", "answer": "x", "answer_type": "exactMatch"},
            {"id": "j", "question": "q", "image": "", "answer": "a", "answer_type": "exactMatch", "category": "Math"},
        ],
        Question("j", "q", ("a",), "Math", {"answer_type": "exactMatch"}),
    ),
    "general_thought": (
        [
            {"question_id": 7, "question": "q", "reference_answer": "a", "task": "Logic", "model_name": "m"},
            {"question_id": 7, "question": "q", "reference_answer": "a", "task": "Logic", "model_name": "n"},
            {"question_id": 8, "question": "open", "reference_answer": None, "task": "Logic"},
        ],
        Question("7", "q", ("a",), "Logic"),
    ),
    "nq": ([{"question": "q", "answer": ["a", "b"]}], Question("f-1", "q", ("a", "b"), "nq")),
    "hotpot": (
        [{"question": "q", "answer": "a", "type": "bridge"}],
        Question("f-1", "q", ("a",), "bridge"),
    ),
    "jsonl": (
        [{"id": 3, "question": "q", "answer": 5, "family": "sums", "extra": {"k": 1}}],
        Question("3", "q", ("5",), "sums", {"k": 1}),
    ),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize("format", sorted(ROWS))
def test_formats(format: str, suffix: str, tmp_path: Path):  # noqa: A002
    rows, question = ROWS[format]
    path = write(tmp_path / f"f{suffix}", rows)
    assert load_tasks(path, format) == [question]
    (found,) = load_tasks(path) if format != "hle" else load_tasks(path, "auto")
    assert (found.question, found.answer) == (question.question, question.answer)


def test_released_frames_rows(tmp_path: Path):
    path = write(tmp_path / "f.jsonl", [{"id": "wiki____0", "question": "q", "answer": "a"}])
    assert load_tasks(path, "frames") == [Question("wiki____0", "q", ("a",), "frames")]


def test_folders_and_tasks(tmp_path: Path):
    write(tmp_path / "b.jsonl", [{"question": "q3", "answer": "3"}])
    write(tmp_path / "a.jsonl", [{"question": "q1", "answer": "1"}, {"question": "q2", "answer": "2"}])
    (tmp_path / "README.md").write_text("not data")
    questions = load_tasks(tmp_path)
    assert [question.id for question in questions] == ["a-1", "a-2", "b-1"]
    tool, preference = ToolSpec("t", "d", {"type": "object"}), Preference("fast", "Quick!")
    task = questions[0].task([tool], preference)
    assert (task.id, task.question, task.answer, task.tools, task.preference) == (
        "a-1",
        "q1",
        ("1",),
        (tool,),
        preference,
    )


@pytest.mark.parametrize(
    ("text", "format", "message"),
    [
        (
            '{"question": "q", "answer": "a"}\n\n{"question": "q"}\n',
            "auto",
            r"f.jsonl', line 3: no 'answer', which every",
        ),
        ('{"question": "q", "answer": null}\n', "jsonl", r"line 1: no 'answer'"),
        ('{"question": "q", "answer": "a"}\n', "gsm8k", r"line 1: 'answer' has no '####'"),
        ('{"question": "q"}\n', "general_thought", r"line 1: no 'reference_answer'"),
        ('{"id": 1, "question": "q"}\n', "hle", r"line 1: no 'answer'"),
        ("", "auto", r"holds no usable question of format 'auto'"),
        ('{"question": "q", "answer": "a"}\n', "csv", r"Unknown format 'csv' of questions; known are auto, gsm8k"),
    ],
)
def test_errors_are_one_sentence(text: str, format: str, message: str, tmp_path: Path):  # noqa: A002
    path = tmp_path / "f.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_tasks(path, format)
    assert "\n" not in str(caught.value)


def test_missing_files(tmp_path: Path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(FileNotFoundError, match="check the path"):
            load_tasks(path)
    (tmp_path / "f.csv").write_text("a")
    with pytest.raises(ValueError, match="must end in"):
        load_tasks(tmp_path / "f.csv")
    (tmp_path / "f.json").write_text("{}")
    with pytest.raises(ValueError, match="must be a JSON list"):
        load_tasks(tmp_path / "f.json")


@needs_data
@pytest.mark.parametrize(
    ("file", "format", "count"),
    [
        ("frames/frames.jsonl", "frames", 824),
        ("qa_sets/gsm8k_train.jsonl", "gsm8k", 7473),
        ("qa_sets/gsm8k_test.jsonl", "auto", 1319),
        ("qa_sets/hotpot_dev_v1_simplified.json", "hotpot", 7405),
        ("qa_sets/NQ-open.dev.jsonl", "nq", 3610),
    ],
)
def test_real_files(file: str, format: str, count: int):  # noqa: A002
    questions = load_tasks(Path(os.environ["ORCHESTRA_DATA"]) / file, format)
    assert len(questions) == count
    assert all(question.question and all(question.answer) for question in questions)
