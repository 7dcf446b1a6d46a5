"""Starts the processes of a test and waits for them."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NOTE = re.compile(r"\[transformers\]|\[Gloo\]|[IWEF]\d{4} \d\d:")  # the last is absl's: level and date
# Gloo's threads write a note in pieces, and into each other's lines: one may begin anywhere.
_TORN = re.compile(
    r"(\[Gloo\] Rank |\d+| is connected to | peer ranks\. |Expected number of connected peer ranks is : )*"
)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(command: Sequence[str], devices: int = 1, environment: Mapping[str, str] | None = None) -> subprocess.Popen:
    """A process with so many virtual devices, in a process group of its own."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    changed = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), **(environment or {})}
    return subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=os.environ | changed, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def holder(program: str, *arguments: object) -> tuple[subprocess.Popen[str], str]:
    """A process of this program, which goes on until it is told otherwise, and the first line that it says."""
    started = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert started.stdout is not None
    return started, started.stdout.readline().strip()


def wait(started: Sequence[subprocess.Popen], timeout_s: float = 600.0) -> list[subprocess.CompletedProcess[str]]:
    """What they returned; none is left running."""
    deadline, ended = time.monotonic() + timeout_s, []
    try:
        for process in started:
            out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    finally:
        for process in started:
            process.kill()
    return ended


def lines(text: str) -> list[str]:
    """Lines of stdout or stderr without the one-line notes of the libraries below."""
    return [line for line in text.splitlines() if not (_NOTE.match(line) or _TORN.fullmatch(line))]
