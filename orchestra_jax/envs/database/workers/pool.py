"""Warm workers of one world: each is started when needed, makes one call at a time, and is replaced when it dies."""

import json
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.tools.python.isolation import START_S, IsolatedScript, Launch, choose
from orchestra_jax.types import InfrastructureError

_PACKAGE = "orchestra_jax/envs/database"
_OURS = (
    "orchestra_jax/__init__.py",
    "orchestra_jax/types.py",
    "orchestra_jax/tools/__init__.py",
    "orchestra_jax/tools/schema.py",
    "orchestra_jax/tools/spec_check.py",
    "orchestra_jax/tools/foreign_schema.py",
    "orchestra_jax/tools/signatures.py",
    *(f"orchestra_jax/tools/python/{name}.py" for name in ("__init__", "common", "kernel", "seccomp")),
    "orchestra_jax/envs/__init__.py",
    *(f"{_PACKAGE}/{name}.py" for name in ("__init__", "frozen", "state", "session")),
    *(f"{_PACKAGE}/workers/{name}.py" for name in ("__init__", "worker", "folder")),
)
_SCHEMA = ("jsonschema", "jsonschema_specifications", "referencing", "rpds", "attr", "attrs", "typing_extensions")
_PYDANTIC = ("pydantic", "pydantic_core", "annotated_types", "typing_inspection")
_MOST_BYTES = 32 << 20  # the longest answer


@dataclass(frozen=True)
class WorkerLimits:
    """Limits of a call.

    Attributes:
        cpu_s: CPU seconds; more is the call's own fault, and an observation.
        load_s: CPU seconds that loading the world may take.
        timeout_s: wall-clock seconds until an answer; more is the worker's fault.
        memory_mb: MiB that the world and a call may use.
    """

    cpu_s: float = 2.0
    load_s: float = 30.0
    timeout_s: float = 60.0
    memory_mb: int = 1024


class CallTooLong(Exception):  # noqa: N818  an observation
    """The call took more CPU time than its limit."""


class WorldError(Exception):
    """The code of a world is broken: it cannot be loaded, or a tool raised what is no observation."""


class Workers:
    """Processes that serve one world, shared by threads.

    Args:
        adapter: "module:class" of a `worker.Adapter`.
        payload: its argument.
        files: files of this package that the adapter needs beside those of every worker.
        count: processes at most; further calls wait.
        isolation: see `tools.python.isolation.choose`.

    Raises:
        IsolationError: this machine does not offer the isolation.
    """

    def __init__(
        self,
        adapter: str,
        payload: Mapping[str, Any],
        files: tuple[str, ...] = (),
        *,
        count: int = 1,
        isolation: str = "auto",
        limits: WorkerLimits | None = None,
    ) -> None:
        if count < 1:
            raise ValueError("A world needs one worker at least.")
        self.count = count
        self._adapter, self._limits, self._isolation = adapter, limits or WorkerLimits(), choose(isolation)
        self._payload = json.dumps(payload).encode() + b"\n"
        self._program = IsolatedScript(f"{_PACKAGE}/workers/worker.py", (*_OURS, *files), (*_SCHEMA, *_PYDANTIC))
        self._idle, self._busy = list[_Process](), set[_Process]()
        self._slots, self._lock, self._closed = threading.Semaphore(count), threading.Lock(), False

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of a worker; blocks until one is free and has answered.

        Raises:
            CallTooLong: the call took too much CPU time.
            WorldError: the world's code is broken.
            InfrastructureError: the worker died, hung, or answered nonsense; the next request gets a fresh one.
        """
        with self._slots:
            with self._lock:
                if self._closed:
                    raise InfrastructureError("The workers of this world are closed; make a new one.")
                process = self._idle.pop() if self._idle else _Process()
                self._busy.add(process)
            try:
                if process.launch is None:
                    process.start(self._isolation, self._adapter, self._program, self._payload, self._limits)
                answer = process.request(json.dumps(request).encode() + b"\n", self._limits.timeout_s)
            except BaseException:
                process.stop()
                raise
            finally:
                with self._lock:
                    self._busy.discard(process)
                    if self._closed:
                        process.stop()
                    elif process.launch is not None:
                        self._idle.append(process)
        if "broken" in answer:
            raise WorldError(str(answer["broken"]))
        return answer

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the started workers."""
        with self._lock:
            started = [each.launch for each in (*self._busy, *self._idle)]
        return tuple(launch.process.pid for launch in started if launch is not None)

    def close(self) -> None:
        """Stop the workers; calls in flight raise InfrastructureError."""
        with self._lock:
            self._closed = True
            processes = [*self._idle, *self._busy]
        for process in processes:
            process.stop()


class _Process:
    """One worker process."""

    def __init__(self) -> None:
        self.launch: Launch | None = None
        self._rest = b""

    def start(
        self, isolation: str, adapter: str, program: IsolatedScript, payload: bytes, limits: WorkerLimits
    ) -> None:
        """Start the process and hand over the world.

        Raises:
            InfrastructureError: it did not come up.
        """
        options = {"adapter": adapter, **asdict(limits)}
        try:
            self.launch = Launch(isolation, options, program=program, kind=socket.SOCK_STREAM)
        except OSError as error:
            raise InfrastructureError(f"The worker of a world did not start: {error}.") from error
        hello = self._receive(START_S)
        if "refused" in hello:
            raise InfrastructureError(f"The worker of a world could not isolate itself: {hello['refused']}.")
        self._exchange(payload, START_S)

    def request(self, line: bytes, limit_s: float) -> dict[str, Any]:
        """Return the answer to a request; errors are those of `Workers.ask`."""
        answer = self._exchange(line, limit_s)
        if "ended" in answer:
            if answer["ended"] == signal.SIGPROF:
                raise CallTooLong
            raise InfrastructureError(
                f"The worker of a world ended in the middle of a call (signal {answer['ended']})."
            )
        return answer

    def stop(self) -> None:
        """Kill the process; may be called twice."""
        if self.launch is not None:
            self.launch.stop()
        self.launch = None

    def _exchange(self, line: bytes, limit_s: float) -> dict[str, Any]:
        assert self.launch is not None
        try:
            self.launch.connection.settimeout(limit_s)
            self.launch.connection.sendall(line)
        except OSError as error:
            raise InfrastructureError(f"The worker of a world died: {error}.") from error
        return self._receive(limit_s)

    def _receive(self, limit_s: float) -> dict[str, Any]:
        """Return the next line that is not empty; the socket's end is the end of a refusal, which has no line end."""
        deadline = time.monotonic() + limit_s
        parts, size = [self._rest.lstrip(b"\n")], 0
        while b"\n" not in parts[-1]:
            chunk = self._chunk(deadline, limit_s)
            if not chunk:
                parts.append(b"\n")
                break
            parts.append(chunk if any(parts) else chunk.lstrip(b"\n"))
            if (size := size + len(chunk)) > _MOST_BYTES:
                raise InfrastructureError(f"The worker of a world answered with more than {_MOST_BYTES >> 20} MiB.")
        line, _, self._rest = b"".join(parts).partition(b"\n")
        if not line:
            raise InfrastructureError("The worker of a world died in the middle of a call.")
        try:
            answer = read_json(line, _MOST_BYTES)
        except Unreadable as error:
            raise InfrastructureError(f"The worker of a world gave an answer that cannot be read: {error}.") from None
        if not isinstance(answer, dict):
            raise InfrastructureError("The worker of a world gave an answer that is no object.")
        return answer

    def _chunk(self, deadline: float, limit_s: float) -> bytes:
        assert self.launch is not None
        try:
            self.launch.connection.settimeout(max(0.001, deadline - time.monotonic()))
            return self.launch.connection.recv(1 << 20)
        except TimeoutError:
            raise InfrastructureError(f"The worker of a world gave no answer in {limit_s:g} s.") from None
        except OSError as error:
            raise InfrastructureError(f"The worker of a world died in the middle of a call: {error}.") from error
