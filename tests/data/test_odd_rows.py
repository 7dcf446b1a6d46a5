"""Rows that nobody should have written: each is used, refused with a sentence that names file and line, or skipped."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestra_jax.data.rows import BadRow
from orchestra_jax.data.sources import FORMATS, Question, Skipped, load_tasks

GOOD = {"id": "g", "question": "q", "answer": "a"}
GOOD_LINE = json.dumps(GOOD).encode()
NESTED = b"[" * 100_000 + b"]" * 100_000
ODD_LINES = {
    "bytes that are no UTF-8": (b'{"question": "caf\xe9", "answer": "a"}', "byte 18 is not UTF-8"),
    "half a surrogate pair": (rb'{"question": "\ud83d", "answer": "a"}', "half of a surrogate pair"),
    "half a pair in a field that is kept": (
        rb'{"question": "q", "answer": "a", "extra": {"k": ["\uDC00"]}}',
        "half of",
    ),
    "brackets within brackets": (b'{"question": "q", "answer": ' + NESTED + b"}", "more than 64 levels"),
    "a giant whole number": (b'{"question": "q", "answer": ' + b"1" * 400 + b"}", "400 digits"),
    "a number that overflows": (b'{"question": "q", "answer": 1e999}', "overflows"),
    "no number": (b'{"question": "q", "answer": NaN}', "not finite"),
    "a cut line": (GOOD_LINE[:-4], "not valid JSON"),
    "a list": (b"[1]", "must be an object"),
    "null": (b"null", "must be an object"),
    "a question that is a number": (b'{"question": 5, "answer": "a"}', "'question' must be a text, not int"),
    "an empty question": (b'{"question": " ", "answer": "a"}', "'question' is empty"),
    "an answer that is an object": (b'{"question": "q", "answer": {}}', "'answer' must be a text, not dict"),
    "no answers": (b'{"question": "q", "answer": []}', "'answer' must be a text or a number, or a list"),
    "answers with null": (b'{"question": "q", "answer": ["a", null]}', "'answer' must be a text, not NoneType"),
    "extra that is a list": (b'{"question": "q", "answer": "a", "extra": [1]}', "'extra' must be an object"),
    "a family that is a list": (b'{"question": "q", "answer": "a", "family": [1]}', "'family' must be a text"),
    "an id that is a list": (b'{"id": ["g", 1], "question": "q", "answer": "a"}', "'id' must be a text or a number."),
    "an id that was there": (GOOD_LINE, "the id 'g' occurs twice"),
}


@pytest.mark.parametrize("name", list(ODD_LINES))
def test_an_odd_line_is_named_or_skipped(tmp_path: Path, name: str) -> None:
    line, reason = ODD_LINES[name]
    path = tmp_path / "f.jsonl"
    path.write_bytes(GOOD_LINE + b"\n" + line + b'\n{"question": "last", "answer": 5}\n')
    with pytest.raises(ValueError, match=reason) as caught:
        load_tasks(path, "jsonl")
    assert str(caught.value).startswith(f"{str(path)!r}, line 2: ")
    skipped = Skipped()
    found = load_tasks(path, "jsonl", skipped=skipped)
    assert found == [Question("g", "q", ("a",)), Question("f-3", "last", ("5",))]
    assert (skipped.count, skipped.first) == (1, str(caught.value))
    assert str(skipped) == f"Skipped 1 row (data.on_bad_row=skip), first: {caught.value}"


def test_pairs_of_surrogates_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + rb'{"question": "\ud83d\ude00 \ufffd", "answer": "a"}')
    assert load_tasks(path)[0].question == "\U0001f600 \ufffd"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("f.json", b'[{"question": "caf\xe9"}]', "byte 19 is not UTF-8"),
        ("f.json", NESTED, "more than 64 levels"),
        ("f.json", b"[" + b"1" * 400 + b"]", "400 digits"),
        ("f.json", b"", "not valid JSON"),
        ("f.json", b"[3]", "row 1: a row must be an object"),
        ("f.json", rb'[{"question": "\ud83d", "answer": "a"}]', "row 1: it has half of a surrogate pair"),
        ("f.json", b"[]", "no usable question"),
        ("f.tsv", b"", "no usable question"),
        ("f.tsv", b"question\tanswer\n", "no usable question"),
        ("f.tsv", b"question\tanswer\nq\n", "line 2: no 'answer'"),
        ("f.tsv", b"question\tanswer\nq\ta\ncaf\xe9\ta\n", "line 3: 'question' is not UTF-8"),
        ("f.tsv", b"question\tanswer\n" + b"q" * (csv.field_size_limit() + 1) + b"\ta\n", "line 2: field larger"),
        ("f.tsv", b"question\tanswer\n\ta\n", "line 2: 'question' is empty"),
    ],
)
def test_odd_files(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as caught:
        load_tasks(path, "jsonl")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_has_the_lines_that_its_line_ends_make(tmp_path: Path) -> None:
    path = tmp_path / "f.tsv"
    path.write_bytes("question\tanswer\none\u2028question\ta\n".encode())
    assert load_tasks(path)[0].question == "one\u2028question"


KEYS = ("id", "question", "answer", "Prompt", "Answer", "question_id", "reference_answer", "image", "task", "extra")
TEXTS = st.sampled_from(["", " ", "q", "x ####", "#### 4", "\ud83d", "\0", "\u2028", "é" * 50, "1e999"])
NUMBERS = st.sampled_from([0, -1, 2**70, 10**30, 1.5, float("inf"), float("nan"), True])
VALUES = st.recursive(
    st.none() | TEXTS | NUMBERS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
ROWS = st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6) | VALUES, max_size=3)


@settings(derandomize=True, max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, kind=st.sampled_from([*FORMATS, "auto"]), form=st.sampled_from(["jsonl", "json", "tsv", "bytes"]))
def test_whatever_is_in_a_file_ends_as_questions_or_in_a_sentence(
    tmp_path: Path, rows: list[Any], kind: str, form: str
) -> None:
    written = [json.dumps(row, ensure_ascii=form != "bytes").encode("utf-8", "surrogatepass") for row in rows]
    path = tmp_path / f"f.{form.replace('bytes', 'jsonl')}"
    content = b"[" + b",".join(written) + b"]" if form == "json" else b"\n".join(written)
    path.write_bytes(b"question\tanswer\tid\n" + content.replace(b",", b"\t") if form == "tsv" else content)
    for skipped in (None, Skipped()):
        sentence, questions = "", list[Question]()
        try:
            questions = load_tasks(path, kind, skipped=skipped)
        except ValueError as error:
            sentence, kind_of_error = str(error), type(error)
        if sentence:
            assert kind_of_error in (ValueError, BadRow)
            assert "\n" not in sentence
            sentence.encode()
        for question in questions:
            " ".join([question.id, question.question, *question.answer, question.family]).encode()
            assert question.question.strip()
            assert all(question.answer)
