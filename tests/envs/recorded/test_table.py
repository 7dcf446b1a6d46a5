"""Tables of recorded answers: every form is read to the same, broken rows are told, and the split is by question."""

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from orchestra_jax.envs.recorded.readers import read_recording
from orchestra_jax.envs.recorded.table import Recording, read_answer, same_answer
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.store import CANONICAL, Recorded, Writer, encode, key
from orchestra_jax.types import Usage
from tests.envs.recorded.made import HOUSE, MODELS, QUESTIONS, STRONG, is_right, made_rows, write

DATA = Path(os.environ.get("ORCHESTRA_DATA", "nowhere")) / "recorded" / "zeroeval"


def same(one: Recording, other: Recording) -> bool:
    """Whether two tables hold the same questions and answers in the same order."""
    assert (list(one.questions.items()), one.models) == (list(other.questions.items()), other.models)
    return all(one.answer(model, name) == other.answer(model, name) for model in one.models for name in one.questions)


def test_a_long_table_has_a_row_for_each_answer(tmp_path: Path):
    found = read_recording(write(tmp_path / "t.jsonl", made_rows()))
    assert found.models == MODELS
    assert len(found.questions) == QUESTIONS
    row = found.answer(HOUSE, "q3")
    assert (row.correct, row.completion_tokens, row.cost_usd, row.seconds) == (True, 13, 0.002, 3.0)
    assert found.answer(STRONG, "q3").cost_usd is None
    assert found.correct.tolist() == [[is_right(model, number) for model in MODELS] for number in range(QUESTIONS)]


def test_a_wide_table_in_the_form_of_routerbench(tmp_path: Path):
    row = {
        "sample_id": "mmlu.1", "prompt": "Which?", "eval_name": "mmlu", "a/b": 1.0, "a/b|model_response": "C",
        "a/b|total_cost": 0.25, "d": 0.0, "d|model_response": "A", "d|total_cost": 0.5,
        "oracle_model_to_route_to": "a/b",
    }  # fmt: skip
    found = read_recording(write(tmp_path / "t.jsonl", [row]))
    assert found.models == ("a/b", "d")
    assert found.questions["mmlu.1"].family == "mmlu"
    empty = PriceList("none", "2026", "", {})
    assert found.cost(empty).tolist() == [[0.25, 0.5]]
    assert found.correct.tolist() == [[True, False]]


def test_a_wide_table_in_the_form_of_routellm(tmp_path: Path):
    row = {"prompt": "Which?", "a/b": True, "d": False, "a/b_response": "It is C", "d_response": "A"}
    found = read_recording(write(tmp_path / "t.jsonl", [row]))
    assert found.models == ("a/b", "d")
    assert found.correct.tolist() == [[True, False]]
    assert found.answer("d", "Which?").output == "A"


def test_a_wide_table_without_outputs_has_the_models_names_for_answers_and_says_so(tmp_path: Path):
    rows = [
        {
            "id": f"q{n}",
            "family": "law",
            "question": f"Which {n}?",
            "a/b": n < 2,
            "d": "0",
            "remark": "hard",
            "left": "",
        }
        for n in range(3)
    ]
    found = read_recording(write(tmp_path / "t.jsonl", rows))
    assert found.models == ("a/b", "d")
    assert found.correct.tolist() == [[True, False], [True, False], [False, False]]
    row = found.answer("a/b", "q0")
    assert (row.answer, row.completion_tokens) == ("[a/b]", 1)
    assert not same_answer(found.answer("d", "q0").answer, [row.answer])
    assert "  not read: remark, left" in found.notes
    assert "  without outputs: a call shows [MODEL] and has one token; models: a/b, d" in found.notes
    assert not any("estimated: tokens" in line for line in found.notes)


def test_flags_beside_a_column_of_the_long_form_are_no_models(tmp_path: Path):
    long = {"question": "Which?", "llm": "a", "output": "C", "correct": True, "checked": True}
    with pytest.raises(ValueError, match="no column 'model'"):
        read_recording(write(tmp_path / "t.jsonl", [long]))
    with pytest.raises(ValueError, match="no column 'model'"):
        read_recording(write(tmp_path / "u.jsonl", [{"question": "Which?", "remark": "hard"}]))
    nested = {"inputs": {"messages": []}, "outputs": {}, "extra": {"model": "a"}}  # an export of LangSmith
    with pytest.raises(ValueError, match=r"no column 'question': .* here are 'inputs', 'outputs', 'extra'"):
        read_recording(write(tmp_path / "w.jsonl", [nested]))
    named = {"question": "Which?", "model": "a", "output": "C", "correct": True, "tag": "x", "tag_response": "y"}
    assert read_recording(write(tmp_path / "v.jsonl", [named])).models == ("a",)


def test_our_own_record_of_calls_is_a_table_where_the_answers_are_known(tmp_path: Path):
    known = write(tmp_path / "known.jsonl", [{"id": "q1", "question": "How much is 1 + 2?", "answer": "3"}])
    writer = Writer(tmp_path / "calls.db", overwrite=False)
    for model, said in (("a", "\\boxed{3}"), ("b", "4")):
        request = {"model": model, "messages": [{"role": "user", "content": "Question: How much is 1 + 2?"}]}
        call = Recorded({"text": said, "finish_reason": "stop"}, (Usage(model, "tool", 9, 0, 4, 0.5, 2.0),))
        writer.put((key("chat", request), "chat", CANONICAL.encode(request), encode(call))).result()
    writer.close()
    found = read_recording(tmp_path / "calls.db", known)
    assert {model: found.answer(model, "q1").correct for model in found.models} == {"a": True, "b": False}
    assert found.answer("a", "q1").cost_usd == 0.5
    with pytest.raises(ValueError, match="references"):
        read_recording(tmp_path / "calls.db")


def test_a_judges_verdict_is_no_answer_and_a_short_question_no_part_of_a_longer_one(tmp_path: Path):
    rows = [("q1", "How much is 1 + 2", "3"), ("q2", "How much is 1 + 23", "24")]
    known = write(tmp_path / "known.jsonl", [dict(zip(("id", "question", "answer"), row, strict=True)) for row in rows])
    writer = Writer(tmp_path / "calls.db", overwrite=False)
    calls = [(f"Question: {asked}", answer, "tool") for _, asked, answer in rows]
    calls += [
        (f"{asked}\nIs it {answer}?", "yes", role) for _, asked, answer in rows for role in ("judge", "user_simulator")
    ]
    calls += [("Again: How much is 1 + 23", "24", "tool"), ("Hello", "Hello", "tool")]
    for said, text, role in calls:
        request = {"role": role, "messages": [{"role": "user", "content": said}]}
        call = Recorded({"text": text, "finish_reason": "stop"}, (Usage("a", role, 9, 0, 4, 0.5, 2.0),))
        writer.put((key("chat", request), "chat", CANONICAL.encode(request), encode(call))).result()
    writer.close()
    found = read_recording(tmp_path / "calls.db", known)
    assert {name: found.answer("a", name).output for name in found.questions} == {"q1": "3", "q2": "24"}
    assert found.correct.all()
    assert found.notes[1:3] == (
        "  not read: 5 calls that are no answer of an expert to one of these questions",
        "  not read: 1 further answers of a model to the same question",
    )


def test_what_a_server_kept_is_no_table_and_the_sentence_names_the_commands(tmp_path: Path):
    with contextlib.closing(sqlite3.connect(tmp_path / "served.db")) as database:
        database.execute("CREATE TABLE requests (id TEXT)")
    log = write(tmp_path / "log.jsonl", [{"question": "1 + 2?", "answer": "3", "trajectory": {}}])
    for file, references in ((tmp_path / "served.db", None), (tmp_path / "served.db", log), (log, None)):
        with pytest.raises(
            ValueError, match=r"`.*\+experiment=my_logs path=RUN/serving/served.db model.path=RUN/policy`"
        ):
            read_recording(file, references)


def test_a_model_answers_a_question_once(tmp_path: Path):
    with pytest.raises(ValueError, match="has answered 'q0' twice"):
        read_recording(write(tmp_path / "t.jsonl", made_rows()[:1] * 2))
    long = [{"question": "x" * 20_000, "model": "a", "output": "3", "correct": True}] * 2
    with pytest.raises(ValueError, match=r"line 2: a has answered 'x{40}' twice: keep one of the rows"):
        read_recording(write(tmp_path / "u.jsonl", long))


def test_the_split_is_by_question_and_kind_and_depends_on_the_seed(tmp_path: Path):
    found = read_recording(write(tmp_path / "t.jsonl", made_rows()))
    split = found.split(0)
    assert {name: len(ids) for name, ids in split.items()} == {"train": 24, "validation": 8, "test": 8}
    assert sorted(name for ids in split.values() for name in ids) == sorted(found.questions)
    assert {name: sum(found.questions[k].family == "code" for k in ids) for name, ids in split.items()} == {
        "train": 6, "validation": 2, "test": 2,
    }  # fmt: skip
    assert found.split(0) == split
    assert found.split(1) != split


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        ("10 hours", "10", True), ("$1,234.0", "1234", True), ("11", "1", False), ("abc", "'abc'", True),
        ("'Abc'", "'abc'", False), ("{1: None}", "{1: None}", True), ("''", "''", True), ("Paris.", "paris", True),
        ("", "3", False),
    ],
)  # fmt: skip
def test_what_counts_as_right(answer: str, reference: str, right: bool):
    assert same_answer(answer, [reference]) is right


def test_the_answer_is_read_from_json_from_broken_json_and_from_words():
    assert read_answer('```json\n{"reasoning": "x", "answer": "[1, \'a\']"}\n```') == "[1, 'a']"
    assert read_answer('{"reasoning": "say "so"", "answer": 7}') == "7"
    assert read_answer("{\"answer\": '7'\n}") == "'7'"
    assert read_answer("So the answer is \\boxed{7}.") == "7"
