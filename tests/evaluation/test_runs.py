"""Runs side by side: real records and summaries in folders, read back into rows, CSV and a table."""

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import compare
from orchestra_jax.config.record import RunRecord, Start
from orchestra_jax.config.schema import RewardConfig, RunConfig
from orchestra_jax.evaluation.runs import load, over_seeds

ROOT = Path(__file__).resolve().parents[2]


def made(folder: Path, compute: float, summary: dict | None, *overrides: str, seed: int = 3) -> None:
    folder.mkdir(parents=True)
    cfg = replace(
        RunConfig(), name=folder.name, seed=seed, reward=RewardConfig(compute=compute), output_dir=str(folder)
    )
    with RunRecord(folder, cfg, "train", Start(overrides=overrides)) as record:
        record.begin()
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    after = {"accuracy": 0.5, "cost_per_correct": None, "tool_shares": {"all": {"python": 1.0}}}
    made(tmp_path / "a", 0.5, {"name": "a", "after": after, "spent": {"usd": 0.25}}, "reward.compute=0.5")
    made(tmp_path / "b", 1.0, None, "reward.outcome=1", "+experiment=hle", "rollout=sglang")
    (tmp_path / "b" / "evaluation").mkdir()
    (tmp_path / "b" / "evaluation" / "summary.json").write_text('{"benchmarks": {"held_out": {"accuracy": 0.75}}}')
    (tmp_path / "notes").mkdir()
    (tmp_path / "multirun.yaml").write_text("a sweep leaves this beside its runs")
    return tmp_path


def test_a_row_for_each_run_with_settings_seed_and_flat_figures(folder: Path):
    runs = load(folder / "*")
    assert [Path(row["run"]).name for row in runs] == ["a", "b"]
    a, b = runs
    assert (a["name"], a["seed"], a["steps"], a["outcome"], a["starts"]) == ("a", 3, 250, "done", 1)
    # What was given to one of them, as a value, also of the run that has it by default.
    assert [(row["reward.compute"], row["reward.outcome"]) for row in runs] == [(0.5, 1.0), (1.0, 1.0)]
    assert (b["experiment"], b["rollout="]) == ("hle", "sglang")
    assert (a["after.accuracy"], a["after.tool_shares.all.python"], a["spent.usd"]) == (0.5, 1.0, 0.25)
    assert a["after.cost_per_correct"] is None
    assert b["evaluation.benchmarks.held_out.accuracy"] == 0.75
    assert "after.accuracy" not in b
    assert not any(key in a for key in ("output_dir", "rollout.slots"))


def test_csv_is_empty_where_nothing_is_known(folder: Path):
    runs = load(folder / "a", folder / "b")
    rows = list(csv.DictReader(io.StringIO(runs.to_csv(folder / "runs.csv"))))
    assert (folder / "runs.csv").read_text() == runs.to_csv()
    assert list(rows[0]) == runs.columns
    assert [row["after.cost_per_correct"] for row in rows] == ["", ""]
    assert [row["after.accuracy"] for row in rows] == ["0.5", ""]


def test_a_frame_has_the_rows_or_says_what_is_missing(folder: Path):
    runs = load(folder / "*")
    try:
        import pandas  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="pip install pandas"):
            runs.frame()
    else:
        assert list(runs.frame()["reward.compute"]) == [0.5, 1.0]


def test_compare_shows_runs_beside_each_other(folder: Path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "experiments/compare.py", *arguments]
        return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)

    done = run(str(folder / "a"), str(folder / "b"))
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.split()}
    assert lines["reward.compute"] == ["0.5", "1"]
    assert lines["after.accuracy"] == ["0.5", "–"]
    assert lines["after.cost_per_correct"] == ["–", "–"]
    assert not any("tool_shares" in name for name in lines)
    made(folder / "c", 1.0, None, "+experiment=[hle,mine]")
    assert "[hle,mine]" in run(str(folder / "*")).stdout
    assert run(str(folder / "*"), "--csv", "-").stdout == load(folder / "*").to_csv()
    taken = run(str(folder / "*"), "--csv", str(folder))
    assert taken.stderr == f"'{folder}' cannot be written (Is a directory): name another file as --csv.\n"
    assert taken.returncode == 2
    (folder / "b" / "summary.json").write_text('{"after":')
    broken = run(str(folder / "*"))
    sentence = f"{str(folder / 'b' / 'summary.json')!r} is no JSON object: restore it, or run the evaluation again.\n"
    assert (broken.returncode, broken.stderr) == (2, sentence)
    nothing = run(str(folder / "notes"))
    assert (nothing.returncode, len(nothing.stderr.splitlines())) == (2, 1)


def test_seeds_of_one_setting_have_a_mean_and_an_interval(tmp_path: Path):
    for place, (compute, seed, accuracy) in enumerate(
        [(0.5, 0, 0.5), (0.5, 1, 0.7), (0.5, 2, 0.6), (0.5, 2, 0.1), (1.0, 0, 0.25), (1.0, 1, 0.35), (0.75, 0, 0.9)]
    ):
        after = {"accuracy": accuracy, "cost_per_correct": None if seed else 0.5, "verdict": "As often right."}
        made(tmp_path / str(place), compute, {"after": after}, f"reward.compute={compute}", seed=seed)
    made(tmp_path / "unfinished", 0.5, None, seed=5)
    (first, figures), (second, others) = over_seeds(load(tmp_path / "*"))
    assert first == "Seeds 0, 1, 2, reward.compute=0.5: mean, and Student's 95 % interval"
    assert second == "Seeds 0, 1, reward.compute=1.0: mean, and Student's 95 % interval"
    assert figures.keys() == others.keys() == {"after.accuracy"}  # no number of two seeds: what is null, what is words
    assert figures["after.accuracy"] == pytest.approx(
        (0.6, 0.6 - 4.302653 * 0.1 / 3**0.5, 0.6 + 4.302653 * 0.1 / 3**0.5)
    )
    assert others["after.accuracy"][0] == pytest.approx(0.3)
    assert list(over_seeds(load(tmp_path / "0", tmp_path / "4"))) == []
    assert [title for title, _ in over_seeds(load(tmp_path / "[01]"))] == [
        "Seeds 0, 1: mean, and Student's 95 % interval"
    ]


def test_compare_prints_the_seeds_below_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for seed, accuracy in enumerate((0.5, 0.75)):
        made(tmp_path / str(seed), 0.5, {"after": {"accuracy": accuracy, "intervals": {"accuracy": 1}}}, seed=seed)
    compare.main([f"{tmp_path}/*"])
    told = capsys.readouterr().out.partition("Seeds 0, 1: mean")[2]
    (line,) = [line.split() for line in told.splitlines() if line.startswith(("after", " after"))]
    assert line == ["after.accuracy", "0.625", "-0.96328", "2.2133"]
    compare.main([f"{tmp_path}/0"])
    assert "mean" not in capsys.readouterr().out
