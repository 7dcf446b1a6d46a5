import json
import math
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.schema import ConfigError, LoggerConfig, RunConfig
from orchestra_jax.training.loggers.base import RunLog
from orchestra_jax.training.loggers.jsonl import read_metrics


def opened(folder: Path, first_step: int = 0) -> RunLog:
    return RunLog(replace(RunConfig(), output_dir=str(folder), logger=LoggerConfig(names=["jsonl"])), first_step)


def test_lines_are_written_and_read_back(tmp_path):
    with opened(tmp_path / "run") as log:
        log.log(0, {"reward": 0.5, "count": 3})
        assert read_metrics(tmp_path / "run" / "metrics.jsonl") == [
            {"step": 0, "reward": 0.5, "count": 3}
        ]  # flushed at once
        log.log(1, {"reward": jnp.float32(0.25), "loss": np.float64(2)})
    assert read_metrics(tmp_path / "run")[1] == {"step": 1, "reward": 0.25, "loss": 2.0}


def test_not_finite_values_stay_strict_json(tmp_path):
    with opened(tmp_path) as log:
        log.log(0, {"a": math.nan, "b": math.inf, "c": -jnp.inf})
    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    row = read_metrics(tmp_path)[0]
    assert math.isnan(row["a"])
    assert (row["b"], row["c"]) == (math.inf, -math.inf)


def test_resume_has_no_duplicates(tmp_path):
    with opened(tmp_path) as log:
        for step in range(5):
            log.log(step, {"x": step})
        log.log(2, {"late": 1.0})
    with opened(tmp_path, 3) as log:
        for step in range(3, 6):
            log.log(step, {"x": 10 * step})
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2, 2, 3, 4, 5]
    assert rows[-1] == {"step": 5, "x": 50}
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_torn_last_line_is_skipped_then_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "x": 1.0}\n{"step": 1, "x"')
    assert read_metrics(path) == [{"step": 0, "x": 1.0}]
    with opened(tmp_path, 1) as log:
        log.log(1, {"x": 2.0})
    assert read_metrics(path) == [{"step": 0, "x": 1.0}, {"step": 1, "x": 2.0}]


def test_a_broken_line_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\nnonsense\n{"step": 2}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl:2"):  # a run that goes on tells it in a sentence
        read_metrics(path)
    path.write_bytes(b'{"step": 0}\n\xff\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl:2"):
        read_metrics(path)
    path.write_bytes(b'{"step": 0}\n\xff\0')  # what a lost machine left of the last line
    with opened(tmp_path, 1) as log:
        log.log(1, {"x": 2.0})
    assert read_metrics(path) == [{"step": 0}, {"step": 1, "x": 2.0}]


def test_bad_metrics_are_refused_and_leave_no_line(tmp_path):
    with opened(tmp_path) as log:
        with pytest.raises(ValueError, match="'x' is not a single number"):
            log.log(0, {"x": np.zeros(2)})
        with pytest.raises(ValueError, match="another name"):
            log.log(0, {"step": 1.0})
    assert read_metrics(tmp_path) == []
