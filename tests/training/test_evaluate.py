"""A policy on its benchmarks without training: the figures are those of the run that exported it."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.engines.base import Engine
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.training.evaluate import evaluate
from orchestra_jax.types import Task, Trajectory
from tests.training.test_trainer import MICRO, config, reference, summary

__all__ = ["reference"]  # a fixture: the run is made once for both files


def test_the_exported_policy_is_evaluated_without_training(reference: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    collect = Collector.collect

    async def counted(self: Collector, engine: Engine, tasks: Sequence[Task], **options: Any) -> list[Trajectory]:
        asked.append(len(tasks))
        return await collect(self, engine, tasks, **options)

    monkeypatch.setattr(Collector, "collect", counted)
    shutil.rmtree(reference / "evaluation" / "trajectories" / "policy", ignore_errors=True)
    evaluate(config(reference, *MICRO))
    assert asked
    assert all(asked)
    once = (reference / "evaluation" / "summary.json").read_text()
    asked.clear()
    evaluate(config(reference, *MICRO))  # takes over what is there
    assert not any(asked)
    assert (reference / "evaluation" / "summary.json").read_text() == once
    found, run_figures = json.loads((reference / "evaluation" / "summary.json").read_text()), summary(reference)
    assert found["policy"] == str(reference / "policy")
    assert found["benchmarks"]["held_out"] == run_figures["after"]
    assert found["benchmarks"]["preference_swap"] == run_figures["preference_swap"]["after"]
    assert found["baselines"] == run_figures["baselines"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((), "There is no policy to evaluate: set model.path=FOLDER, or train first"),
        (("evaluation.questions=0",), "There is nothing to evaluate on"),
        (("model.path=nowhere",), "model.path=nowhere is not there"),
    ],
)
def test_an_evaluation_without_policy_or_tasks_says_so(tmp_path: Path, capsys, overrides, sentence: str):
    with pytest.raises(SystemExit) as stop:
        evaluate(config(tmp_path, *MICRO, *overrides))
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err
