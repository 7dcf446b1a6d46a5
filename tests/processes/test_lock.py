"""A folder belongs to one run at a time, and a killed one leaves it free."""

import fcntl
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.processes.lock import FILE_NAME, alone_in
from tests.processes.running import holder

BEAT_S = 0.02

# Runs the module from its file: the package would import JAX.
HOLDER = """
import pathlib, runpy, subprocess, sys
lock = runpy.run_path("orchestra_jax/processes/lock.py")
with lock["alone_in"](pathlib.Path(sys.argv[1])):
    # A server that outlives it, say, which has been started when this returns.
    child = subprocess.Popen(["sleep", "600"], close_fds=False).pid if sys.argv[2:] else ""
    print(child, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """A process that is at work in the folder."""
    started, _ = holder(HOLDER, tmp_path)
    yield started
    started.kill()
    started.wait()


def test_a_second_run_is_refused_with_host_and_process(tmp_path: Path, other: subprocess.Popen):
    with pytest.raises(ConfigError) as refused, alone_in(tmp_path):
        pass
    expected = rf"Another run is at work in '{tmp_path}' \(host (.+), process {other.pid}, since .+\): .+"
    found = re.fullmatch(expected, str(refused.value))
    assert found is not None, refused.value
    assert found[1] == socket.gethostname()
    assert other.stdin is not None
    other.stdin.write("\n")
    other.stdin.flush()
    assert other.wait() == 0
    with alone_in(tmp_path):
        pass


def test_what_a_killed_run_leaves_blocks_nobody(tmp_path: Path):
    killed, child = holder(HOLDER, tmp_path, "with a child")
    try:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        assert f"process {killed.pid}" in (tmp_path / FILE_NAME).read_text()
        with alone_in(tmp_path):
            assert f"process {os.getpid()}" in (tmp_path / FILE_NAME).read_text()
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_one_process_does_not_hold_it_twice_and_gives_it_back_after_an_error(tmp_path: Path):
    with alone_in(tmp_path), pytest.raises(ConfigError, match="Another run is at work"), alone_in(tmp_path):
        pass
    with pytest.raises(ZeroDivisionError), alone_in(tmp_path):
        raise ZeroDivisionError
    with alone_in(tmp_path):
        pass
    assert (tmp_path / FILE_NAME).read_text() == ""


def test_a_lock_that_its_holder_has_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    taken = fcntl.flock

    def removed_before(descriptor: int, how: int) -> None:  # between our opening of the file and our taking of it
        (tmp_path / FILE_NAME).unlink()
        taken(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    with pytest.raises(ConfigError, match="Another run is at work"), alone_in(tmp_path):
        pass
    monkeypatch.undo()
    with alone_in(tmp_path):
        pass


def left_by(folder: Path, host: str) -> None:
    (folder / FILE_NAME).write_text(f"host {host}, process 1, since 2026-01-01 00:00:00\n")


def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*args: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)


def test_a_living_run_of_another_machine_is_seen_where_locks_lie(tmp_path: Path, monkeypatch, capsys):
    """Two machines of which each has the lock: simulated by one that knows no locks and one of another name."""
    no_locks(monkeypatch)
    with alone_in(tmp_path, BEAT_S):
        monkeypatch.setattr(socket, "gethostname", lambda: "node-b")
        refused = pytest.raises(ConfigError, match=r"Another run is at work in .+ \(host .+, process \d+")
        with refused, alone_in(tmp_path, 1.0):  # waits long enough to see a beat, however slow this machine is
            pass
    assert "Looking whether the run of host" in capsys.readouterr().err


@pytest.mark.parametrize("locks", [True, False])
def test_a_dead_run_of_another_machine_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool):
    if not locks:
        no_locks(monkeypatch)
    left_by(tmp_path, "node-b" if locks else socket.gethostname())
    with alone_in(tmp_path, BEAT_S):
        assert f"host {socket.gethostname()}, process {os.getpid()}" in (tmp_path / FILE_NAME).read_text()


def test_a_dead_run_of_this_machine_costs_no_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    left_by(tmp_path, socket.gethostname())
    with alone_in(tmp_path, beat_s=600.0):
        pass
    assert capsys.readouterr().err == ""
