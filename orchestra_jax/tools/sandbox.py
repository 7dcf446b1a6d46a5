"""Runs Python snippets in separate processes, hundreds at a time, for about a millisecond each."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from orchestra_jax.types import InfrastructureError, ToolResult, ToolSpec, Usage

TOOL = ToolSpec(
    name="python",
    description="Runs Python code and returns what it prints and the value of its last line.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The code; it starts from a fresh interpreter."}},
        "required": ["code"],
    },
    local=True,
)
_WORKER = Path(__file__).with_name("sandbox_worker.py")
_START_S = 60.0  # a worker that does not come up in this time is dead
_GRACE_S = 30.0  # beyond the time-out, which the worker itself enforces


class PythonSandbox:
    """A pool of warm worker processes that fork one child per snippet.

    The observation is what the snippet printed (stdout and stderr in order), and the value of its last statement
    where that is an expression, as in a REPL. An exception's last line, a time-out, a crash and a flood of output
    are the code's own fault: observations with `is_error`. The random module and string hashes start from a fixed
    seed, so the same code gives the same output.

    What it isolates: each snippet is an own process with an empty environment, no open files of ours, stdlib only,
    a temporary working directory that is removed afterwards, and limits on CPU seconds, address space per process,
    file size and (not for root) processes. Where the kernel lets unprivileged processes create namespaces there is
    no network and no view of other processes, and everything the snippet started is killed with it; `isolation`
    names the namespaces in force. What it does not isolate: **the file system is the host's, readable and writable
    with the rights of this user**; memory is limited per process, not in sum; without the pid namespace a
    process that leaves its group survives. Do not run code of an adversary here.

    Attributes:
        isolation: namespaces in force ("user", "network", "ipc", "pid"), empty until a worker has started or where
            the kernel refuses.

    Args:
        workers: snippets that run at the same time; more wait in the order of arrival.
        timeout_s: wall-clock and CPU seconds per snippet.
        memory_mb: address space per process of the snippet, in MiB.
        max_output: characters of output kept; the middle of a longer one is cut.
        file_mb: largest file a snippet can write, in MiB.
    """

    def __init__(
        self,
        workers: int = 2,
        timeout_s: float = 10.0,
        memory_mb: int = 512,
        max_output: int = 4000,
        file_mb: int = 16,
    ) -> None:
        if workers < 1 or timeout_s <= 0 or memory_mb < 64 or max_output < 100 or file_mb < 1:
            raise ValueError(
                "A sandbox needs workers >= 1, timeout_s > 0, memory_mb >= 64, max_output >= 100 and file_mb >= 1."
            )
        self.isolation: tuple[str, ...] = ()
        self.timeout_s = timeout_s
        self._config = {"timeout_s": timeout_s, "memory_mb": memory_mb, "max_output": max_output, "file_mb": file_mb}
        self._idle = [_Worker(self._config) for _ in range(workers)]
        self._all = tuple(self._idle)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def run(self, code: str) -> ToolResult:
        """Executes one snippet; its ledger row carries the seconds it ran, without the wait for a worker.

        Raises:
            InfrastructureError: the worker died, or the sandbox is closed; the next call gets a new worker.
        """
        worker = await self._acquire()
        try:
            answer = await worker.request(code)
        except BaseException:
            worker.stop()  # dead, or (cancelled) still busy with this snippet
            raise
        finally:
            self._release(worker)
        self.isolation = worker.isolation
        return ToolResult(answer["text"], (Usage(TOOL.name, seconds=answer["seconds"]),), answer["error"])

    def close(self) -> None:
        """Stops the workers; calls in flight raise InfrastructureError."""
        self._closed = True
        for worker in self._all:
            worker.stop()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the started workers."""
        return tuple(worker.process.pid for worker in self._all if worker.process is not None)

    async def _acquire(self) -> "_Worker":
        # Not asyncio.Semaphore: it is bound to one event loop, and a run may use several after one another.
        while not self._idle and not self._closed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._wake()
                raise
        if self._closed:
            raise InfrastructureError("The Python sandbox is closed; make a new one.")
        return self._idle.pop()

    def _release(self, worker: "_Worker") -> None:
        self._idle.append(worker)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done() and not future.get_loop().is_closed():
                future.set_result(None)
                return


class _Worker:
    """One worker process, started at its first request and again after it died."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.isolation: tuple[str, ...] = ()
        self._config = config
        self._socket: socket.socket | None = None
        self._clean: weakref.finalize[..., "_Worker"] | None = None
        self._pending: asyncio.Future[dict[str, Any]] | None = None

    async def request(self, code: str) -> dict[str, Any]:
        if self._socket is None:
            self._start()
            self.isolation = tuple((await self._receive(_START_S))["isolation"])
        body = json.dumps({"code": code}).encode()
        await self._send(len(body).to_bytes(4) + body)
        return await self._receive(self._config["timeout_s"] + _GRACE_S)

    def _start(self) -> None:
        directory = tempfile.mkdtemp(prefix="orchestra-sandbox-")
        ours, theirs = socket.socketpair()
        config = json.dumps({**self._config, "directory": directory})
        # -I would also ignore PYTHONHASHSEED, so its other parts are given one by one and the environment is ours.
        command = [sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", str(_WORKER), config]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "0"},
                cwd=directory,
                start_new_session=True,  # Ctrl-C in the terminal is for the trainer, which ends the workers itself
            )
        except OSError as error:
            ours.close()
            shutil.rmtree(directory, ignore_errors=True)
            raise InfrastructureError(f"The sandbox worker did not start: {error}.") from error
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket = ours
        # Runs in stop(), else when the sandbox is garbage, else when the interpreter exits.
        self._clean = weakref.finalize(self, _remove, ours, self.process, directory)

    def stop(self) -> None:
        """Kills the process and removes its directory; the next request starts a new one."""
        if self._pending is not None and not self._pending.done():
            self._pending.set_exception(InfrastructureError("The sandbox was closed while the code ran."))
        if self._clean is not None:
            self._clean()
        self.process = self._socket = self._clean = None

    async def _send(self, data: bytes) -> None:
        assert self._socket is not None
        try:
            sent = self._socket.send(data)
            if sent < len(data):
                await asyncio.get_running_loop().sock_sendall(self._socket, data[sent:])
        except OSError as error:
            raise InfrastructureError(f"The sandbox worker died before it took the code: {error}.") from error

    async def _receive(self, limit_s: float) -> dict[str, Any]:
        """One message.

        Raises:
            InfrastructureError: the process died or gave no answer within `limit_s` seconds.
        """
        assert self._socket is not None
        connection = self._socket
        loop = asyncio.get_running_loop()
        future: asyncio.Future[dict[str, Any]] = loop.create_future()
        data = bytearray()

        def readable() -> None:
            if future.done():
                return
            try:
                chunk = connection.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                future.set_exception(InfrastructureError(f"The sandbox worker died while the code ran: {error}."))
                return
            if not chunk:
                future.set_exception(InfrastructureError("The sandbox worker died while the code ran."))
                return
            data.extend(chunk)
            if len(data) >= 4 and len(data) == 4 + int.from_bytes(data[:4]):
                future.set_result(json.loads(data[4:]))

        def overdue() -> None:
            if not future.done():
                future.set_exception(InfrastructureError(f"The sandbox worker gave no answer in {limit_s:g} s."))

        timer = loop.call_later(limit_s, overdue)
        descriptor = connection.fileno()
        loop.add_reader(descriptor, readable)
        self._pending = future
        try:
            return await future
        finally:
            self._pending = None
            timer.cancel()
            loop.remove_reader(descriptor)


def _remove(connection: socket.socket, process: subprocess.Popen[bytes], directory: str) -> None:
    connection.close()
    process.kill()
    process.wait()
    # A snippet may have taken rights away; only root could remove such a directory as it is.
    for path, names, _ in os.walk(directory):
        for child in (os.path.join(path, name) for name in names):
            if not os.path.islink(child):
                os.chmod(child, 0o700)
    shutil.rmtree(directory, ignore_errors=True)
