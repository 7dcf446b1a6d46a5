"""Loggers beside metrics.jsonl, and the names that choose them."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.schema import ConfigError, LoggerConfig, RunConfig
from orchestra_jax.training.loggers.base import RunLog, chosen
from orchestra_jax.training.loggers.jsonl import read_metrics


def run_with(folder: Path, *names: str) -> RunConfig:
    return replace(RunConfig(), output_dir=str(folder), logger=LoggerConfig(names=list(names)))


def test_tensorboard_events(tmp_path: Path):
    for value in (0.5, 0.75):
        with RunLog(run_with(tmp_path, "tensorboard"), 0) as log:
            log.log(0, {"reward": value})
    events = list((tmp_path / "tensorboard").iterdir())
    assert events
    assert all(event.stat().st_size > 0 for event in events)
    assert read_metrics(tmp_path) == [{"step": 0, "reward": 0.75}]  # always, and the first run's step is gone


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_is_said_before_anything_starts(monkeypatch, tmp_path: Path, name: str, package: str):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"orchestra_jax.training.loggers.{name}", raising=False)
    with pytest.raises(ConfigError, match=f"{package}.* not installed"):
        chosen(run_with(tmp_path, name))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_an_unknown_logger_names_its_neighbours(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"logger.names=tensorbord .*did you mean tensorboard"):
        chosen(run_with(tmp_path, "tensorbord"))


def test_a_resumed_run_continues_its_run_of_weights_and_biases(monkeypatch, tmp_path: Path):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    importlib.import_module("orchestra_jax.training.loggers.wandb")
    found = []
    for first in (1, 3):
        with RunLog(run_with(tmp_path, "wandb"), first) as log:
            log.log(first, {"reward/mean": 0.5})
            log.log(first + 1, {"reward/mean": float("nan")})
            run = wandb.run
            found.append((run.id, run.project, run.name, run.summary["step"]))
    assert found == [(found[0][0], "orchestra_jax", "quickstart", step) for step in (2, 4)]
    assert wandb.run is None
    records = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert [found[0][0] in record.name for record in records] == [True, True]
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3, 4]
