"""A disk that is used up: one sentence and exit status 5, and nothing half-written is taken for whole."""

import errno
import logging
import os
import resource
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from omegaconf import OmegaConf
from safetensors import SafetensorError

from orchestra_jax.config import cli
from orchestra_jax.config.schema import LoggerConfig, ReplayConfig, RunConfig
from orchestra_jax.money.run_budget import Halted
from orchestra_jax.money.unsaved import Unsaved
from orchestra_jax.training import checksums
from orchestra_jax.training.checkpointing import Checkpoints
from orchestra_jax.training.loggers.base import RunLog
from orchestra_jax.training.loggers.jsonl import JsonlLogger, read_metrics
from orchestra_jax.training.main import exit_status, run
from orchestra_jax.training.summary import write_summary

TENSORSTORE = ValueError(
    'RESOURCE_EXHAUSTED: Error writing "x/0" in OCDBT database at local file "/run/2.orbax-checkpoint-tmp/": '
    "Failed to write 4710400 bytes to file 7: No space left on device [os_error_code='28']"
)


def full(*args: object, **settings: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def chained() -> Exception:
    error = RuntimeError("the save failed")
    error.__cause__ = TENSORSTORE
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/run/metrics.jsonl"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        TENSORSTORE,
        chained(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_full_disk_is_one_sentence_with_a_status_of_its_own(tmp_path: Path, capsys, error: Exception):
    with pytest.raises(SystemExit, match=r"^5$"), exit_status(folder=str(tmp_path)):
        raise error
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("No space, or quota, is left on a disk that the run writes to (")
    assert f"{str(tmp_path)!r} has " in line
    assert "the same command continues from the last checkpoint" in line


def test_the_largest_size_of_a_file_is_told_like_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = JsonlLogger(run_with(tmp_path, "jsonl"), 1)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(SystemExit, match="5"), exit_status(folder=str(tmp_path)):
            log.log(1, {f"figure/{number}": 0.5 for number in range(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        log.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert ", a file may have 4.1e-06 GB): free some, or raise `ulimit -f`, and the same command continues" in line


def test_it_names_the_file_in_which_paid_answers_wait(tmp_path: Path, capsys):
    calls = tmp_path / "calls.db"
    Unsaved(calls).add(("k", "chat", "{}", "{}"))
    for error, status in ((OSError(errno.ENOSPC, "No space left on device"), 5), (Halted("The record is full."), 3)):
        with pytest.raises(SystemExit, match=rf"^{status}$"), exit_status(folder=str(tmp_path), calls=str(calls)):
            raise error
        (line,) = capsys.readouterr().err.splitlines()
        kept = str(tmp_path / "calls.db.unsaved.jsonl")
        assert line.endswith(f"Answers that were paid for are kept in {kept!r}: the same command takes them up.")


def test_training_names_it_too(tmp_path: Path, capsys, monkeypatch):
    cfg = replace(RunConfig(), output_dir=str(tmp_path), replay=ReplayConfig("replay_or_record", f"{tmp_path}/c.db"))
    Unsaved(tmp_path / "c.db").add(("k", "chat", "{}", "{}"))
    monkeypatch.setattr("orchestra_jax.training.main.preflight", full)
    with pytest.raises(SystemExit, match=r"^5$"):
        run(cfg)
    assert "c.db.unsaved.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.EEXIST])
def test_a_folder_that_refuses_writes_is_one_sentence_with_status_2(tmp_path: Path, capsys, number: int):
    file = tmp_path / "evaluation"
    with pytest.raises(SystemExit, match=r"^2$"), exit_status(folder=str(tmp_path)):
        raise OSError(number, os.strerror(number), str(file))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"The folder {str(file)!r} cannot be written ({os.strerror(number)}): set output_dir to")


def test_a_checkpoint_folder_that_refuses_writes_is_named_too(tmp_path: Path, capsys):
    file = tmp_path / "elsewhere" / "policy-000002"
    places = {"folder": str(tmp_path / "run"), "checkpoints": str(file.parent)}
    with pytest.raises(SystemExit, match=r"^2$"), exit_status(**places):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("cannot be written (Read-only file system): set checkpoint.folder to one that can.")
    file.parent.mkdir()
    with pytest.raises(SystemExit), exit_status(**places):
        full()
    assert f"{str(file.parent)!r} has " in capsys.readouterr().err


WAITING = """
import sys, threading
from orchestra_jax.config import cli

class Waiting(threading.Thread):  # as Orbax' own
    def join(self, timeout=None):
        raise TimeoutError

with cli.user_errors(ends_process=True):
    Waiting(target=threading.Event().wait).start()
    print("the sentence", file=sys.stderr)
    sys.exit(5)
"""


def test_a_thread_that_waits_for_ever_does_not_keep_a_run_that_has_ended():
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (5, "the sentence\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_an_output_dir_without_room_is_refused_before_anything_is_imported(tmp_path, capsys, monkeypatch, number):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(cli.HydraConfig, "get", lambda: SimpleNamespace(runtime=SimpleNamespace(output_dir="full")))
    monkeypatch.setattr(cli, "load", lambda *_: RunConfig())
    monkeypatch.setattr(cli.tempfile, "TemporaryFile", refuse)
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.configure(OmegaConf.create())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"The folder 'full' cannot be written ({os.strerror(number)}): ")
    assert ("free some" in line) == (number in (errno.ENOSPC, errno.EDQUOT))


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "Permission denied"), ValueError("a bug")])
def test_other_errors_keep_their_trace(error: Exception):
    with pytest.raises(type(error)), exit_status():
        raise error


def test_before_a_run_there_is_a_sentence_too(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match=r"^5$"), cli.user_errors():
        full()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("No space, or quota, is left on the disk of ")


def test_a_save_that_a_read_only_disk_refuses_is_not_traced(tmp_path: Path, monkeypatch, caplog):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / "checkpoints"))

    monkeypatch.setattr(logging.getLogger("absl"), "propagate", True)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    monkeypatch.setattr(checksums, "_write", refuse)
    checkpoints.save(1, {"x": jnp.ones(3)}, {"step": 1})
    with pytest.raises(SystemExit, match=r"^2$"), exit_status(folder=str(tmp_path)):
        checkpoints.close()
    assert not [record for record in caplog.records if record.exc_info]


def test_a_checkpoint_that_did_not_fit_is_none_and_its_remains_go(tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("absl"), "propagate", True)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    checkpoints.save(1, {"x": jnp.ones(3)}, {"step": 1})
    checkpoints.manager.wait_until_finished()
    with monkeypatch.context() as disk:
        disk.setattr(checksums, "_write", full)
        checkpoints.save(2, {"x": jnp.ones(3)}, {"step": 2})
        with pytest.raises(SystemExit) as stop, exit_status():
            checkpoints.close()
    assert stop.value.code == 5
    assert not [record for record in caplog.records if record.exc_info]  # no trace of Orbax' on stderr
    left = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert left > {"1"}
    assert "2" not in left
    later = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"1"}
    assert later.peek() == {"step": 1}
    later.save(2, {"x": jnp.ones(3)}, {"step": 2})
    later.close()
    assert later.peek() == {"step": 2}


def test_writes_that_fail_after_the_first_are_not_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """TensorStore's threads raise what they cannot deliver where nobody catches it."""
    traced: list[SimpleNamespace] = []
    monkeypatch.setattr(sys, "__unraisablehook__", traced.append)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    Checkpoints(tmp_path / "checkpoints", keep=2).close()
    closed, bug = (SimpleNamespace(exc_value=RuntimeError(text)) for text in ("Event loop is closed", "a bug"))
    sys.unraisablehook(closed)
    sys.unraisablehook(bug)
    assert traced == [bug]


def test_a_save_that_failed_in_the_background_is_raised_at_the_next_look(tmp_path: Path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    monkeypatch.setattr(checksums, "_write", full)
    checkpoints.save(1, {"x": jnp.ones(3)}, {})
    thread = next(thread for thread in threading.enumerate() if thread.name == "async_save")
    thread.join(60)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.check()
    with pytest.raises(OSError, match="No space left"):
        checkpoints.close()


def run_with(folder: Path, *names: str) -> RunConfig:
    return replace(RunConfig(), output_dir=str(folder), logger=LoggerConfig(names=list(names)))


def test_figures_for_tensorboard_do_not_wait_for_a_writer_that_is_dead(tmp_path: Path, monkeypatch):
    """Its thread died of the full disk, and the eleventh figure after that waited for ever."""
    ended: list[BaseException] = []

    def steps() -> None:
        try:
            with RunLog(run_with(tmp_path, "tensorboard"), 1) as log:
                log.log(1, {"reward": 0.5})
                monkeypatch.setattr("tensorboardX.record_writer.RecordWriter.write", full)
                for step in range(2, 5):
                    log.log(step, {f"figure/{number}": 0.5 for number in range(20)})
        except OSError as error:
            ended.append(error)

    thread = threading.Thread(target=steps, daemon=True)
    thread.start()
    thread.join(30)
    assert [error.errno for error in ended] == [errno.ENOSPC]  # type: ignore[attr-defined]
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]


def test_a_summary_that_did_not_fit_leaves_the_old_one(tmp_path: Path, monkeypatch):
    write_summary({"steps": 1}, tmp_path)
    before = (tmp_path / "summary.json").read_text()

    def half(self: Path, text: str, *rest: object, **settings: object) -> None:
        with self.open("w") as file:
            file.write(text[: len(text) // 2])
        full()

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left"):
        write_summary({"steps": 2}, tmp_path)
    assert (tmp_path / "summary.json").read_text() == before
