"""Runs Python snippets in separate processes, hundreds at a time, for a few milliseconds each."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

from orchestra_jax.io.stopwatch import queued, waiting
from orchestra_jax.tools.python.common import EXCEPTION_EXIT, FLOOD_BYTES
from orchestra_jax.tools.python.isolation import START_S, Launch, choose
from orchestra_jax.types import InfrastructureError, ToolResult, Usage

_SIGNALS = {int(number): number.name for number in signal.Signals}  # real-time signals have none
_GRACE_S = 30.0  # beyond the time-out, which the worker itself enforces
_KEPT = 3  # processes for each snippet that may run at the same time: those with other libraries wait


class PythonSandbox:
    """A pool of warm worker processes that fork one child per snippet and never see what it contains.

    There is a worker for each set of libraries that snippets name, so a snippet finds imported what it names and
    nothing else, whatever ran before. docs/sandbox.md tells what a snippet sees and lists what holds it.

    The observation is what the snippet printed (stdout and stderr in order), and the value of its last statement
    where that is an expression, as in a REPL. An exception's last line, a time-out, a crash and a flood of output
    are the code's own fault: observations with `is_error`. The random module and string hashes start from a fixed
    seed, so the same code gives the same output.

    Attributes:
        kind: the isolation that was chosen: "bubblewrap", "namespaces" or "none".

    Args:
        workers: snippets that run at the same time; more wait in the order of arrival.
        timeout_s: wall-clock and CPU seconds per snippet.
        memory_mb: memory of a snippet: address space of each of its processes, and what all of them use.
        max_output: characters of output kept; the middle of a longer one is cut.
        file_mb, disk_mb: largest file a snippet can write, and all its files together; they are in memory.
        processes: processes and threads of a snippet at the same time.
        isolation: see `isolation.choose`; with "none" code runs with the rights of this user.

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
        if min(workers, file_mb, disk_mb, processes) < 1 or timeout_s <= 0 or memory_mb < 64 or max_output < 100:
            raise ValueError(
                "A sandbox needs workers >= 1, file_mb >= 1, disk_mb >= 1, processes >= 1, timeout_s > 0, "
                "memory_mb >= 64 and max_output >= 100."
            )
        self.timeout_s = timeout_s
        self._limits = {
            "timeout_s": timeout_s,
            "memory_mb": memory_mb,
            "max_output": max_output,
            "file_mb": file_mb,
            "disk_mb": disk_mb,
            "processes": processes,
        }
        self.kind = choose(isolation)
        self._slots, self._kept = workers, _KEPT * workers
        self._busy: set[_Worker] = set()
        self._idle: list[_Worker] = []  # the one that ran last is the last
        self._turns: tuple[Any, asyncio.Semaphore] = (None, asyncio.Semaphore())  # an event loop, and its snippets
        self._closed = False

    async def run(self, code: str) -> ToolResult:
        """Run one snippet; its ledger row bears the seconds it ran, without the wait for a worker.

        Raises:
            InfrastructureError: the worker died, or the sandbox is closed; the next call gets a new worker.
        """
        source, libraries = code.encode("utf-8", "surrogatepass"), frozenset[str]()
        if "import" in code:
            from orchestra_jax.tools.python.libraries import named_libraries

            libraries = named_libraries(code)
        if self._turns[0] is not (loop := asyncio.get_running_loop()):
            self._turns = loop, asyncio.Semaphore(self._slots)  # a run may use several loops after one another
        turns = self._turns[1]
        await queued(turns.acquire())
        try:
            worker = self._take(libraries)
            try:
                answer, output = await worker.request(source)
            except BaseException:
                worker.stop()  # dead, or (cancelled) still busy with this snippet
                raise
            finally:
                self._busy.remove(worker)
                if worker.launch is not None:
                    self._idle.append(worker)
        finally:
            turns.release()
        text, error = observe(output, answer["status"], answer["stopped"], self._limits)
        return ToolResult(text, (Usage("python", seconds=answer["seconds"]),), error)

    def close(self) -> None:
        """Stop the workers; calls in flight raise InfrastructureError."""
        self._closed = True
        for worker in (*self._busy, *self._idle):
            worker.stop()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the started workers."""
        workers = (*self._busy, *self._idle)
        return tuple(worker.launch.process.pid for worker in workers if worker.launch is not None)

    def _take(self, libraries: frozenset[str]) -> "_Worker":
        """Return an idle worker with these libraries, else a new one, for which the longest idle may have to go."""
        if self._closed:
            raise InfrastructureError("The Python sandbox is closed; make a new one.")
        for worker in reversed(self._idle):
            if worker.libraries == libraries:
                self._idle.remove(worker)
                break
        else:
            if len(self._busy) + len(self._idle) >= self._kept:
                self._idle.pop(0).stop()
            worker = _Worker(self.kind, self._limits, libraries)
        self._busy.add(worker)
        return worker


class _Worker:
    """One worker process, started at its first request."""

    def __init__(self, isolation: str, limits: dict[str, Any], libraries: frozenset[str]) -> None:
        self.launch: Launch | None = None
        self.libraries = libraries
        self._kind, self._limits = isolation, limits
        self._pending: asyncio.Task[tuple[dict[str, Any], bytes]] | None = None

    async def request(self, code: bytes) -> tuple[dict[str, Any], bytes]:
        """Run one snippet; return the worker's answer, see `worker.py`, and the output, cut if it is a flood.

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

    async def _ask(self, code: bytes) -> tuple[dict[str, Any], bytes]:
        if self.launch is None:
            with waiting():
                await self._start()
        assert self.launch is not None
        files: list[int] = []
        try:
            files += [os.memfd_create("code"), os.memfd_create("output")]
            os.write(files[0], code)
            socket.send_fds(self.launch.connection, [b"!"], files)
            answer = await self._receive(self._limits["timeout_s"] + _GRACE_S)
            return answer, os.pread(files[1], FLOOD_BYTES + 1, 0)
        except OSError as error:
            raise InfrastructureError(f"The sandbox worker died, or no file could be opened: {error}.") from error
        finally:
            for descriptor in files:
                os.close(descriptor)

    async def _start(self) -> None:
        try:
            self.launch = Launch(self._kind, self._limits, self.libraries)
        except OSError as error:
            raise InfrastructureError(f"The sandbox worker did not start: {error}.") from error
        self.launch.connection.setblocking(False)
        hello = await self._receive(START_S)
        if "refused" in hello:
            raise InfrastructureError(f"The sandbox worker could not isolate itself: {hello['refused']}.")

    def stop(self) -> None:
        """Kill the process; may be called twice."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()
        if self.launch is not None:
            self.launch.stop()
        self.launch = None

    async def _receive(self, limit_s: float) -> dict[str, Any]:
        assert self.launch is not None
        try:
            async with asyncio.timeout(limit_s):
                message = await asyncio.get_running_loop().sock_recv(self.launch.connection, 1 << 16)
        except TimeoutError:
            raise InfrastructureError(f"The sandbox worker gave no answer in {limit_s:g} s.") from None
        except OSError as error:
            raise InfrastructureError(f"The sandbox worker died while the code ran: {error}.") from error
        if not message:
            raise InfrastructureError("The sandbox worker died while the code ran.")
        return dict(json.loads(message))


def observe(output: bytes, status: int, stopped: str, limits: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the observation, and whether it is an error; never raise, whatever a snippet printed and however it ended.

    Args:
        output: what it printed, at least the first `FLOOD_BYTES + 1` bytes.
        status: how its process ended, as of `os.waitpid`.
        stopped: why the worker ended it: "time", "memory", "output", or "".
        limits: of the sandbox: timeout_s, memory_mb and max_output.
    """
    text = output[:FLOOD_BYTES].decode("utf-8", "replace")
    if len(text) > limits["max_output"]:
        head, tail = limits["max_output"] * 3 // 4, limits["max_output"] // 4
        text = f"{text[:head]}\n[... {len(text) - head - tail} characters cut ...]\n{text[len(text) - tail :]}"
    problem = _problem(status, "output" if len(output) > FLOOD_BYTES else stopped, limits)
    text = text.removesuffix("\n")
    if problem:
        text = f"{text}\n{problem}" if text else problem
    return text, bool(problem) or status != 0


def _problem(status: int, stopped: str, limits: Mapping[str, Any]) -> str:
    """Return a sentence on how the code ended, if its own words do not tell."""
    if stopped == "output":
        return f"The code was stopped because it printed more than {FLOOD_BYTES} bytes."
    if stopped == "memory":
        return f"The code was stopped because it used more than {limits['memory_mb']} MiB of memory."
    if stopped:
        return f"The code was stopped after {limits['timeout_s']:g} s (time-out)."
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return f"The code was stopped after {limits['timeout_s']:g} s of CPU time (time-out)."
        return f"The code was killed by {_SIGNALS.get(number, f'signal {number}')}."
    code = os.WEXITSTATUS(status)
    return "" if code in (0, EXCEPTION_EXIT) else f"The code ended with exit code {code}."
