"""A clone of RouteLLM becomes two tables that the reader reads."""

from pathlib import Path

import pytest

from benchmarks.data.routellm import prepare
from orchestra_jax.envs.recorded.readers import read_recording

HEAD = "prompt,a/b,d"


def clone(folder: Path, **subjects: str) -> Path:
    answers = folder / "routellm" / "evals" / "mmlu" / "responses"
    answers.mkdir(parents=True)
    for name, text in subjects.items():
        (answers / f"mmlu_{name}.csv").write_text(text)
    gsm8k = folder / "routellm" / "evals" / "gsm8k"
    gsm8k.mkdir()
    (gsm8k / "gsm8k_responses.csv").write_text(f'{HEAD},a/b_response,d_response\n"1, 2?",True,False,"It is\n3",4\n')
    return folder


def test_both_tables_are_read_with_subjects_as_families(tmp_path: Path):
    pytest.importorskip("pyarrow", reason="pip install 'orchestra-jax[data]'")
    source = clone(
        tmp_path / "c", law=f'{HEAD}\n"Who?\nA. I",True,False\nWho?,False,True\n', art=f"{HEAD}\nX,True,True\n"
    )
    assert prepare(source, tmp_path / "made") == 3
    mmlu = read_recording(tmp_path / "made" / "mmlu.csv")
    assert {name: (asked.family, asked.question) for name, asked in mmlu.questions.items()} == {
        "mmlu/art/0": ("art", "X"), "mmlu/law/0": ("law", "Who?\nA. I"), "mmlu/law/1": ("law", "Who?"),
    }  # fmt: skip
    assert mmlu.correct.tolist() == [[True, True], [True, False], [False, True]]
    assert read_recording(tmp_path / "made" / "gsm8k.csv").answer("a/b", "1, 2?").output == "It is\n3"


def test_a_clone_without_the_files_or_with_other_columns_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"clone github\.com/lm-sys/RouteLLM"):
        prepare(tmp_path, tmp_path / "made")
    source = clone(tmp_path / "c", art=f"{HEAD}\nX,True,True\n", law="prompt,d,a/b\nX,True,True\n")
    with pytest.raises(ValueError, match=r"mmlu_law\.csv' has other columns than"):
        prepare(source, tmp_path / "made")
    assert not (tmp_path / "made" / "mmlu.csv").exists()
