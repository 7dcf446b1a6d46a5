"""A user's own log becomes a policy, a table and a verdict by the commands of docs/recorded.md."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.envs.recorded.options import next_step
from tests.envs.recorded.made import MODELS, config, made_rows, write

ROOT = Path(__file__).parents[3]
FEW_STEPS = (
    "steps=1", "model.family=tests.training.micro:OneLayer", "algorithm.tasks_per_step=3", "algorithm.group_size=4",
    "warm_start.steps=2", "warm_start.demonstrations=8", "warm_start.batch_size=2", "warm_start.check_every=2",
)  # fmt: skip
VERDICT = (  # of a policy that has hardly learned, and may ask for so little that the unit is 1,000 questions
    r"^On 30 questions that training has not seen: [\d.]+ % right at [\d.]+ cents(; your best model alone \(large\): "
    r"86\.7 % at \.278| per 1,000 questions; your best model alone \(large\): 86\.7 % at 278)\. "
    r"(Less|More|As) often right"
)


def command(start: str) -> list[str]:
    """The words of the one command of docs/recorded.md that begins so."""
    page = (ROOT / "docs" / "recorded.md").read_text()
    (found,) = (line for line in re.findall(r"^python (?:.*\\\n)*.*$", page, re.M) if start in line)
    return [word for word in shlex.split(found.partition("#")[0]) if word.strip()]


def test_without_a_table_a_sentence_tells_how_to_name_one():
    assert RecordedEnvironment.problems(config("")) == [
        "No recorded answers are named: add path=FILE, a table with a row for each question and model "
        "(docs/recorded.md)."
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_log_without_code_has_no_sandbox_and_menus_of_its_few_models(table: Path, count: int):
    rows = [row | {"cost": 0.01} for row in made_rows() if row["family"] == "sum" and row["model"] in MODELS[:count]]
    write(table, rows)
    cfg = compose("+experiment=my_logs", f"env.options.path={table}")
    assert "python" in cfg.tools.menu.always
    environment = RecordedEnvironment(cfg)
    offered = [task.extra["instance"]["tools"].values() for task in [*next(environment.train_tasks(6))]]
    offered += [task.extra["instance"]["tools"].values() for task in environment.held_out(99)]
    for menu in offered:
        assert sorted(key for key in menu if key.startswith("generalist/")) == sorted(
            f"generalist/{model}" for model in MODELS[:count]
        )
        assert "python" not in menu


def test_training_has_the_prices_of_the_list_that_is_named(table: Path):
    for words, name in (((), "recorded-2024"), (("pricing.name=recorded_swapped",), "recorded-swapped")):
        cfg = compose("+experiment=my_logs", f"env.options.path={table}", "env.options.python=false", *words)
        environment = RecordedEnvironment(cfg)
        trained, judged = next(environment.train_tasks(3)), environment.held_out(3)
        assert {task.extra["instance"]["prices"]["list"] for task in [*trained, *judged]} == {name}


def test_both_splits_that_are_not_trained_on_judge_if_asked(table: Path):
    environment = RecordedEnvironment(config(str(table), python=False, evaluate="both"))
    asked = {task.id for task in environment.held_out(99)}
    assert asked == {*environment.splits["validation"], *environment.splits["test"]}
    with pytest.raises(ConfigError, match="evaluate must be one of validation, test, both, not train"):
        RecordedEnvironment(config(str(table), evaluate="train"))


def test_the_next_step_judges_the_run_on_another_table(table: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(table.parent)
    cfg = replace(config(str(table)), output_dir=str(table.parent / "outputs" / "my_logs"))
    assert next_step(cfg).endswith("evaluate.py policy=outputs/my_logs env.options.test_path=FILE")
    assert RecordedEnvironment(cfg).rival == ("best", next_step(cfg))
    assert next_step(replace(cfg, policy="outputs/other")).count("policy=outputs/other ") == 1
    assert next_step(config(str(table), test_path=str(table))) == ""


def test_a_run_does_not_go_on_with_a_log_that_has_grown(table: Path, tmp_path: Path):
    folder = tmp_path / "run"
    cfg = replace(config(str(table), python=False), output_dir=str(folder))
    RecordedEnvironment(cfg).train_tasks(1)
    assert not folder.exists()
    folder.mkdir()
    RecordedEnvironment(cfg).train_tasks(1)
    rows = made_rows()
    write(table, [*rows, *(row | {"id": f"{row['id']}, next week", "question": f"{row['question']}!"} for row in rows)])
    RecordedEnvironment(cfg)  # nothing is trained yet
    meta = folder / "checkpoints" / "000001" / "meta"
    meta.mkdir(parents=True)
    (meta / "metadata").write_text("{}")
    with pytest.raises(ConfigError, match=r"path has other rows than when this run began.*test_path=FILE"):
        RecordedEnvironment(cfg)
    RecordedEnvironment(replace(cfg, policy=str(folder)))
    RecordedEnvironment(replace(cfg, output_dir=str(tmp_path / "another")))
    write(table, rows)
    RecordedEnvironment(cfg)


@pytest.mark.slow
@pytest.mark.skipif("ORCHESTRA_DATA" not in os.environ, reason="needs ORCHESTRA_DATA")
def test_a_log_of_300_rows_becomes_a_verdict_and_next_weeks_log_another(tmp_path: Path):
    def run(*words: str) -> str:
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        start = [sys.executable, *(str(ROOT / word) if word.startswith("experiments/") else word for word in words)]
        done = subprocess.run(start, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    for start in ("own_log log.csv", "own_log next.csv"):
        assert run(*command(start)[1:]).endswith("has 300 rows.\n")
    said = run(*command("+experiment=my_logs")[1:], *FEW_STEPS)
    for name in ("expert/large", "expert/tiny", "cascade", "oracle", "random", "after"):
        assert name in said
    *_, verdict, last = said.splitlines()
    assert re.match(VERDICT, verdict)
    assert last.endswith("experiments/evaluate.py policy=outputs/my_logs env.options.test_path=FILE")
    folder = tmp_path / "outputs" / "my_logs"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["after"]["verdict"] == f"{verdict}\n{last}"
    assert summary["baselines"]["oracle"]["cost"] <= summary["baselines"]["best"]["cost"]
    assert (folder / "accuracy_cost.png").exists()
    again = run(*command("policy=outputs/my_logs")[1:])
    assert again.splitlines()[-1].startswith("On 75 questions that training has not seen: ")
    assert "Recorded answers of next.csv: 300 answers of 4 models to 75 questions." in again
