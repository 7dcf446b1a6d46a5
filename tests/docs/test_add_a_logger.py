"""The logger of docs/add_a_logger.md, from a folder outside the repository."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.schema import LoggerConfig, RunConfig
from orchestra_jax.training.loggers.base import RunLog
from orchestra_jax.training.loggers.jsonl import read_metrics
from tests.docs.pages import begin_with


def test_the_example_is_used_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begin_with("add_a_logger.md", "my_logger.py", tmp_path, monkeypatch)
    cfg = replace(RunConfig(), output_dir=str(tmp_path), logger=LoggerConfig(names=["my_logger:SqliteLogger"]))
    with RunLog(cfg, 1) as log:
        for step in (1, 2, 3):
            log.log(step, {"accuracy": step / 4})
    with RunLog(cfg, 3) as log:
        log.log(3, {"accuracy": 1.0})
    database = sqlite3.connect(tmp_path / "metrics.db")
    rows = database.execute("SELECT step, value FROM figures WHERE name = 'accuracy' ORDER BY step").fetchall()
    database.close()
    assert rows == [(1, 0.25), (2, 0.5), (3, 1.0)]
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
