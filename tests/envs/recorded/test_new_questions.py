"""`test_path`: all questions of another table, under the menus and with the knowledge of the table of training."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import hydra
import pytest

from orchestra_jax.config import cli, from_run
from orchestra_jax.config.checks import load
from orchestra_jax.config.compose import compose
from orchestra_jax.config.record import RunRecord, Start
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.recorded.environment import EVAL, RecordedEnvironment, unseen_recorded
from orchestra_jax.envs.recorded.environment import UNSEEN as UNSEEN_MENUS
from orchestra_jax.io.shipped import CONF
from tests.envs.recorded.made import CHEAP, HOUSE, MODELS, STRONG, UNSEEN, config, made_rows, write
from tests.envs.recorded.test_environment import called, play

FRESH = 12
Row = dict[str, object]


def new_rows() -> list[Row]:
    """Other sums under ids that the first table has too; only the cheap model and the unseen one are right."""
    rows = []
    for number in range(FRESH):
        for model in reversed(MODELS):
            right = model in (CHEAP, UNSEEN)
            rows.append(
                {
                    "id": f"q{number}", "family": "sum", "question": f"How much is {number} + 100?",
                    "answer": str(number + 100), "model": model, "correct": right, "tokens": 900, "prompt_tokens": 50,
                    "output": json.dumps({"answer": str(number + 100 if right else 0)}),
                    **({"cost": 0.5, "latency": 3.0} if model == HOUSE else {}),
                }
            )  # fmt: skip
    return rows


def both(table: Path, rows: Iterable[Row], **options: object) -> RecordedEnvironment:
    fresh = write(table.with_name("fresh.jsonl"), rows)
    return RecordedEnvironment(config(str(table), test_path=str(fresh), python=False, **options))


def test_all_new_questions_are_held_out_and_everything_known_is_of_the_first_table(table: Path):
    alone, environment = RecordedEnvironment(config(str(table), python=False)), both(table, new_rows())
    tasks = environment.held_out(1)  # all, whatever evaluation.questions says
    assert sorted(task.question for task in tasks) == sorted({str(row["question"]) for row in new_rows()})
    assert not {task.id for task in tasks} & set(alone.recording.questions)
    assert environment.evidence == alone.evidence
    assert sorted(spec.description for spec in tasks[0].tools) == sorted(
        spec.description for spec in alone.held_out(1)[0].tools
    )
    trained = [[(task.id, task.tools) for task in next(world.train_tasks(20))] for world in (alone, environment)]
    assert trained[0] == trained[1]


def test_calls_give_what_the_new_table_recorded_and_baselines_know_only_the_first(table: Path):
    environment = both(table, new_rows())
    tasks = environment.held_out(99)
    (row,) = called(environment, tasks[0], f"generalist/{HOUSE}").usage
    assert (row.cost_usd, row.completion_tokens) == (0.5, 900)
    # The strong model was best in training, and is wrong on all of these.
    assert play(environment, "best", tasks)[0] == 0.0
    assert play(environment, f"expert/{CHEAP}", tasks)[0] == 1.0
    assert play(environment, "oracle", tasks)[0] == 1.0
    parts = unseen_recorded(environment, config(str(table)))
    assert len(parts["unseen_models"]) == FRESH
    assert play(environment, f"expert/{CHEAP}", parts["unseen_prices"])[0] == 1.0


def test_a_kind_of_question_that_training_does_not_have_counts_as_the_mean(table: Path):
    environment = both(table, [row | {"family": "law"} for row in new_rows()])
    assert play(environment, "best_per_family", environment.held_out(99))[0] == 0.0
    assert environment.evidence[STRONG].share("law") == environment.evidence[STRONG].accuracy


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ([HOUSE], "lacks the model house/model 1, which menus offer: add the answers of this model"),
        ([STRONG, CHEAP], f"lacks the models {STRONG}, {CHEAP}, which menus offer: add the answers of these models"),
        (MODELS, f"lacks the models {STRONG}, {CHEAP}, {HOUSE}, which menus offer"),
    ],
)
def test_models_that_menus_offer_and_the_new_table_lacks_are_named(table: Path, lost: Iterable[str], said: str):
    rows = [row | {"model": f"other {row['model']}"} if row["model"] in lost else row for row in new_rows()]
    with pytest.raises(ConfigError, match=rf"^env\.options\.test_path=\S+fresh\.jsonl {said}[^\n]+$"):
        both(table, rows)


def test_further_models_and_unseen_ones_that_are_lacking_are_told(table: Path, capsys):
    # The further model has answered one question alone, which costs none of the others.
    rows = [row for row in new_rows() if row["model"] != UNSEEN]
    environment = both(table, [*rows, rows[0] | {"model": "newcomer"}])
    said = capsys.readouterr().out
    assert "  not read: answers of newcomer, which env.options.path does not have\n" in said
    assert f"  not offered: the model {UNSEEN}, of env.options.unseen, which env.options.test_path lacks\n" in said
    assert len(environment.held_out(99)) == FRESH
    assert UNSEEN_MENUS not in environment.offers
    assert EVAL in environment.offers


def test_questions_of_training_are_left_out_and_counted(table: Path, capsys):
    alone = RecordedEnvironment(config(str(table), python=False))
    learnt = {*alone.splits["train"], *alone.splits["validation"]}
    known = [row | {"id": f"again {row['id']}", "question": f" {row['question']}\n"} for row in made_rows()]
    environment = both(table, [*new_rows(), *known])
    assert f"  left out: {len(learnt)} of {40 + FRESH} questions, whose text is" in capsys.readouterr().out
    assert len(environment.held_out(99)) == FRESH + 40 - len(learnt)
    with pytest.raises(ConfigError, match="has no question that training has not seen: name another"):
        both(table, [row for row in known if str(row["id"]).removeprefix("again ") in learnt])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: row | {"cost": None}, f"'cost' of .*fresh.jsonl is empty or missing for {FRESH} of {FRESH} ans"),
        (lambda row: row | {"correct": 7}, r"fresh\.jsonl', line 1: 'correct' must be"),
        (lambda row: row | {"output": "no"}, r"of env\.options\.test_path that are marked as correct differ"),
        (lambda row: {k: v for k, v in row.items() if k != "output"}, r"fresh\.jsonl' has no column 'output'"),
        (lambda row: row | {"id": f"{row['id']} {row['model']}"}, r"No question of env\.options\.test_path"),
    ],
)
def test_the_new_table_is_checked_as_the_first(table: Path, change: Callable[[Row], Row], said: str):
    with pytest.raises(ConfigError, match=said):
        both(table, [change(row) for row in new_rows()])


def test_a_table_that_is_not_there_is_told_before_anything_starts(table: Path):
    cfg = config(str(table), test_path="nowhere.csv")
    assert RecordedEnvironment.problems(cfg) == [
        "No recorded answers at nowhere.csv: set env.options.test_path=FILE or FOLDER, or leave it out."
    ]


def test_an_evaluation_of_a_run_adds_the_new_table_to_what_the_run_records(table: Path, monkeypatch):
    monkeypatch.chdir(table.parent)
    run = table.parent / "run"
    (run / "policy").mkdir(parents=True)
    trained = ("+experiment=recorded", f"env.options.path={table}", "evaluation.questions=4")
    with RunRecord(run, compose(*trained), "train", Start()) as record:
        record.begin()
    words = from_run.in_its_folder([f"policy={run}", "env.options.test_path=fresh.jsonl"])
    cli.register()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        composed = hydra.compose("evaluate", words)
    found, home = from_run.settings(composed, words, "outputs/quickstart")
    options = load(found).env.options
    assert home == run
    assert (options["path"], options["test_path"]) == (str(table), "fresh.jsonl")
    assert "The command sets env.options.test_path." in from_run.told(found, words, run)
