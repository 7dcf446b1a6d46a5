"""A policy on its benchmarks without training: the figures are those of the run that exported it."""

import json
from pathlib import Path

import pytest

from orchestra_jax.training.evaluate import evaluate
from tests.training.test_trainer import MICRO, config, reference, summary

__all__ = ["reference"]  # a fixture: the run is made once for both files


def test_the_exported_policy_is_evaluated_without_training(reference: Path):
    evaluate(config(reference, *MICRO))
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
