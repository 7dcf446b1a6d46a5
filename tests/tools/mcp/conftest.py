"""What the tests of MCP share: the server by hand, a run's tools with it, and whether one of its processes is left."""

import json
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import RunConfig

SCRIPT = Path(__file__).parent / "stdio_server.py"


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., str]:
    """The command of the server by hand, which says its version and has the faults that are named."""

    def make(version: str = "1.0", *faults: str) -> str:
        # -S: it needs no package. The folder is a mark by which this test knows its own processes.
        return shlex.join([sys.executable, "-S", str(SCRIPT), version, str(tmp_path), *faults])

    return make


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., RunConfig]:
    """The settings of a run on questions with these servers, and nothing else to call."""

    def make(servers: list[Any], *overrides: str) -> RunConfig:
        questions = tmp_path / "questions.jsonl"
        rows = [{"question": f"How much is {n} * 7?", "answer": str(7 * n)} for n in range(1, 13)]
        questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
        given = "tools.mcp=" + re.sub(r'"([\w-]+)": ', r"\1: ", json.dumps(servers))  # Hydra quotes no keys
        return compose(
            "env=qa", f"data.path={questions}", "data=jsonl", "tools=offline", "tools.names=[]", given, *overrides
        )

    return make


@pytest.fixture
def none_left(tmp_path: Path) -> Callable[[], None]:
    """Fails where a process of this test's server does not end."""

    def check() -> None:
        until = time.monotonic() + 60
        while found := [pid for pid in _processes() if str(tmp_path) in _command_line(pid)]:
            assert time.monotonic() < until, found
            time.sleep(0.02)

    return check


def _processes() -> list[str]:
    return [folder.name for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _command_line(pid: str) -> str:
    try:
        words = Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    return words if SCRIPT.name in words else ""
