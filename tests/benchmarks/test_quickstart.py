"""CPU-seconds of a quickstart: the command of its own Makefile, and what the processes of a run have used."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.quickstart import ROOT, cpu_seconds, make_command, measured

BUSY = "import time\nwhile time.process_time() < .5: pass\nprint(time.process_time(), flush=True)\ninput()"


def test_the_command_is_that_of_the_makefile_with_this_python_and_the_settings():
    words = shlex.split(make_command(ROOT, ["steps=1", "name=a b"]))
    assert words[-4:] == [sys.executable, "experiments/train.py", "steps=1", "name=a b"]


def test_the_cpu_seconds_of_a_session_are_those_of_its_processes():
    line = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(line, start_new_session=True, text=True, **pipes) as run:
        assert run.stdout is not None
        own = float(run.stdout.readline())
        assert own <= cpu_seconds(run.pid) + 0.05  # the kernel counts in ticks
        run.communicate("\n")
    assert cpu_seconds(run.pid) == 0


def test_a_run_that_fails_ends_with_its_output(tmp_path: Path):
    (tmp_path / "Makefile").write_text("quickstart:\n\techo broken; exit 3 # $(RUN)\n")
    with pytest.raises(SystemExit, match=r"(?s)ended with status 3:\nbroken"):
        measured(tmp_path, [])
