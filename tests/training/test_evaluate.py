"""A policy on its benchmarks without training: the figures are those of the run that exported it."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from orchestra_jax.engines.base import Engine
from orchestra_jax.engines.sglang.pool import NoServer
from orchestra_jax.models.sharding import make_mesh
from orchestra_jax.processes.lock import FILE_NAME, alone_in
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.training.evaluate import evaluate
from orchestra_jax.training.evaluation_progress import ShownEvaluator
from orchestra_jax.training.main import run
from orchestra_jax.training.policy_weights import fingerprint
from orchestra_jax.training.summary import report
from orchestra_jax.types import Task, Trajectory
from tests.training.test_trainer import MICRO, complaints, config, reference, summary

__all__ = ["reference"]  # a fixture: the run is made once for both files


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tasks each collection was given."""
    found: list[int] = []
    collect = Collector.collect

    async def counted(self: Collector, engine: Engine, tasks: Sequence[Task], **options: Any) -> list[Trajectory]:
        found.append(len(tasks))
        return await collect(self, engine, tasks, **options)

    monkeypatch.setattr(Collector, "collect", counted)
    return found


def test_the_exported_policy_is_evaluated_without_training(reference: Path, asked: list[int]):
    shutil.rmtree(reference / "evaluation" / "trajectories" / "policy", ignore_errors=True)
    evaluate(config(reference, *MICRO))
    assert asked
    assert all(asked)
    once = (reference / "evaluation" / "summary.json").read_text()
    asked.clear()
    evaluate(config(reference, *MICRO, f"policy={reference}"))  # the same policy: what is there is taken over
    assert not any(asked)
    assert (reference / "evaluation" / "summary.json").read_text() == once
    found, run_figures = json.loads((reference / "evaluation" / "summary.json").read_text()), summary(reference)
    assert found["policy"] == str(reference / "policy")
    assert found["benchmarks"]["held_out"] == run_figures["after"]
    assert found["benchmarks"]["preference_swap"] == run_figures["preference_swap"]["after"]
    assert found["baselines"] == run_figures["baselines"]


def test_an_evaluation_of_a_run_goes_on_after_a_kill(reference: Path, tmp_path: Path, asked: list[int]):
    """The run was killed when a part of the evaluation after its last step was done."""
    shutil.copytree(reference, tmp_path, dirs_exist_ok=True)
    (tmp_path / "summary.json").unlink()
    left = []
    for file in sorted((tmp_path / "evaluation" / "trajectories" / "after").iterdir()):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[:-2]) + lines[-2][:40])
        left.append(2)
    run(config(tmp_path, *MICRO, "checkpoint.export=false"))
    assert [number for number in asked if number] == left
    for key in ("before", "after", "preference_swap", "baselines"):
        assert summary(tmp_path)[key] == summary(reference)[key]


def test_a_baseline_is_evaluated_like_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[int]):
    limits = ("evaluation.limit=4", "evaluation.benchmarks=[held_out]", "model.path=null")
    evaluate(config(tmp_path, *MICRO, *limits, "policy=baseline:strongest_expert"))
    found = json.loads((tmp_path / "evaluation" / "summary.json").read_text())
    assert found["policy"] == "baseline:strongest_expert"
    figures = found["baselines"]["strongest_expert"]
    assert {key: found["benchmarks"]["held_out"][key] for key in figures} == figures
    told = capsys.readouterr().out
    assert re.search(r"^evaluation 4/4  eta 0:00:00  \$ ", told, re.MULTILINE)
    assert "do nothing" in told
    kept = tmp_path / "evaluation" / "trajectories"
    assert sorted(file.relative_to(kept).as_posix() for file in kept.glob("*/*")) == [
        "do_nothing/held_out.t1.jsonl",
        "policy/held_out.t1.jsonl",
    ]
    assert not asked  # nobody was asked for tokens


def test_an_evaluation_whose_servers_are_gone_ends_in_a_sentence(tmp_path: Path, monkeypatch, capsys):
    async def gone(*args: Any, **options: Any) -> list[Trajectory]:
        raise NoServer("No SGLang server was ready for 720 s: http://b:30000: It did not answer.")

    monkeypatch.setattr(Collector, "play", gone)
    limits = ("evaluation.limit=4", "evaluation.benchmarks=[held_out]", "model.path=null")
    with pytest.raises(SystemExit, match=r"^2$"):
        evaluate(config(tmp_path, *MICRO, *limits, "policy=baseline:strongest_expert"))
    assert complaints(capsys.readouterr().err) == [
        "No SGLang server was ready for 720 s: http://b:30000: It did not answer. The evaluation ended before its "
        "figures were known; with servers that answer the same command goes on from what was finished."
    ]


def test_a_stopped_evaluation_says_from_where_it_goes_on(tmp_path: Path, monkeypatch, capsys):
    def stopped(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ShownEvaluator, "evaluate", stopped)
    limits = ("evaluation.limit=4", "evaluation.benchmarks=[held_out]", "model.path=null")
    with pytest.raises(SystemExit, match=r"^130$"):
        evaluate(config(tmp_path, *MICRO, *limits, "policy=baseline:strongest_expert"))
    sentence = "Stopped at once; the same command goes on from what was finished."
    assert complaints(capsys.readouterr().err) == [sentence]
    starts = json.loads((tmp_path / "evaluation" / "run.json").read_text())["starts"]
    assert [start["outcome"] for start in starts] == ["stopped"]


def test_a_fingerprint_is_of_the_bits():
    mesh = make_mesh(fsdp=2, devices=jax.devices()[:2])
    tree = {"a": jnp.arange(12.0).reshape(4, 3) / 7, "b": jnp.ones((2, 2), jnp.bfloat16)}
    found = fingerprint(tree)
    split = NamedSharding(mesh, PartitionSpec("fsdp"))
    assert fingerprint(jax.device_put(tree, split)) == found
    others = [
        tree | {"a": tree["a"].at[3, 2].add(1e-6)},
        tree | {"a": tree["a"][::-1]},
        tree | {"a": tree["a"].T},
        tree | {"b": tree["b"].at[0, 0].set(-1)},
    ]
    assert len({found, *map(fingerprint, others)}) == 5


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((), "There is no policy to evaluate: set policy=FOLDER or policy=http://HOST:PORT/v1, or train first"),
        (("evaluation.questions=0",), "There is nothing to evaluate on"),
        (("model.path=nowhere",), "model.path=nowhere is not there"),
        (("policy=nowhere",), "policy=nowhere is neither a checkpoint"),
        (("policy=baseline:strong",), "policy=baseline:strong: there is none; here are random_tool, strongest_expert"),
        (("policy=http://127.0.0.1:9/v1",), "may serve several models: set evaluation.endpoint.model=NAME"),
    ],
)
def test_an_evaluation_without_policy_or_tasks_says_so(tmp_path: Path, capsys, overrides, sentence: str):
    (folder := tmp_path / "run").mkdir()
    with pytest.raises(SystemExit, match=r"^2$"):
        evaluate(config(folder, *MICRO, *overrides))
    assert sentence in capsys.readouterr().err
    assert not folder.exists()


def test_a_refused_evaluation_leaves_the_folder_of_another_that_has_just_begun(tmp_path: Path):
    (begun := tmp_path / "evaluation").mkdir()
    with alone_in(begun), pytest.raises(SystemExit, match="2"):
        evaluate(config(tmp_path, *MICRO, "policy=baseline:strong"))
    assert [file.name for file in begun.iterdir()] == [FILE_NAME]


def test_a_run_without_benchmarks_has_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    report({"name": "n", "before": {}, "after": {}, "baselines": {}, "preference_swap": {}}, tmp_path)
    assert capsys.readouterr().out.startswith(
        "Nothing was evaluated (evaluation.questions=0, or no evaluation.benchmarks). Learn"
    )
    assert json.loads((tmp_path / "summary.json").read_text())["name"] == "n"
