import errno
import queue
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestra_jax.config.schema import ConfigError, MeshConfig
from orchestra_jax.processes import Processes, lifeline
from orchestra_jax.processes import start as start_of
from orchestra_jax.processes.lifeline import GONE, Lifeline
from orchestra_jax.processes.start import Ranks, ranks

from .running import free_port, lines, start, wait

WORKER = str(Path(__file__).with_name("worker.py"))
SLURM = {
    "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "5000",
    "SLURM_STEP_NODELIST": "node[007-008]", "SLURM_STEP_NUM_NODES": "2",
}  # fmt: skip
MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}


def run_workers(modes: str, count: int = 2) -> list:
    port = free_port()
    return wait([start([WORKER, modes, str(process), str(count), str(port)], devices=2) for process in range(count)])


# --- one process -----------------------------------------------------------------------------------------------------


def test_one_process_agrees_with_itself():
    processes = Processes()
    value = object()
    assert processes.first
    assert processes.gather(value)[0] is value
    assert processes.mine("abc") == ["a", "b", "c"]
    with pytest.raises(KeyError), processes.together():
        raise KeyError
    assert not processes.agreed


# --- who the processes are -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "environment", "expected"),
    [
        ({}, {}, None),
        ({}, {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}, None),  # a batch script, not a step
        ({}, SLURM, Ranks("node007:62344", 1, 2)),
        ({}, SLURM | {"SLURM_STEP_NODELIST": "gpu-3,gpu-9"}, Ranks("gpu-3:62344", 1, 2)),
        ({}, SLURM | {"SLURM_STEP_NODELIST": "rack[2,4]-n[01-04,7].ib,b[1-2]"}, Ranks("rack2-n01.ib:62344", 1, 2)),
        ({}, SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_LOCALID": "1"}, Ranks("node007:62344", 1, 2, device=1)),
        ({"coordinator": "a:1"}, SLURM, Ranks("a:1", 1, 2)),
        ({"coordinator": "a:1"}, MPI, Ranks("a:1", 1, 2)),
        ({}, MPI | {"JAX_COORDINATOR_ADDRESS": "b:2"}, Ranks("b:2", 1, 2)),
        ({"coordinator": "a:1", "processes": 3, "process": 2}, SLURM, Ranks("a:1", 2, 3)),
        ({"coordinator": "a:1", "processes": 1, "process": 0}, {}, None),
    ],
)
def test_the_configuration_or_else_the_launcher_says_who_takes_part(mesh, environment, expected):
    assert ranks(MeshConfig(**mesh), environment) == expected


@pytest.mark.parametrize(
    ("mesh", "environment", "sentence"),
    [
        ({"processes": 2}, {}, "Set mesh.coordinator=HOST:PORT, mesh.processes=COUNT and mesh.process=INDEX together"),
        ({"coordinator": "a:1", "processes": 2, "process": 2}, {}, "mesh.process=2 must be below mesh.processes=2"),
        ({}, MPI, "The launcher started 2 processes, but does not tell where the first one is"),
    ],
)
def test_processes_that_cannot_meet_are_refused(mesh, environment, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ranks(MeshConfig(**mesh), environment)


# --- the lifeline ----------------------------------------------------------------------------------------------------


def lifelines(count: int) -> tuple[list[Lifeline], "queue.Queue[str]"]:
    port: queue.Queue[int] = queue.Queue()
    said: queue.Queue[str] = queue.Queue()

    def share_port(own: int | None) -> int:
        for _ in range(count - 1 if own else 0):
            port.put(own)
        return own or port.get()

    with ThreadPoolExecutor(count) as pool:
        made = [pool.submit(Lifeline, n, count, "127.0.0.1", share_port, said.put) for n in range(count)]
        return [future.result() for future in made], said


def test_a_connection_that_breaks_ends_all_others_and_names_the_lost_one():
    (first, second, third), said = lifelines(3)
    third._closing = True  # the thread of a killed process says nothing more
    for peer in third._peers.values():
        peer.shutdown(socket.SHUT_RDWR)
    sentences = {said.get(timeout=60), said.get(timeout=60)}
    for sentence, index in zip(sorted(sentences), (0, 1), strict=True):
        assert sentence.startswith(f"Process 2 of 3 is gone, so process {index} ends too")
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("end", "status"),
    [(lambda: lifeline._exit("Process 1 of 2 is gone."), GONE), (lambda: start_of._fail_alone(SystemExit(5)), 5)],
)
def test_a_full_disk_under_the_outputs_does_not_keep_a_process_from_its_end(monkeypatch, end, status):
    def ended(status: int) -> None:
        raise SystemExit(status)

    def full(*_words: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(start_of, "_ENDS_S", 0.0)
    monkeypatch.setattr(lifeline.os, "_exit", ended)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, SimpleNamespace(write=full, flush=full))
    with pytest.raises(SystemExit, match=f"^{status}$"):
        end()


def test_silence_is_a_lost_machine(monkeypatch: pytest.MonkeyPatch):
    now, rounds, changed = [0.0], Counter[threading.Thread](), threading.Condition()

    def sleep(_seconds: float) -> None:
        """Counts the rounds of each watch, which waits at the end of one."""
        with changed:
            rounds[threading.current_thread()] += 1
            changed.notify_all()
        time.sleep(0.001)

    def a_round_of(*lines: Lifeline) -> None:
        """Waits for a whole round of each, one after the other: it hears what was said and says that it lives."""
        for thread in (line._thread for line in lines):
            with changed:
                least = rounds[thread] + 2
                assert changed.wait_for(lambda thread=thread, least=least: rounds[thread] >= least, 60)

    monkeypatch.setattr(lifeline, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(lifeline, "_BEAT_S", 0.01)
    (first, second), said = lifelines(2)
    for _ in range(3):
        a_round_of(first, second, first)  # each has heard the other since the clock moved
        now[0] += 0.9 * lifeline._SILENT_S
    a_round_of(first, second, first)
    assert said.empty()  # they hear each other
    second._closing = True
    second._thread.join(60)
    a_round_of(first)  # has read all that the second one said
    now[0] += 1.1 * lifeline._SILENT_S
    assert said.get(timeout=60).startswith("Process 1 of 2 is gone")
    first.close()


@pytest.mark.parametrize("said", [b"", None, b"GET / HTTP/1.1\r\n", b"\0\0\0\0", b"\0\0"])
def test_a_stranger_that_connects_first_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, said: bytes | None):
    """Such as a scanner of ports: it says something else, closes the connection (None), or says nothing at all."""
    monkeypatch.setattr(lifeline, "_NAME_S", 0.2)
    strangers, port = list[socket.socket](), queue.Queue[int]()

    def share_port(own: int | None) -> int:
        if own is None:
            return port.get()
        strangers.append(socket.create_connection(("127.0.0.1", own)))
        if said is None:
            strangers[0].close()
        else:
            strangers[0].sendall(said)
        port.put(own)
        return own

    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(Lifeline, n, 2, "127.0.0.1", share_port) for n in range(2)]
        first, second = (future.result(30) for future in made)
    assert first._peers.keys() == {1}
    second.on_late = (heard := threading.Event()).set
    first.late()
    assert heard.wait(30)
    for line in (second, first):
        line.close()
    strangers[0].close()


def test_who_is_late_is_heard_by_all_and_ends_nobody():
    made, said = lifelines(3)
    heard = [threading.Event() for _ in made]
    for line, event in zip(made, heard, strict=True):
        line.on_late = event.set
    made[2].late()
    assert heard[0].wait(30)
    assert heard[1].wait(30)
    for line in made:
        line.close()
    assert said.empty()


def test_a_farewell_ends_nobody():
    (first, second), said = lifelines(2)
    second.close()
    for peer in second._peers.values():
        peer.shutdown(socket.SHUT_RDWR)
    first._thread.join(60)
    assert not first._thread.is_alive()  # nobody is left to watch over
    assert said.empty()
    first.close()


def test_one_may_leave_while_another_says_farewell():
    (first, second, third), said = lifelines(3)
    own = first._peers[1]

    class Slow:
        """The connection to the second, whose farewell takes until that of the third is heard."""

        def __getattr__(self, name: str) -> object:
            return getattr(own, name)

        def sendall(self, said: bytes) -> None:
            if said == lifeline._BYE:
                third.close()
                first._thread.join(timeout=60)
            own.sendall(said)

    first._peers[1] = Slow()
    first.close()
    assert not first._thread.is_alive()
    second.close()
    assert said.empty()


# --- two processes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_agree_and_each_gathers_the_weights_into_its_memory():
    first, second = run_workers("agree,weights")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert lines(first.stdout) == ["process 0 of 2"]
    assert lines(second.stdout) == []  # one of them prints
    for ended in (first, second):
        assert lines(ended.stderr) == ["raised too dear step True"]


@pytest.mark.slow
def test_two_processes_write_the_files_of_a_checkpoint_and_tell_what_one_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SHARED", str(tmp_path))
    first, second = run_workers("export")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    for index, ended in enumerate((first, second)):
        said = [line.partition(": ")[0] for line in lines(ended.stderr)]
        own, other = "raised [Errno 28] no room", "raised Process {} could not write its part of {!r}"
        assert said == [
            own if number == index else other.format(number, str(tmp_path / ".all.partial")) for number in range(2)
        ]


@pytest.mark.parametrize(
    ("mode", "lost", "left"), [("vanish", 1, 0), ("first_vanishes", 0, 1), ("first_vanishes_unseen", 0, 1)]
)
def test_a_killed_process_ends_the_other_with_one_sentence(mode, lost, left):
    began = time.monotonic()
    ended = run_workers(mode)
    assert time.monotonic() - began < 60
    assert ended[lost].returncode == -9
    assert ended[left].returncode == GONE
    said = (
        f"Process {lost} of 2 is gone, so process {left} ends too; the same command continues from the last checkpoint."
    )
    if lost == 0:  # JAX's runtime speaks at the same time: what it has in the first process is gone
        assert ended[left].stderr.count(said) == 1
    else:
        assert lines(ended[left].stderr) == [said]
    assert "Traceback" not in ended[left].stderr


def test_a_bug_in_one_process_shows_its_trace_and_ends_all():
    first, second = run_workers("fail")
    assert (first.returncode, second.returncode) == (GONE, 1)
    assert "ZeroDivisionError: a bug" in second.stderr
    assert "Process 1 of 2 is gone" in first.stderr
