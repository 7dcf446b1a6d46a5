"""The trainer processes of a rehearsal: real ones, each with its log, started, killed and waited for."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestra_jax.io.shipped import EXPERIMENTS

_LINES = 15


class Trainers:
    """Processes that train one run together, or one that trains alone.

    Args:
        overrides: of `experiments/train.py`.
        logs: folder; process N appends to `N.log`.
        environment: further variables.
        count: processes.
        devices: virtual devices of each.
    """

    def __init__(
        self,
        overrides: Sequence[str],
        *,
        logs: Path,
        environment: Mapping[str, str],
        count: int = 1,
        devices: int = 1,
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        variables = {**os.environ, **environment, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}
        port = _free_port()
        self._logs = [logs / f"{index}.log" for index in range(count)]
        self._started: list[subprocess.Popen[bytes]] = []
        for index, log in enumerate(self._logs):
            joined = [f"mesh.coordinator=127.0.0.1:{port}", f"mesh.processes={count}", f"mesh.process={index}"]
            command = [sys.executable, str(EXPERIMENTS / "train.py"), *overrides, *(joined if count > 1 else ())]
            with log.open("ab") as stream:
                self._started.append(
                    subprocess.Popen(command, env=variables, stdout=stream, stderr=stream, start_new_session=True)
                )

    @property
    def alive(self) -> bool:
        """True if all of them run."""
        return all(process.poll() is None for process in self._started)

    def kill(self, index: int) -> None:
        """SIGKILL to one of them."""
        self._started[index].send_signal(signal.SIGKILL)

    def wait(self, timeout_s: float) -> list[int | None]:
        """Their exit statuses; None: of one that still ran after `timeout_s`, and was killed."""
        deadline = time.monotonic() + timeout_s
        found: list[int | None] = []
        for process in self._started:
            try:
                found.append(process.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                found.append(None)
        self.stop()
        return found

    def stop(self) -> None:
        """Ends those that still run; their servers end with them."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()

    def said(self, index: int = 0, lines: int = _LINES) -> str:
        """The last lines of a process's log."""
        text = self._logs[index].read_text(errors="replace")
        return "\n".join(text.rstrip().splitlines()[-lines:])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
