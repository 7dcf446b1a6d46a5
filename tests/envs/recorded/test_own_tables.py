"""Tables that others made: one schema refuses what would score or cost wrongly, and tells what it estimates."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.schema import ConfigError, EnvConfig, RunConfig
from orchestra_jax.envs.recorded.checks import refuse_missing_costs
from orchestra_jax.envs.recorded.environment import EVAL, PRICES, TRAIN, UNSEEN, RecordedEnvironment, unseen_recorded
from orchestra_jax.envs.recorded.readers import read_recording
from orchestra_jax.io.shipped import CONF
from orchestra_jax.money import price_files
from orchestra_jax.money.prices import MissingPrice, Price, PriceList
from tests.envs.recorded.made import HOUSE, MODELS, QUESTIONS, STRONG, config, made_rows, write

pytest.importorskip("pyarrow", reason="pip install 'orchestra-jax[data]'")
OWN = {name: f"house-{number}" for number, name in enumerate(MODELS)}
Row = dict[str, object]


def own_rows() -> list[Row]:
    """The made rows with models that no price list has, and no code in the questions."""
    return [
        {
            **row, "model": OWN[row["model"]], "question": f"Say {row['answer']}.", "cost": 0.001, "latency": 2.0,
        }
        for row in made_rows()
    ]  # fmt: skip


def renamed(rows: Iterable[Row], **names: str) -> list[Row]:
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


def world(file: Path, **options: object) -> RecordedEnvironment:
    """The environment of a table without any option but its path."""
    cfg: RunConfig = config(str(file))
    return RecordedEnvironment(replace(cfg, env=EnvConfig(name="recorded", options={"path": str(file), **options})))


def refused(file: Path, said: str) -> None:
    """Fails where the environment takes the table, or says something else."""
    with pytest.raises(ConfigError, match=said):
        world(file)


@pytest.mark.parametrize("suffix", ["tsv", "json", "jsonl", "parquet"])
def test_every_form_is_read_to_the_same(tmp_path: Path, suffix: str):
    rows = [row | {"output": f'{row["output"]}\nin two lines, "quoted"'} for row in own_rows()]
    one, other = read_recording(write(tmp_path / "t.csv", rows)), read_recording(write(tmp_path / f"t.{suffix}", rows))
    assert (list(one.questions.items()), one.models) == (list(other.questions.items()), other.models)
    for name in ("outputs", "correct", "prompt_tokens", "completion_tokens", "cost_usd", "seconds"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    assert one.outputs[0, 0].endswith('}\nin two lines, "quoted"')


def test_empty_texts_are_empty_and_no_word(tmp_path: Path):
    for suffix in ("csv", "jsonl", "parquet"):
        rows = own_rows()
        rows[2]["output"] = "" if suffix != "parquet" else None
        found = read_recording(write(tmp_path / f"t.{suffix}", rows))
        assert found.answer(OWN[MODELS[2]], "q0").output == ""


@pytest.mark.parametrize("column", ["question", "model", "output", "correct"])
def test_a_needed_column_with_another_name_is_refused_by_name(tmp_path: Path, column: str):
    file = write(tmp_path / "t.csv", renamed(own_rows(), **{column: "renamed"}))
    refused(file, rf"has no column '{column}': rename the one that holds it .*; here are .*'renamed'")


def test_a_column_that_is_there_twice_or_under_two_names_is_refused(tmp_path: Path):
    rows = [row | {"second": row["output"]} for row in own_rows()]
    names = list(rows[0])
    twice = write(tmp_path / "a.csv", rows, [*names[:-1], "output"])
    refused(twice, "has the column 'output' twice: remove one")
    both = write(tmp_path / "b.csv", rows, [*names[:-1], "response"])
    refused(both, "two columns that mean 'output', 'output' and 'response': remove one")


def test_costs_that_nobody_knows_are_refused_and_never_free(tmp_path: Path):
    cases: dict[str, tuple[Callable[[int, Row], Row], int]] = {
        "renamed": (lambda number, row: renamed([row], cost="dollars")[0], QUESTIONS),
        "empty": (lambda number, row: row | {"cost": None}, QUESTIONS),
        "some": (lambda number, row: row | ({"cost": ""} if number < 3 * len(MODELS) else {}), 3),
    }
    for name, (change, count) in cases.items():
        rows = [change(number, row) for number, row in enumerate(own_rows())]
        refused(
            write(tmp_path / f"{name}.csv", rows),
            f"empty or missing for {count} of {QUESTIONS} answers of house-0, which the price list",
        )
    found = read_recording(write(tmp_path / "t.csv", [row | {"cost": None} for row in own_rows()]))
    with pytest.raises(MissingPrice):
        found.cost(PriceList("none", "2026", "", {}))
    known = PriceList("all", "2026", "", {model: Price(output=1.0) for model in found.models})
    refuse_missing_costs(found, known, found.models)


@pytest.mark.parametrize("column", ["question", "answer", "family"])
def test_an_id_of_two_questions_is_refused_with_both_rows(tmp_path: Path, column: str):
    rows = own_rows()
    rows[6][column] = "another"
    refused(write(tmp_path / "t.csv", rows), rf"line 8: the id 'q1' has another {column} than in .*line 6: give each")


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("cost", "1e308", "'cost' must be a number >= 0 and at most 100000, such as 1234.5, or empty, not '1e308'"),
        (
            "latency",
            "1e308",
            "'latency' must be a number >= 0 and at most 1000000, such as 1234.5, or empty, not '1e308'",
        ),
        ("latency", "nan", "'latency' must be a number"),
        ("tokens", "1e300", "'tokens' must be a whole number"),
        ("tokens", "1.234", "'tokens' must be a whole number .*, such as 1234, or empty, not '1.234'"),
        ("correct", "", "it has no 'correct'"),
        ("id", "", "it has no 'id'"),
        ("correct", "perhaps", "'correct' must be true, false or a score from 0 to 1"),
        ("cost", "-1", "'cost' must be a number >= 0"),
        ("model", "", "it has no 'model'; the column is called model or model_name"),
        ("correct", "2", "'correct' must be true, false or a score from 0 to 1, not '2'"),
    ],
)
def test_a_value_out_of_range_is_one_sentence_with_its_line(tmp_path: Path, column: str, value: str, said: str):
    rows = own_rows()
    rows[5][column] = value
    for file in (write(tmp_path / "t.csv", rows), write(tmp_path / "t.tsv", rows)):
        refused(file, f"line 7: {said}")
    refused(write(tmp_path / "t.jsonl", rows), f"line 6: {said}")


def test_the_start_tells_what_was_read_and_how_many_rows_are_estimated(tmp_path: Path, capsys):
    rows = [row | {"note": "x"} for row in renamed(own_rows(), output="response", prompt_tokens="asked")]
    for row in rows[:12]:
        row["latency"] = None
    rows[3]["response"] = ""
    world(write(tmp_path / "log.csv", rows))
    count, right = len(rows), sum(bool(row["correct"]) for row in rows)
    assert capsys.readouterr().out.splitlines() == [
        f"Recorded answers of log.csv: {count} answers of 4 models to {QUESTIONS} questions.",
        "  read: question, model, output (here response), correct, id, family, answer, tokens, cost, latency",
        "  not read: asked, note",
        f"  estimated: prompt_tokens in {count} of {count} rows (3.6 characters count as one)",
        f"  estimated: latency in 12 of {count} rows (tokens at the price list's speed, or 60 a second)",
        f"  empty output: 1 of {count} rows; an empty answer is what the model says",
        f"  as read: {right} of {count} answers right; 0.001 dollars a call; 2 seconds; 2 to 4 tokens in; 10 to 49 out",
        "  cost: as recorded for 4 models that the price list recorded-2024 does not have",
    ]
    listed = [row | {"cost": 0.5} if row["model"] == HOUSE else row for row in made_rows()[:-1]]
    world(write(tmp_path / "listed.jsonl", listed))
    said = capsys.readouterr().out
    told = f"  left out: 1 questions that some model has not answered ('{HOUSE}' has answered 39 of 40 questions)\n"
    assert told in said
    assert f"  cost: by the price list recorded-2024 for {STRONG}, " in said
    assert "; as recorded for 1 models that the price list recorded-2024 does not have" in said


def test_a_table_of_ones_own_needs_no_option_but_its_path(tmp_path: Path):
    environment = world(write(tmp_path / "log.csv", own_rows()))
    assert set(environment.offers) == {TRAIN, EVAL}
    (task, *_) = environment.held_out(9)
    assert set(task.extra["instance"]["tools"].values()) == {f"generalist/{name}" for name in OWN.values()}
    assert unseen_recorded(environment, config(str(tmp_path))) == {}
    with_code = world(write(tmp_path / "code.csv", [row | {"cost": 0.001} for row in made_rows()]))
    assert "python" in with_code.held_out(9)[0].extra["instance"]["tools"].values()


def test_recorded_dollars_that_a_price_list_replaces_are_told(tmp_path: Path, capsys):
    world(write(tmp_path / "log.csv", [row | {"cost": 0.5} for row in made_rows()]))
    said = capsys.readouterr().out
    found = re.search(
        r"  cost: by the price list recorded-2024 for [^;]*, and not as recorded, which is (\d+) times that; as "
        "recorded for 1 models",
        said,
    )
    listed, usd = (
        [row for row in made_rows() if row["model"] != HOUSE],
        price_files.load(CONF / "pricing/recorded.yaml"),
    )
    spent = sum(
        usd.cost(row["model"], prompt_tokens=row["prompt_tokens"], completion_tokens=row["tokens"]) for row in listed
    )
    assert int(found[1]) == pytest.approx(0.5 * len(listed) / spent, rel=0.01)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("python", "'python' is called as the sandbox on menus: rename it in the table"),
        ("orchestrator", "'orchestrator' is called as the policy on menus"),
        ("house 1", "called as the model 'house[ -]1' on menus"),
    ],
)
def test_a_recorded_model_has_a_name_of_its_own(tmp_path: Path, model: str, said: str):
    rows = [row | {"model": model} if row["model"] == OWN[STRONG] else row for row in own_rows()]
    refused(write(tmp_path / "t.csv", rows), said)


def test_answers_that_never_equal_their_reference_are_refused_and_some_are_told(tmp_path: Path, capsys):
    rows = own_rows()
    refused(
        write(tmp_path / "t.csv", [row | {"output": "see the log"} for row in rows]),
        r"109 of 109 answers of env\.options\.path that are marked as correct differ from their",
    )
    right = [row for row in rows if row["correct"]]
    for row in right[:11]:
        row["output"] = "see the log"
    refused(write(tmp_path / "t.csv", rows), r"11 of 109 answers of .* and would count as wrong: .* leave 'answer' out")
    refused(
        write(tmp_path / "t.csv", [row | {"correct": False} for row in rows]),
        r"No answer of env\.options\.path is marked as correct, .*: check the column",
    )
    rows = own_rows()
    right = [row for row in rows if row["correct"]]
    right[0]["output"] = "see the log"
    world(write(tmp_path / "t.csv", rows))
    told = f"  1 of {len(right)} answers that are marked as correct count as wrong here, such as 'see the log' for '"
    assert (told in capsys.readouterr().out) is (len(right) <= 100)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"question,model,output,correct\n", "has no rows"),
        (b"question,model,output,correct\na,b\n", "cannot be read: CSV parse error"),
        (b"question,model,output,correct\n\xff,b,c,1\n", "cannot be read: it is not UTF-8: save it in this encoding"),
        ("question,model,output,correct\na,b,c,1\n".encode("utf-16"), "cannot be read: it is not UTF-8"),
        (b"question,model," + b"x" * 140_000, "cannot be read: field larger than"),
        (b"", "has no rows"),
        (b"question;model;output;correct\n", "line, separated by commas, and not 'question;model;output;correct': s"),
        (b"sep=,\nquestion,model,output,correct\n", "separated by commas, and not 'sep=,': save it so"),
    ],
)
def test_what_is_no_table_is_one_sentence(tmp_path: Path, content: bytes, said: str):
    (tmp_path / "t.csv").write_bytes(content)
    refused(tmp_path / "t.csv", said)


@pytest.mark.parametrize(
    ("suffix", "opened"), [("tsv", '"Yes, he'), ("csv", '"so \\"sure\\""'), ("csv", '"never closed')]
)
def test_a_quote_that_does_not_end_its_field_takes_no_rows(tmp_path: Path, suffix: str, opened: str):
    """Two such quotes once made one text of the rows between them, which then were gone."""
    file = write(tmp_path / f"t.{suffix}", [row | {"output": "OUTPUT"} for row in own_rows()])
    lines = file.read_text().splitlines()
    for number in (5, 9):
        lines[number] = lines[number].replace("OUTPUT", opened)
    file.write_text("\n".join(["\ufeff" + lines[0], *lines[1:]]), encoding="utf-8")
    said = re.escape(f"t.{suffix}', line 6: {opened[:6]!r}"[:-1])
    refused(file, rf"{said}.* begins with a quote that does not end the field: put the field")
    lines[5], lines[9] = (lines[number].replace(opened, '"Say ""yes"",\n""so"""') for number in (5, 9))
    file.write_text("\r\n".join(lines))
    found = read_recording(file)
    assert found.outputs.size == len(own_rows())
    assert (found.outputs == 'Say "yes",\n"so"').sum() == 2


def test_a_damaged_parquet_file_is_one_sentence(tmp_path: Path):
    whole = write(tmp_path / "t.parquet", own_rows()).read_bytes()
    for content in (b"", whole[:200], whole[:4] + bytes(40) + whole[44:], whole[:-8] + bytes(4) + whole[-4:]):
        (tmp_path / "t.parquet").write_bytes(content)
        refused(tmp_path / "t.parquet", r"^'[^\n]*t\.parquet' cannot be read: [^\n]+$")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = write(tmp_path / "t.csv", own_rows())
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    refused(file, r"Reading 't.csv' needs pyarrow: pip install 'orchestra-jax\[data\]'")


def test_a_wide_table_of_commas_drops_questions_that_some_model_has_not_answered(tmp_path: Path):
    names = ["sample_id", "prompt", "a", "a|model_response", "a|total_cost", "d", "d|model_response", "d|total_cost"]
    rows = [["q1", "One?", 1, "x", 0.25, 0.0, "y", ""], ["q2", "Two?", 1, "x", 0.25, 0.0, "", ""]]
    file = write(tmp_path / "t.csv", [dict(zip(names, row, strict=True)) for row in rows])
    found = read_recording(file)
    assert (list(found.questions), found.models) == (["q1"], ("a", "d"))
    least = "'d' has answered 1 of 2 questions"
    assert f"  left out: 1 questions that some model has not answered ({least})" in found.notes
    with pytest.raises(ConfigError, match="empty or missing for 1 of 1 answers of d"):
        refuse_missing_costs(found, PriceList("none", "2026", "", {}), found.models)
    without = [
        {name: value for name, value in row.items() if name != "d"} for row in (dict(zip(names, rows[0], strict=True)),)
    ]
    with pytest.raises(ValueError, match="has no column 'd'"):
        read_recording(write(tmp_path / "without.csv", without))


@pytest.mark.parametrize("name", ["t.csv.gz", "t.CSV", "t.xlsx", "t.ndjson", "t"])
def test_another_ending_is_refused_with_those_that_are_read(tmp_path: Path, name: str):
    write(tmp_path / "t.csv", own_rows()).rename(tmp_path / name)
    refused(
        tmp_path / name, rf"{name}' must end in .csv, .tsv, .json, .jsonl or .parquet: unpack or rename it, or save"
    )


def test_a_bad_row_beside_a_very_long_prompt_is_one_sentence(tmp_path: Path):
    rows = [row | {"question": f"{row['question']}{'x' * 140_000}"} for row in own_rows()[:8]]
    rows[5]["cost"] = "free"
    refused(write(tmp_path / "t.csv", rows), r"t.csv', row 6: 'cost' must be a number >= 0 .*, not 'free'")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("question", [{"role": "user", "content": "Say 2."}]),
        ("output", ["2", "3"]),
        ("question", {"messages": [{"role": "user", "content": "Say 2."}]}),
        ("question", '[{"role": "user", "content": "Say 2."}]'),
        ("question", "{'messages': [[{'role': 'user', 'conte"),
    ],
)
def test_a_list_where_a_text_belongs_is_refused(tmp_path: Path, column: str, value: object, suffix: str):
    rows = [row | {column: value} for row in own_rows()]
    refused(
        write(tmp_path / f"t.{suffix}", rows),
        rf"t.{suffix}'.*: '{column}' must be one text, not a list: of messages, wri",
    )
    unread = write(tmp_path / f"u.{suffix}", [row | {"messages": value} for row in own_rows()])
    assert len(read_recording(unread).questions) == QUESTIONS


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_list_of_references_is_several_and_a_text_in_a_list_one(tmp_path: Path, suffix: str):
    rows = [row | {"answer": [row["answer"], "other"], "output": [row["output"]]} for row in own_rows()]
    found = read_recording(write(tmp_path / f"t.{suffix}", rows))
    assert found.questions["q1"].answer == ("3", "other")
    assert found.answer(OWN[STRONG], "q2").answer == "4"


def test_lists_of_other_writers_are_read_and_durations_refused(tmp_path: Path):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist([row | {"latency": None} for row in own_rows()])
    several = pyarrow.array([["3", "three"]] * len(table), pyarrow.large_list(pyarrow.large_string()))
    table = table.set_column(table.column_names.index("answer"), "answer", several)
    parquet.write_table(table, tmp_path / "t.parquet")
    assert read_recording(tmp_path / "t.parquet").questions["q1"].answer == ("3", "three")
    taken = pyarrow.array([1500] * len(table), pyarrow.duration("ms"))
    parquet.write_table(table.set_column(table.column_names.index("latency"), "latency", taken), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", r"t.parquet': 'latency' holds durations: write them as numbers of seconds")


def test_ids_of_calls_are_told_apart_from_models_with_few_answers(tmp_path: Path):
    rows = [row | {"id": f"call-{number}"} for number, row in enumerate(own_rows())]
    said = (
        rf"each id has one answer alone, as ids of calls have, while {len(rows)} rows ask {QUESTIONS} questions; leave"
    )
    refused(write(tmp_path / "t.csv", rows), said)
    blank = [
        row | {"id": None, "question": f"{row['question']}{' ' * (number % 2)}"} for number, row in enumerate(rows)
    ]
    refused(
        write(tmp_path / "s.csv", [{name: row[name] for name in row if name != "id"} for row in blank]),
        rf"model: {QUESTIONS} questions are written in {2 * QUESTIONS} ways, by blan",
    )
    alone = [row for number, row in enumerate(own_rows()) if number % len(MODELS) == number // len(MODELS) % 4]
    refused(
        write(tmp_path / "u.csv", alone), r"leave some models out .4 models; 'house-0' has answered 10 of 40 questions"
    )


@pytest.mark.parametrize("other", ["House-0", "house-0 "])
def test_two_spellings_of_a_model_are_refused_and_it_is_not_left_out(tmp_path: Path, other: str):
    rows = [row | {"model": other} if row["model"] == "house-0" and row["id"] > "q2" else row for row in own_rows()]
    refused(write(tmp_path / "t.csv", rows), f"has the models 'house-0' and '{other}': write a model in the same way")


def test_a_model_that_costs_most_questions_is_told(tmp_path: Path):
    rows = [row for row in own_rows() if row["model"] != "house-0" or row["id"] < "q2"]
    found = read_recording(write(tmp_path / "t.csv", rows))
    least = f"'house-0' has answered {len(found.questions)} of {QUESTIONS} questions"
    assert found.notes[-3:-1] == (
        f"  left out: {QUESTIONS - len(found.questions)} questions that some model has not answered ({least})",
        f"  {len(found.questions)} questions are kept; without the rows of 'house-0' {QUESTIONS} would be",
    )
    few = read_recording(write(tmp_path / "u.csv", own_rows()[1:]))
    assert not [note for note in few.notes if "without the rows" in note]


def test_rows_that_are_there_twice_are_counted(tmp_path: Path):
    rows = own_rows()
    said = r"line 162: .* has answered 'q0' twice, and 2 more rows are such: keep one of each\."
    refused(write(tmp_path / "t.csv", [*rows, *rows[:3]]), said)


def test_a_kind_for_each_question_leaves_no_split_and_the_sentence_names_the_column(tmp_path: Path):
    rows = [row | {"family": row["id"]} for row in own_rows()]
    refused(
        write(tmp_path / "t.csv", rows),
        r"few questions of each kind .40 kinds of 40 questions.: none .* leave out the column of kinds",
    )
    refused(
        write(tmp_path / "u.csv", own_rows()[4:8] + own_rows()[8:12] + own_rows()[12:16]),
        "few questions in all: none is left for the validation split; bring more",
    )


def test_questions_of_training_under_another_id_do_not_judge(tmp_path: Path, capsys):
    plain = world(write(tmp_path / "t.csv", own_rows()))
    (seen, judged), copy = (plain.splits[split][0] for split in ("train", "test")), own_rows()
    questions = {str(row["id"]): str(row["question"]) for row in copy}
    for row in copy:
        if row["id"] == judged:
            row["question"] = f" {questions[seen].upper()}"
    capsys.readouterr()
    environment = world(write(tmp_path / "u.csv", copy))
    assert environment.splits == {**plain.splits, "test": plain.splits["test"][1:]}
    told = "  left out: 1 held-out questions, whose text is that of a question of training\n"
    assert told in capsys.readouterr().out
    same = [row | {"question": "Say it."} for row in own_rows()]
    refused(
        write(tmp_path / "v.csv", same), r"Every question of the validation split of env.options.path has the text of"
    )


def test_answers_marked_as_wrong_that_equal_their_reference_are_told(tmp_path: Path, capsys):
    rows = own_rows()
    wrong = [row for row in rows if not row["correct"]]
    wrong[0]["output"] = wrong[0]["answer"]
    world(write(tmp_path / "t.csv", rows))
    told = f"  1 of {len(wrong)} answers that are marked as wrong count as right here, such as "
    assert told in capsys.readouterr().out


def test_answers_of_every_kind_are_checked(tmp_path: Path, capsys):
    """The last kind of a long table has references in a form that no answer has."""
    made = []
    for number in range(1100):
        late = number >= 1050
        asked = {"question": f"Say {number}.", "family": "late" if late else "early", "cost": 0.001, "correct": True}
        answer = {"answer": f"see {number}" if late else str(number), "output": str(number)}
        made += [{**asked, **answer, "model": f"house-{name}"} for name in "abcd"]
    world(write(tmp_path / "t.jsonl", made))
    assert re.search(
        r"  \d+ of 2000 checked answers that are marked as correct count as wrong here, such as '1\d{3}' for 'see 1",
        capsys.readouterr().out,
    )


@pytest.mark.skipif("ORCHESTRA_DATA" not in os.environ, reason="needs ORCHESTRA_DATA")
def test_the_public_answers_hold_models_and_prices_back(capsys):
    environment = world(Path(os.environ["ORCHESTRA_DATA"]) / "recorded" / "zeroeval")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "Recorded answers of zeroeval: 57840 answers of 24 models to 2410 questions."
    assert said[1] == "  estimated: prompt_tokens in 57840 of 57840 rows (3.6 characters count as one)"
    assert said[-1] == "  cost: by the price list recorded-2024 for 24 models"
    assert set(environment.offers) == {TRAIN, EVAL, UNSEEN, PRICES}
    assert len(environment.posed(UNSEEN, 1)[0].extra["instance"]["tools"]) == 7  # six models and the sandbox
