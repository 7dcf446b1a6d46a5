"""Python processes with a memory, a session and signals of their own, which share the time of their imports.

A new interpreter imports for 4 seconds of CPU before a run begins. A server of the standard library imports
`preloaded` once, starts nothing, and forks for each process, which then is what `python COMMAND` would be.
"""

import atexit
import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.processes.preloaded"])
# Wait for the server at the end: it leaves nothing running, and its time counts as ours.
atexit.register(forkserver._forkserver._stop)


class Forked:
    """A process with the methods of `subprocess.Popen` that tests use.

    Args:
        command: what would follow `python`: "-c" with code, "-m" with a module, or a script, and the arguments.
        environment: of the process, whole.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.args = list(command)
        self._said = tempfile.TemporaryDirectory()
        self._files = [Path(self._said.name, name) for name in ("stdout", "stderr")]
        self._process = _CONTEXT.Process(
            target=_become, args=(self.args, dict(environment), str(folder), [str(file) for file in self._files])
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, or minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        if self.returncode is None:
            self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end and return what it wrote; raise `subprocess.TimeoutExpired`: it was not there in time."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        out, err = (file.read_text() if file.exists() else "" for file in self._files)
        return out, err


def run_forked(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    """Return how a process ended; none is left running."""
    process = Forked(command, environment, folder)
    try:
        out, err = process.communicate(timeout_s)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _become(command: list[str], environment: dict[str, str], folder: str, files: list[str]) -> None:
    os.setsid()
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None  # TMPDIR may be another one
    try:
        if command[0] == "-c":
            sys.argv = ["-c", *command[2:]]
            exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
        elif command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            sys.path.insert(0, str(Path(command[0]).resolve().parent))
            runpy.run_path(command[0], run_name="__main__")
    finally:
        # What an interpreter does at its end, and multiprocessing leaves out.
        threading._shutdown()
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
