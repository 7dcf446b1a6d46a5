"""Parquet files, whole and damaged. What reads them is in the environment of the slow tests only."""

import random
import sys
from pathlib import Path

import pytest

from orchestra_jax.data.sources import Question, load_tasks

ROWS = [
    {"question_id": 7, "question": "q", "reference_answer": "a", "task": "Logic"},
    {"question_id": 8, "question": "open", "reference_answer": None, "task": "Logic"},
]


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "f.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'orchestra-jax\[data\]'"):
        load_tasks(tmp_path / "f.parquet")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "f.parquet")
    return tmp_path / "f.parquet"


@pytest.mark.slow
def test_rows_with_a_reference_answer_are_read(whole: Path):
    assert load_tasks(whole) == [Question("7", "q", ("a",), "Logic")]


@pytest.mark.slow
def test_a_damaged_file_is_read_or_refused_in_one_sentence(whole: Path):
    good, chance = whole.read_bytes(), random.Random(0)
    sentences = []
    for _ in range(1000):
        bad = bytearray(good)
        start, width = chance.randrange(len(good)), chance.choice([1, 1, 8, len(good)])
        bad[start : start + width] = chance.randbytes(width) if width <= 8 else b""
        whole.write_bytes(bad)
        try:
            load_tasks(whole)
        except ValueError as error:
            sentences.append(str(error))
    assert len(sentences) > 300
    assert all(sentence.startswith(repr(str(whole))) and "\n" not in sentence for sentence in sentences)


@pytest.mark.slow
def test_names_of_columns_that_are_no_utf8(whole: Path):
    whole.write_bytes(whole.read_bytes().replace(b"reference_answer", b"reference_answe\xe4"))
    with pytest.raises(ValueError, match=r"f.parquet' cannot be read: what it says about its columns is not UTF-8\.$"):
        load_tasks(whole)
