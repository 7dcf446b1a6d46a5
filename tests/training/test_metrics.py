import io
import json
import math
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from orchestra_jax.training.metrics import MetricLogger, Progress, read_metrics


def test_lines_are_written_and_read_back(tmp_path):
    with MetricLogger(tmp_path / "run") as logger:
        logger.log(0, {"reward": 0.5, "count": 3})
        assert read_metrics(logger.path) == [{"step": 0, "reward": 0.5, "count": 3}]  # flushed at once
        logger.log(1, {"reward": jnp.float32(0.25), "loss": np.float64(2)})
    assert read_metrics(tmp_path / "run")[1] == {"step": 1, "reward": 0.25, "loss": 2.0}


def test_not_finite_values_stay_strict_json(tmp_path):
    with MetricLogger(tmp_path) as logger:
        logger.log(0, {"a": math.nan, "b": math.inf, "c": -jnp.inf})
    json.loads(logger.path.read_text(), parse_constant=pytest.fail)
    row = read_metrics(tmp_path)[0]
    assert math.isnan(row["a"])
    assert (row["b"], row["c"]) == (math.inf, -math.inf)


def test_resume_has_no_duplicates(tmp_path):
    with MetricLogger(tmp_path) as logger:
        for step in range(5):
            logger.log(step, {"x": step})
        logger.log(2, {"late": 1.0})
    with MetricLogger(tmp_path) as logger:
        logger.truncate_from(3)
        for step in range(3, 6):
            logger.log(step, {"x": 10 * step})
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2, 2, 3, 4, 5]
    assert rows[-1] == {"step": 5, "x": 50}
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_torn_last_line_is_skipped_then_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "x": 1.0}\n{"step": 1, "x"')
    assert read_metrics(path) == [{"step": 0, "x": 1.0}]
    with MetricLogger(tmp_path) as logger:
        logger.log(1, {"x": 2.0})
    assert read_metrics(path) == [{"step": 0, "x": 1.0}, {"step": 1, "x": 2.0}]


def test_a_broken_line_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\nnonsense\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2"):
        read_metrics(path)


def test_bad_metrics_are_refused_and_leave_no_line(tmp_path):
    with MetricLogger(tmp_path) as logger:
        with pytest.raises(ValueError, match="'x' is not a single number"):
            logger.log(0, {"x": np.zeros(2)})
        with pytest.raises(ValueError, match="another name"):
            logger.log(0, {"step": 1.0})
    assert read_metrics(tmp_path) == []


def test_tensorboard_events(tmp_path):
    pytest.importorskip("tensorboardX")
    with MetricLogger(tmp_path, tensorboard=True) as logger:
        logger.log(0, {"reward": 0.5})
        logger.truncate_from(0)
        logger.log(0, {"reward": 0.75})
    events = list((tmp_path / "tensorboard").iterdir())
    assert events
    assert all(event.stat().st_size > 0 for event in events)


def test_missing_tensorboard_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match="pip install tensorboardX"):
        MetricLogger(tmp_path, tensorboard=True)
    MetricLogger(tmp_path).close()


def test_progress_prints_plain_lines_without_a_terminal():
    out, seconds = io.StringIO(), iter([0.0, 40.0, 50.0, 60.0, 70.0, 80.0])
    console = Console(file=out, force_terminal=False)
    with Progress(9, start=4, every=3, console=console, clock=lambda: next(seconds)) as progress:
        for done in range(5, 8):
            progress.update(done, {"reward": 0.5, "cost": 0.0123})
        progress.phase("[update]")
        progress.update(8)
        progress.update(9, {"reward": 1.0})
    assert out.getvalue().splitlines() == [
        "train 6/9  eta 0:01:15  reward 0.5  cost 0.0123",  # 50 s for 2 steps, 3 are left
        "[update] 9/9  eta 0:00:00  reward 1",
    ]


def test_progress_draws_on_a_terminal():
    out = io.StringIO()
    with Progress(4, phase="rollout", console=Console(file=out, force_terminal=True, width=120)) as progress:
        progress.update(1, {"reward": 0.5})
        progress.phase("update")
        progress.print("saved [step 1]")
        progress.update(4, {"accuracy": 0.75})
    text = out.getvalue()
    assert all(part in text for part in ("update", "4/4", "accuracy 0.75", "saved [step 1]"))
