"""Figures of a step's speed: by hand, and of a run whose clock is the processor's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from orchestra_jax.models.flops import forward_flops
from orchestra_jax.models.sizes import num_params
from orchestra_jax.rl import groups
from orchestra_jax.rl.groups import GroupRewards
from orchestra_jax.rollout.source import RolloutSource
from orchestra_jax.training import trainer
from orchestra_jax.training.loggers import transcripts
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.main import run
from orchestra_jax.training.profiling import FOLDER
from orchestra_jax.training.speed import gpu_of, lengths, shares
from orchestra_jax.types import Preference, Trajectory, Turn, Usage
from tests.rl.trajectories import MODEL, task, trajectory
from tests.training.micro import score_by_index
from tests.training.test_trainer import MICRO, config

TASK = task("task", "", Preference("", "", {}))
TIMES = {"time/rollout": 10.0, "time/score": 1.0, "time/update": 6.0, "time/sync": 2.0, "time/other": 1.0}


def made(turns: int, *ledger: Usage) -> Trajectory:
    turn = Turn((1, 2), (3, 4), (-1.0, -1.0), 0, "stop")
    return replace(trajectory(TASK, *[turn] * turns), ledger=ledger)


def generation(prompt: int, cached: int, completion: int, seconds: float) -> Usage:
    return Usage("orchestrator", "orchestrator", prompt, cached, completion, seconds=seconds)


def test_the_shares_of_a_step_add_up_to_one() -> None:
    first = made(2, generation(100, 0, 20, 3.0), generation(150, 100, 10, 1.0), Usage("python", seconds=2.0))
    second = made(1, generation(100, 60, 5, 1.0), Usage("gpt-5", "judge", seconds=1.0))
    found = shares([first, second], TIMES)
    assert sum(value for name, value in found.items() if name.startswith("share/")) == pytest.approx(1.0)
    assert found["time/step"] == 20.0
    # 5 of the 8 seconds of work were generations, 2 tools, 1 a judge: as much of the rollout's 10 seconds.
    assert (found["time/generate"], found["time/tools"], found["time/judge"]) == pytest.approx((6.25, 2.5, 1.25))
    assert (found["share/tools"], found["share/update"]) == pytest.approx((0.125, 0.3))
    assert found["idle/rollout"] == pytest.approx(1 - 8 / 20)
    assert found["cache/hit_rate"] == pytest.approx(160 / 350)
    nothing = shares([made(1)], TIMES)  # every rollout failed before it cost anything
    assert sum(value for name, value in nothing.items() if name.startswith("share/")) == pytest.approx(1.0)
    assert "cache/hit_rate" not in nothing


def test_lengths_and_turns_are_told_by_percentiles_and_powers_of_two() -> None:
    some = [made(turns, generation(100 * turns, 0, 28 * turns, 1.0)) for turns in (1, 2, 2, 5)]
    found = lengths(some)
    assert {name: value for name, value in found.items() if name.startswith("turns/to_")} == {
        "turns/to_1": 0.25, "turns/to_2": 0.5, "turns/to_8": 0.25,
    }  # fmt: skip
    assert (found["turns/p50"], found["turns/max"], found["length/max"]) == (2.0, 5.0, 640.0)
    assert {name: value for name, value in found.items() if name.startswith("length/to_")} == {
        "length/to_256": 0.75, "length/to_1024": 0.25,
    }  # fmt: skip


def test_flops_are_two_for_a_weight_and_token_and_those_of_attention() -> None:
    model = MODEL.replace(num_layers=3)
    layers = num_params(model) - 32 * 16
    assert forward_flops(model, 10, 4, 58) == 10 * 2 * layers + 4 * 2 * 32 * 16 + 2 * 58 * 2 * 8 * 3


def test_a_gpu_is_known_by_the_name_that_it_tells() -> None:
    def device(kind: str, platform: str = "gpu") -> jax.Device:
        return SimpleNamespace(device_kind=kind, platform=platform)  # type: ignore[return-value]

    assert gpu_of(device("NVIDIA H100 80GB HBM3")).tflops == 989.4  # type: ignore[union-attr]
    assert gpu_of(device("NVIDIA H200")).label.startswith("NVIDIA H200")  # type: ignore[union-attr]
    assert gpu_of(device("NVIDIA H900")) is None
    assert gpu_of(device("cpu", "cpu")) is None


@pytest.mark.slow
def test_a_run_tells_where_its_seconds_went_and_traces_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def lasting(seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return the work, which takes so long on the clock of this test: no other program moves that."""

        def worked(*args: Any, **kwargs: Any) -> Any:
            clock[0] += seconds
            return work(*args, **kwargs)

        return worked

    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for owner, name, seconds in (
        (RolloutSource, "take", 10.0), (GroupRewards, "reward_and_advantage", 1.0), (trainer, "update", 6.0),
        (trainer.Trainer, "push_weights", 2.0), (transcripts, "write_transcripts", 0.5),
        (trainer.Trainer, "evaluate", 4.0), (trainer.Trainer, "save", 3.0),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, lasting(seconds, getattr(owner, name)))
    monkeypatch.setattr(groups, "reward_groups", score_by_index)
    own = (
        "steps=2",
        "warm_start.steps=0",
        "evaluation.questions=0",
        "evaluation.every=1",
        "checkpoint.every=1",
        "rollout.limits.max_turns=2",
    )
    run(config(tmp_path, *MICRO, *own, "logger.speed=true", "logger.trajectories=1", "profile.steps=[2]"))
    first, second = rows = read_metrics(tmp_path / "metrics.jsonl")
    assert (first["time/step"], second["time/step"]) == pytest.approx((19.5, 26.5))
    # After the first step the run evaluated and saved: no second between the ends of two steps is missing.
    assert (second["time/evaluate"], second["time/save"]) == pytest.approx((4.0, 3.0))
    assert second["seconds"] - first["seconds"] == pytest.approx(second["time/step"])
    for row in rows:
        phases = [row[f"time/{name}"] for name in ("rollout", "score", "update", "sync", "other")]
        assert phases == pytest.approx([10.0, 1.0, 6.0, 2.0, 0.5])
        assert sum(value for name, value in row.items() if name.startswith("share/")) == pytest.approx(1.0)
        assert sum(value for name, value in row.items() if name.startswith("turns/to_")) == pytest.approx(1.0)
        assert row["tokens/trained"] > 0
        assert 0 <= row["tokens/padding_share"] < 1
        assert row["flops/per_s"] == pytest.approx(row["flops/update"] / row["time/update"])
        assert "mfu" not in row  # no GPU
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["step-000002"]
    assert list((tmp_path / FOLDER).rglob("*.xplane.pb"))


def test_rows_that_only_the_kl_runs_are_counted_once_where_they_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nobody has an advantage, so that all that is run is run for the KL; packed, with thoughts dropped."""
    monkeypatch.setattr(
        groups,
        "reward_groups",
        lambda *args: tuple(x * 0 for x in score_by_index(*args)),  # no reward, none kept
    )
    own = ("steps=1", "warm_start.steps=0", "evaluation.questions=0", "logger.speed=true", "algorithm.packing=true")
    forking = ("rollout.history=drop_thinking", "algorithm.filtered_rows=count", "algorithm.loss.kl_coef=0.1")
    run(config(tmp_path, *MICRO, *own, *forking))
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert row["tokens/trained"] > 0
    assert row["flops/update"] > 0
    assert 0 <= row["tokens/padding_share"] < 1
