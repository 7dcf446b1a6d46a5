"""Signals: the run ends after its step, or without it once that takes too long, or at once when it is told twice."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestra_jax.config import cli
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.engines.base import RunEngine
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.engines.sglang.client import UpdateError
from orchestra_jax.engines.sglang.pool import NoServer
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout import collector as collecting
from orchestra_jax.training.checkpointing import Checkpoints
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.main import exit_status, run
from orchestra_jax.training.stopping import CleanInterrupt, handling
from orchestra_jax.training.trainer import Trainer
from orchestra_jax.types import OutOfTime
from tests.rollout.scripted import HANG, TASK, FakeEngine, make, word_tokenizer
from tests.training.test_trainer import MICRO, assert_same_arrays, complaints, config, untimed

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def heeded():
    """Signals as a terminal's processes have them: under nohup or a shell's & some are ignored, and stay so."""
    ignored = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def handlers() -> list:
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize("number", SIGNALS)
def test_every_signal_asks_first_and_a_second_one_ends_at_once(number: signal.Signals):
    before = handlers()
    interrupt = CleanInterrupt(600.0, lambda: None)
    with interrupt:
        assert not interrupt.asked
        signal.raise_signal(number)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert handlers() == before


def test_a_step_that_outlasts_the_grace_is_told_so_and_one_that_does_not_is_not():
    late, never = threading.Event(), threading.Event()
    with CleanInterrupt(0.0, late.set):
        signal.raise_signal(signal.SIGTERM)
        assert late.wait(60)
    with CleanInterrupt(600.0, never.set):
        signal.raise_signal(signal.SIGTERM)
    assert not never.is_set()


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        interrupt = CleanInterrupt(600.0, lambda: None)
        with interrupt, handling(lambda *_: pytest.fail("called")):
            signal.raise_signal(signal.SIGHUP)
        assert not interrupt.asked
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_there_is_anything_to_save_is_no_trace(number: signal.Signals, capsys):
    with pytest.raises(SystemExit, match=r"^130$"), exit_status():
        signal.raise_signal(number)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "Stopped at once; the same command continues from the last checkpoint."


def test_ctrl_c_while_jax_is_imported_is_no_trace():
    def main() -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(SystemExit, match=r"^130$"), cli.user_errors():
        main()


WINDS_DOWN = """
import atexit, os, signal, sys, time
from orchestra_jax.config import cli

def as_jax_does():
    os.kill(os.getpid(), signal.Signals[sys.argv[1]])
    time.sleep(600)

def main():
    atexit.register(as_jax_does)
    print("said")
    sys.exit(int(sys.argv[2]))

with cli.user_errors(ends_process=True):
    main()
"""


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 0)])
def test_a_signal_to_a_process_that_winds_down_is_no_trace_and_changes_no_status(name: str, status: int):
    ended = subprocess.run(
        [sys.executable, "-c", WINDS_DOWN, name, str(status)], capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "said\n", "")


async def test_a_collector_gives_up_what_is_under_way_and_begins_nothing():
    collector, world, chat = make(word_tokenizer())
    engine = FakeEngine(chat, lambda session, turn: HANG)
    running = [asyncio.ensure_future(collector.collect(engine, [TASK] * 2, budget=Budget())) for _ in range(2)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(engine.open) == 4
    collector.give_up(OutOfTime("too long"))
    assert [str(error) for error in await asyncio.gather(*running, return_exceptions=True)] == ["too long"] * 2
    assert not engine.open
    episodes = world.episodes
    with pytest.raises(OutOfTime, match="too long"):
        await collector.collect(engine, [TASK], budget=Budget())
    assert world.episodes == episodes


@pytest.mark.slow
def test_a_step_without_end_is_given_up_and_the_last_finished_one_is_saved(tmp_path: Path, monkeypatch, capsys):
    """Told once, then, after it went on, twice; every trajectory of the second step hangs."""
    before, whole, signals = handlers(), collecting.EpisodePlayer.play, [signal.SIGTERM]

    async def trajectory(self, parent, on_done=None):
        if step() >= 1:
            while signals:
                os.kill(os.getpid(), signals.pop())
            await asyncio.Event().wait()
        return await whole(self, parent, on_done)

    def step() -> int:
        return len(read_metrics(tmp_path)) if (tmp_path / "metrics.jsonl").exists() else 0

    monkeypatch.setattr(collecting.EpisodePlayer, "play", trajectory)
    small = config(
        tmp_path, *MICRO, "steps=3", "warm_start.steps=0", "evaluation.questions=0", "checkpoint.every=50",
        "checkpoint.grace_s=0.1",
    )  # fmt: skip
    with pytest.raises(SystemExit, match=r"^130$"):
        run(small)
    assert complaints(capsys.readouterr().err) == [
        "Stopped after step 1 of policy: the next one did not end within checkpoint.grace_s=0.1; the same command "
        "continues from there."
    ]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["policy-000000", "policy-000001"]
    signals += [signal.SIGINT, signal.SIGHUP]
    with pytest.raises(SystemExit, match=r"^130$"):
        run(small)
    said = complaints(capsys.readouterr().err)
    assert said == ["Stopped at once; the same command continues from the last checkpoint."]
    assert step() == 1  # it began with the second step again
    assert handlers() == before


@pytest.mark.slow
def test_a_run_without_any_server_ends_in_a_sentence_and_goes_on_later(tmp_path: Path, monkeypatch, capsys):
    whole = collecting.EpisodePlayer.play

    async def trajectory(self, parent, on_done=None):
        if (tmp_path / "metrics.jsonl").exists() and read_metrics(tmp_path):
            raise NoServer("No SGLang server was ready for 720 s: http://b:30000: It did not answer.")
        return await whole(self, parent, on_done)

    monkeypatch.setattr(collecting.EpisodePlayer, "play", trajectory)
    small = config(
        tmp_path, *MICRO, "steps=2", "warm_start.steps=0", "evaluation.questions=0", "checkpoint.every=50",
    )  # fmt: skip
    with pytest.raises(SystemExit, match=r"^2$"):
        run(small)
    assert complaints(capsys.readouterr().err) == [
        "No SGLang server was ready for 720 s: http://b:30000: It did not answer. Stopped after step 1 of policy; with "
        "servers that answer the same command continues there."
    ]
    monkeypatch.setattr(collecting.EpisodePlayer, "play", whole)
    run(small)
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]


@pytest.mark.slow
def test_rollouts_that_run_ahead_end_before_the_last_save_is_awaited(tmp_path: Path, monkeypatch):
    """They are made again when the run goes on, and would pay for as long as a large checkpoint takes."""
    small = config(
        tmp_path, *MICRO, "steps=3", "warm_start.steps=0", "evaluation.questions=0", "rollout.lockstep=false",
        "rollout.max_staleness=1", "rollout.slots=16",
    )  # fmt: skip
    play, push, close = collecting.EpisodePlayer.play, Trainer.push_weights, Checkpoints.close
    begun, paying, left = itertools.count(), list[object](), list[int]()

    async def trajectory(self, parent, on_done=None):
        if next(begun) < small.algorithm.tasks_per_step * small.algorithm.group_size:
            return await play(self, parent, on_done)
        paying.append(self)
        try:
            await asyncio.Event().wait()
        finally:
            paying.remove(self)

    def stopped_by_step_1(self) -> None:
        push(self)
        if self.state.version == 2:
            assert paying
            os.kill(os.getpid(), signal.SIGTERM)

    def slow_save(self) -> None:
        end = time.monotonic() + 10
        while paying and time.monotonic() < end:
            time.sleep(0.01)
        left.append(len(paying))
        close(self)

    monkeypatch.setattr(collecting.EpisodePlayer, "play", trajectory)
    monkeypatch.setattr(Trainer, "push_weights", stopped_by_step_1)
    monkeypatch.setattr(Checkpoints, "close", slow_save)
    with pytest.raises(SystemExit, match=r"^130$"):
        run(small)
    assert left == [0]


@pytest.mark.slow
def test_a_step_whose_weights_no_server_takes_is_saved(tmp_path: Path, monkeypatch, capsys):
    def taken(self, params, version: int):
        if version == 3:
            raise UpdateError("No server took weight version 3: http://b:30000: It did not answer.")
        return whole(self, params, version)

    whole = EmbeddedEngine.update_weights
    monkeypatch.setattr(EmbeddedEngine, "update_weights", taken)
    small = config(
        tmp_path, *MICRO, "steps=3", "warm_start.steps=0", "evaluation.questions=0", "checkpoint.every=50",
    )  # fmt: skip
    with pytest.raises(SystemExit, match=r"^2$"):
        run(small)
    assert complaints(capsys.readouterr().err) == [
        "No server took weight version 3: http://b:30000: It did not answer. Stopped after step 2 of policy; with "
        "servers that answer the same command continues there."
    ]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["policy-000000", "policy-000002"]
    run(small)
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 3]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["algorithm.refill=1"]], ids=["tasks in turns", "a stream of groups"])
def test_a_step_whose_memory_a_server_keeps_is_made_again_from_the_one_before(tmp_path, monkeypatch, capsys, more):
    updates = itertools.count(1)

    async def freed(self) -> None:
        if next(updates) == 3:
            raise UpdateError("http://b:30000 did not release its GPU memory (status 500); look at its log.")

    def small(folder: Path) -> RunConfig:
        return config(
            folder, *MICRO, "steps=3", "warm_start.steps=0", "evaluation.questions=0", "checkpoint.every=50", *more,
        )  # fmt: skip

    run(small(tmp_path / "whole"))
    monkeypatch.setattr(RunEngine, "free_gpus", freed)
    capsys.readouterr()
    with pytest.raises(SystemExit, match=r"^2$"):
        run(small(tmp_path / "stopped"))
    assert complaints(capsys.readouterr().err) == [
        "http://b:30000 did not release its GPU memory (status 500); look at its log. Stopped after step 2 of policy; "
        "with servers that answer the same command continues there."
    ]
    run(small(tmp_path / "stopped"))
    assert_same_arrays(tmp_path / "stopped", tmp_path / "whole")
    assert untimed(read_metrics(tmp_path / "stopped")) == untimed(read_metrics(tmp_path / "whole"))


@pytest.mark.slow
def test_a_measurement_of_the_warm_start_that_was_given_up_is_made_when_the_run_goes_on(tmp_path: Path, monkeypatch):
    begin, measured = collecting.Collector.collect, []

    def collect(self, *args, seed, **options):
        measured.append(seed[-1])
        if len(measured) == 2:
            raise OutOfTime("told to stop")
        return begin(self, *args, seed=seed, **options)

    monkeypatch.setattr(collecting.Collector, "collect", collect)
    small = config(tmp_path, *MICRO, "steps=0", "evaluation.questions=0", "warm_start.min_copy_accuracy=1")
    with pytest.raises(SystemExit, match=r"^130$"):
        run(small)
    run(small)
    assert measured == [2, 4, 4]


@pytest.mark.slow
def test_an_evaluation_between_steps_that_was_given_up_is_made_when_the_run_goes_on(tmp_path: Path, monkeypatch):
    whole, signals = Trainer.evaluate, ["step 1", "step 1"]

    def evaluate(self, when: str):
        if [when] == signals[:1]:
            raise OutOfTime(signals.pop())
        return whole(self, when)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    small = config(
        tmp_path, *MICRO, "steps=2", "warm_start.steps=0", "evaluation.questions=2", "evaluation.swap_questions=0",
        "evaluation.every=1", "checkpoint.every=50",
    )  # fmt: skip
    stopped = []
    for _ in range(2):
        with pytest.raises(SystemExit, match="130"):
            run(small)
        stopped += read_metrics(tmp_path)
    run(small)
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in (*stopped, *rows)] == [1, 1, 1, 2]
    for row in stopped:
        assert {**rows[0], "seconds": row["seconds"]} == {**row, **_measured(rows[0])}
        assert not _measured(row)
    assert _measured(rows[0])


def _measured(row: dict) -> dict:
    return {name: figure for name, figure in row.items() if name.startswith("eval")}
