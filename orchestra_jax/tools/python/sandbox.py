"""Runs Python snippets in separate processes, hundreds at a time, for about a millisecond each."""

import asyncio
import json
import weakref
from collections import deque
from typing import Any

from orchestra_jax.stopwatch import queued
from orchestra_jax.tools.python.isolation import START_S, Launch, choose
from orchestra_jax.types import CODE, InfrastructureError, ToolResult, ToolSpec, Usage

TOOL = ToolSpec(
    name="python",
    description="Runs Python code and returns what it prints and the value of its last line.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The code; it starts from a fresh interpreter."}},
        "required": ["code"],
    },
    local=True,
    traits=(CODE,),
)
_GRACE_S = 30.0  # beyond the time-out, which the worker itself enforces


class PythonSandbox:
    """A pool of warm worker processes that fork one child per snippet.

    The observation is what the snippet printed (stdout and stderr in order), and the value of its last statement
    where that is an expression, as in a REPL. An exception's last line, a time-out, a crash and a flood of output
    are the code's own fault: observations with `is_error`. The random module and string hashes start from a fixed
    seed, so the same code gives the same output. numpy, scipy, sympy and mpmath can be imported where they are
    installed beside this package.

    A snippet sees the system's programs, Python and those libraries, all read-only; a tmpfs of its own that starts
    empty, with its working directory and /tmp; no network, no other process, no environment. It is a user without any
    capability. docs/sandbox.md lists what holds it, and what does not.

    Attributes:
        isolation: what is in force: the name, the namespaces ("user", "mount", "network", "ipc", "pid") and "seccomp";
            empty until a worker has started, and with `isolation="none"`.
        kind: the isolation that was chosen: "bubblewrap", "namespaces" or "none".

    Args:
        workers: snippets that run at the same time; more wait in the order of arrival.
        timeout_s: wall-clock and CPU seconds per snippet.
        memory_mb: MiB of memory of a snippet: address space of each of its processes, and what all of them use.
        max_output: characters of output kept; the middle of a longer one is cut.
        file_mb: largest file a snippet can write, in MiB.
        disk_mb: all files of a snippet together, in MiB; they are in memory.
        processes: processes and threads of a snippet at the same time.
        isolation: "bubblewrap", "namespaces" (our own, where bwrap is not installed), "auto" for the first of them
            that works here, or "none": code runs with the rights of this user, and only its limits hold it.

    Raises:
        IsolationError: this machine does not offer the isolation.
    """

    def __init__(
        self,
        workers: int = 2,
        timeout_s: float = 10.0,
        memory_mb: int = 512,
        max_output: int = 4000,
        file_mb: int = 16,
        *,
        disk_mb: int = 64,
        processes: int = 32,
        isolation: str = "auto",
    ) -> None:
        if workers < 1 or timeout_s <= 0 or memory_mb < 64 or max_output < 100 or file_mb < 1:
            raise ValueError(
                "A sandbox needs workers >= 1, timeout_s > 0, memory_mb >= 64, max_output >= 100 and file_mb >= 1."
            )
        if disk_mb < 1 or processes < 1:
            raise ValueError("A sandbox needs disk_mb >= 1 and processes >= 1.")
        self.isolation: tuple[str, ...] = ()
        self.timeout_s = timeout_s
        limits = {
            "timeout_s": timeout_s, "memory_mb": memory_mb, "max_output": max_output, "file_mb": file_mb,
            "disk_mb": disk_mb, "processes": processes,
        }  # fmt: skip
        self.kind = choose(isolation)
        self._idle = [_Worker(self.kind, limits) for _ in range(workers)]
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
        return tuple(worker.launch.process.pid for worker in self._all if worker.launch is not None)

    async def _acquire(self) -> "_Worker":
        # Not asyncio.Semaphore: it is bound to one event loop, and a run may use several after one another.
        while not self._idle and not self._closed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await queued(future)
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

    def __init__(self, isolation: str, limits: dict[str, Any]) -> None:
        self.launch: Launch | None = None
        self.isolation: tuple[str, ...] = ()
        self._kind, self._limits = isolation, limits
        self._clean: weakref.finalize[..., "_Worker"] | None = None
        self._pending: asyncio.Task[dict[str, Any]] | None = None

    async def request(self, code: str) -> dict[str, Any]:
        """The answer about one snippet.

        Raises:
            InfrastructureError: the process died, gave no answer in time, or was stopped.
        """
        self._pending = asyncio.create_task(self._ask(code))
        try:
            return await self._pending
        except asyncio.CancelledError:
            if self._pending is None:
                raise InfrastructureError("The sandbox was closed while the code ran.") from None
            raise
        finally:
            self._pending = None

    async def _ask(self, code: str) -> dict[str, Any]:
        if self.launch is None:
            self._start()
            hello = await self._receive(START_S)
            if "refused" in hello:
                raise InfrastructureError(f"The sandbox worker could not isolate itself: {hello['refused']}.")
            self.isolation = tuple(hello["isolation"])
        assert self.launch is not None
        body = json.dumps({"code": code}).encode()
        try:
            await asyncio.get_running_loop().sock_sendall(self.launch.connection, len(body).to_bytes(4) + body)
        except OSError as error:
            raise InfrastructureError(f"The sandbox worker died before it took the code: {error}.") from error
        return await self._receive(self._limits["timeout_s"] + _GRACE_S)

    def _start(self) -> None:
        try:
            self.launch = Launch(self._kind, self._limits)
        except OSError as error:
            raise InfrastructureError(f"The sandbox worker did not start: {error}.") from error
        self.launch.connection.setblocking(False)
        # Runs in stop(), else when the sandbox is garbage, else when the interpreter exits.
        self._clean = weakref.finalize(self, self.launch.stop)

    def stop(self) -> None:
        """Kills the process and removes its directory; the next request starts a new one."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()
        if self._clean is not None:
            self._clean()
        self.launch = self._clean = None

    async def _receive(self, limit_s: float) -> dict[str, Any]:
        """One message."""
        assert self.launch is not None
        loop, connection, data = asyncio.get_running_loop(), self.launch.connection, bytearray()
        try:
            async with asyncio.timeout(limit_s):
                while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4]):
                    chunk = await loop.sock_recv(connection, 1 << 16)
                    if not chunk:
                        raise InfrastructureError("The sandbox worker died while the code ran.")
                    data += chunk
        except TimeoutError:
            raise InfrastructureError(f"The sandbox worker gave no answer in {limit_s:g} s.") from None
        except OSError as error:
            raise InfrastructureError(f"The sandbox worker died while the code ran: {error}.") from error
        return dict(json.loads(data[4:]))
