"""Rollouts within a step and ahead of it: the loop beside the main thread, the age of tokens, a run that resumes."""

import asyncio
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from orchestra_jax.config.checks import problems
from orchestra_jax.engines.start import start_engine
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.evaluation.decoding import read_groups
from orchestra_jax.io import event_loop
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.budgets import Budget
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.training.build import make_collector, make_policy, rollout_source
from orchestra_jax.training.loggers.jsonl import read_metrics
from tests.training.test_stopping import heeded
from tests.training.test_trainer import MICRO, complaints, config, final_arrays, train, train_here

__all__ = ["heeded"]  # a fixture

AHEAD = ("rollout.lockstep=false", "rollout.max_staleness=1")
SHORT = (*MICRO, "evaluation.every=0", "evaluation.questions=0")


def test_what_was_started_goes_on_between_two_calls():
    ticks = []

    async def tick() -> None:
        while True:
            ticks.append(threading.current_thread().name)
            await asyncio.sleep(0.001)

    async def start() -> asyncio.Task[None]:
        return asyncio.ensure_future(tick())

    with LoopThread() as loop:
        loop.run(start())
        before, deadline = len(ticks), time.monotonic() + 20
        while len(ticks) < before + 5 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(ticks) >= before + 5
    assert set(ticks) == {"rollouts"}


def test_an_error_reaches_the_caller_and_the_loop_goes_on():
    async def fail() -> None:
        raise OSError("broken")

    async def fine() -> int:
        return 3

    with LoopThread() as loop:
        with pytest.raises(OSError, match="broken"):
            loop.run(fail())
        assert loop.run(fine()) == 3


def test_an_interrupted_caller_cancels_what_it_waited_for(monkeypatch: pytest.MonkeyPatch):
    ended = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupted(*_: object, **__: object) -> None:
        time.sleep(0.05)
        raise KeyboardInterrupt

    with LoopThread() as loop:
        monkeypatch.setattr(event_loop, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run(forever())
        assert ended.wait(20)


def all_teach(trajectories: list) -> np.ndarray:
    return np.ones(len(trajectories) // 2, bool)


def test_groups_of_a_stream_are_those_of_a_synchronous_step(tmp_path: Path):
    """With the same weights; the engine's seeds make it exact."""
    small = ("algorithm.tasks_per_step=2", "algorithm.group_size=2", "rollout.slots=4", "rollout.lockstep=false")
    found = []
    for ahead in ((), ("rollout.max_staleness=1",), ("algorithm.refill=1", "rollout.lockstep=true")):
        cfg = config(tmp_path, *MICRO, *small, *ahead)
        chat, environment = make_chat(cfg), make_environment(cfg)
        model, params = make_policy(cfg, chat)
        with LoopThread() as loop:
            engine = start_engine(
                cfg.rollout,
                model,
                params,
                3,
                tokenizer_size=1,
                directory=tmp_path,
                loop=loop,
                processes=Processes(),
            )
            rollouts = rollout_source(
                cfg.algorithm, cfg.rollout, cfg.seed,
                make_collector(cfg, environment, chat), engine.engine, environment.train_tasks(2), loop,
            )  # fmt: skip
            steps = [rollouts.take(step, 3 + step, Budget(), all_teach) for step in range(2)]
            rollouts.stop()
            loop.run(engine.close())
            loop.run(environment.close())
        found.append([t for trajectories, _ in steps for t in trajectories])
        ages = [metrics["staleness/max"] for _, metrics in steps]
        assert ages == [0.0, 1.0]  # nobody gave the engine new weights
    sampled = [[(t.task.id, t.group, t.member, [turn.sampled_ids for turn in t.turns]) for t in run] for run in found]
    assert sampled[0] == sampled[1] == sampled[2]


def test_running_ahead_needs_an_engine_that_does_not_wait_for_all(tmp_path: Path):
    cfg = config(tmp_path, *MICRO, *AHEAD)
    assert problems(cfg) == []
    with pytest.raises(ValueError, match=r"rollout.lockstep.*set rollout.lockstep=false.*\.$"):
        config(tmp_path, *MICRO, "rollout.max_staleness=1")


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [AHEAD, (*AHEAD, "rollout.oversample=1")], ids=["ahead", "oversample"])
def test_a_run_with_rollouts_ahead_trains_and_resumes(tmp_path: Path, ahead: tuple[str, ...], heeded, capsys):
    stopped = train(tmp_path, *SHORT, *ahead, stop="policy 3 SIGKILL")
    assert stopped.returncode != 0
    with pytest.raises(SystemExit, match=r"^130$"):
        train_here(tmp_path, *SHORT, *ahead, stop="policy 4 SIGINT")
    said = complaints(capsys.readouterr().err)
    assert said == ["Stopped after step 4 of policy; the same command continues from there."]
    train_here(tmp_path, *SHORT, *ahead)
    assert complaints(capsys.readouterr().err) == []
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert max(row["staleness/max"] for row in rows) == 1
    assert rows[0]["staleness/max"] == 0
    trained = [(m.task.id, m.member) for group in read_groups(tmp_path / "rollouts") for m in group.members]
    assert len(trained) == len(set(trained)) == 5 * 2 * 4  # nothing twice
    assert len(final_arrays(tmp_path)) > 0
