"""Deadlines and signals while Python is busy, in the event loop or in code that keeps the interpreter to itself."""

import asyncio
import errno
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.io.stopwatch import Stopwatch
from orchestra_jax.training import guard, guard_process
from orchestra_jax.training.guard import LOG, guarded

PATIENT = 600.0
BUSY = """
import ctypes, signal, sys
from pathlib import Path
from orchestra_jax.io import event_loop
from orchestra_jax.training import guard
from orchestra_jax.training.stopping import end_now, handling

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that `nohup` starts ignore it

async def hopeless():
    print("busy", flush=True)
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # calls keep the interpreter to themselves
    for _ in range(2):
        library.pthread_mutex_lock(mutex)  # the second waits for ever, whatever signal comes, and takes no CPU

async def endless():
    print("busy", flush=True)
    while True:
        pass

event_loop._BUSY_S = 0.5  # it need not keep a core busy for longer
loop = event_loop.LoopThread()
guard._SLOW_S = float(sys.argv[3])
with handling(end_now), guard.guarded(Path(sys.argv[2]), loop, 1.0, 0), loop:
    try:
        loop.run({"hopeless": hopeless, "endless": endless}[sys.argv[1]]())
    except KeyboardInterrupt:
        print("heard", flush=True)
        raise
"""


async def busy() -> None:
    while True:
        pass


def test_a_deadline_ends_work_that_never_gives_way_to_the_event_loop(tmp_path: Path):
    with LoopThread() as loop, guarded(tmp_path, loop, PATIENT, 600.0):
        watch, other = Stopwatch(0.1), loop.start(asyncio.sleep(0.2, "slept"))
        with pytest.raises(TimeoutError):
            loop.run(watch.run(busy()))
        assert watch.expired
        assert other.result(60) == "slept"
        assert loop.run(asyncio.sleep(0, "goes on")) == "goes on"
    assert not (tmp_path / LOG).exists()


def test_a_run_that_is_refused_leaves_no_file(tmp_path: Path):
    with LoopThread() as loop, pytest.raises(RuntimeError), guarded(tmp_path, loop, PATIENT, 600.0):
        raise RuntimeError("refused")
    assert not (tmp_path / LOG).exists()


def test_another_process_of_the_run_may_remove_the_empty_file(tmp_path: Path, monkeypatch):
    with LoopThread() as loop, guarded(tmp_path, loop, PATIENT, 600.0):
        (tmp_path / LOG).unlink()
        monkeypatch.setattr(Path, "is_file", lambda _: True)  # it was there a moment ago


def test_work_within_its_deadline_or_without_one_is_left_alone_and_its_stack_is_written(
    tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.setattr(guard, "_SLOW_S", 0.5)
    enough = threading.Event()

    async def until_it_is_enough() -> str:
        while not enough.is_set():
            pass
        return "done"

    with LoopThread() as loop, guarded(tmp_path, loop, PATIENT, 600.0):
        for watch in (Stopwatch(None), Stopwatch(1e6)):
            enough.clear()
            running = loop.start(watch.run(until_it_is_enough()))
            while "has not turned" not in (tmp_path / LOG).read_text():
                assert not running.done()
            enough.set()
            assert running.result(60) == "done"
            assert "until_it_is_enough" in (tmp_path / LOG).read_text()
            (tmp_path / LOG).write_text("")
    assert "stacks.log tells which" in capsys.readouterr().err


def test_a_loop_that_is_to_end_interrupts_what_keeps_it_busy(monkeypatch):
    monkeypatch.setattr("orchestra_jax.io.event_loop._BUSY_S", 0.1)
    loop = LoopThread()
    running = loop.start(busy())
    while loop.busy_s() < 0.2:
        pass
    loop.stop()
    assert isinstance(running.exception(60), TimeoutError)


def begun(kind: str, folder: Path, slow_s: float) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, kind, str(folder), str(slow_s)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "busy\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_process_whose_python_cannot_run_and_tells_where_it_was(tmp_path: Path, number):
    process = begun("hopeless", tmp_path, 600.0)
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    # The same signal twice at once is one for the kernel: the other is another one.
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert said.endswith(
        "The run did not end when it was told twice, so it was killed; stacks.log tells where it was, and the same "
        "command continues from the last checkpoint.\n"
    )
    assert "in hopeless" in (tmp_path / LOG).read_text()


class Full:
    """The error output on a full disk, or of a terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        self.write("")


def test_a_full_disk_under_the_error_output_keeps_no_process_alive(monkeypatch):
    sent = list[tuple[int, int]]()
    monkeypatch.setattr(guard_process.os, "kill", lambda *what: sent.append(what))
    monkeypatch.setattr(sys, "stderr", Full())
    guard_process._end(7, 34, "The run did not end when it was told twice")
    assert sent == [(7, 34), (7, signal.SIGKILL)]


def test_a_full_disk_under_the_stacks_does_not_stop_the_beats(monkeypatch):
    """Without beats the process beside the run would take it for hung, and kill it."""
    monkeypatch.setattr(guard, "_BEAT_S", 0.01)
    monkeypatch.setattr(sys, "stderr", Full())
    reader, writer = os.pipe()
    closing, busy = threading.Event(), SimpleNamespace(name="rollouts", busy_s=lambda: 99.0, frame=lambda: None)
    thread = threading.Thread(target=guard._watch, args=(busy, writer, closing, Full(), 60.0))
    thread.start()
    for _ in range(5):
        assert select.select([reader], [], [], 60)[0]
        os.read(reader, 1)
    assert thread.is_alive()
    closing.set()
    thread.join()
    os.close(reader)
    os.close(writer)


@pytest.mark.slow
def test_silence_past_the_deadline_is_told_and_then_ends_the_process(tmp_path: Path):
    process = begun("hopeless", tmp_path, 2.0)
    process.send_signal(signal.SIGTERM)  # from now on it has 30 s
    _, said = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert said.startswith("No Python code could run for 2 s: stacks.log tells where.\nNo Python code could run for 3")
    assert (tmp_path / LOG).read_text().count("in hopeless") >= 2


def test_a_signal_is_heard_while_the_event_loop_is_busy(tmp_path: Path):
    process = begun("endless", tmp_path, 600.0)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "heard\n"
    process.communicate(timeout=300)  # what is busy is interrupted, and all is closed
    assert process.returncode == -signal.SIGINT
