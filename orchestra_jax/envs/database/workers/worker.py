"""The process that runs a world's tools in the sandbox: loaded once, then one call after another. A script.

The first process keeps its place in the sandbox and forks the one that runs foreign code, which has no right but to
compute. Both write to the socket at fd 0, one JSON value a line. Out: {"isolation": [...]}, or {"refused": str}. In:
the adapter's argument. Out: {"ready": true}. Then requests and their answers; {"describe": true} is the first request.
An answer {"broken": str} tells the exception of the world, {"ended": signal or 0} that the inner process ended.
"""

import _socket  # this much of `socket` is enough here
import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from typing import Any, Protocol

from orchestra_jax.tools.python import kernel, seccomp

_FILES, _FILE_BYTES, _PROCESSES = 64, 1 << 20, 8
_REASON = 2000  # characters of an exception


class Adapter(Protocol):
    """The tools of one world, made of the host's payload in the inner process."""

    def describe(self) -> dict[str, Any]:
        """Return {"tools": [...]} with specifications and kinds, and the "tables" if the host has not got them."""

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make one call; `remote.RemoteWorld` writes the request and reads the answer."""


class Channel:
    """JSON lines over the socket."""

    def __init__(self, connection: "_socket.socket") -> None:
        self._connection = connection

    def send(self, value: Any) -> None:
        """Send a value as one line; raises TypeError or ValueError, and sends nothing, if it is no JSON."""
        line = json.dumps(value, allow_nan=False).encode()
        self._connection.sendall(b"\n" + line + b"\n")  # after a line that broke off

    def lines(self) -> Iterator[bytes]:
        """Yield lines until the host closes its end."""
        parts = list[bytes]()
        while chunk := self._connection.recv(1 << 20):
            *done, rest = chunk.split(b"\n")
            for line in done:
                if whole := b"".join([*parts, line]):
                    yield whole
                parts = []
            parts.append(rest)


def _confine(config: dict[str, Any], mapped: int, sealed: bool) -> None:
    """Take all rights but to compute from the inner process; its memory counts from the `mapped` bytes on."""
    os.setsid()
    if sealed:
        kernel.confine_snippet(seccomp.snippet_filter())
    kernel.die_with_parent()  # a change of the user would undo it
    limits = [
        (resource.RLIMIT_AS, mapped + (config["memory_mb"] << 20)),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _FILES),
    ]
    if sealed:  # else this counts every process of the user
        limits.append((resource.RLIMIT_NPROC, _PROCESSES))
    for name, wanted in limits:
        _, most = resource.getrlimit(name)
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(name, (limit, limit))


def _serve(made_by: Any, payload: Any, lines: Iterator[bytes], channel: Channel, config: dict[str, Any]) -> None:
    """Answer until the host closes; a call that takes too much CPU time is the end of this process."""
    adapter: Adapter | None = None
    for line in lines:
        request = json.loads(line)
        try:
            if adapter is None:
                signal.setitimer(signal.ITIMER_PROF, config["load_s"])
                adapter = made_by(payload)
            signal.setitimer(signal.ITIMER_PROF, config["cpu_s"])
            channel.send(adapter.describe() if "describe" in request else adapter.call(request))
        except ConnectionError:
            return
        except BaseException as error:  # whatever foreign code raises, an exit included
            channel.send({"broken": f"{type(error).__name__}: {error}"[:_REASON]})
        signal.setitimer(signal.ITIMER_PROF, 0)


def _mapped(processes: int | None) -> int:
    """Return the bytes of address space of this process."""
    path = "/proc/self/statm" if processes is None else "1/statm"
    with open(os.open(path, os.O_RDONLY, dir_fd=processes)) as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main() -> None:
    """Isolate this process, leave the work to a fork of it, and tell how the fork ended."""
    config = json.loads(sys.argv[1])
    channel = Channel(_socket.socket(fileno=os.dup(0)))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    try:
        processes = None if config["isolation"] == "none" else kernel.seal_worker()
    except OSError as error:
        channel.send({"refused": str(error.strerror)})
        return
    sys.path += config["site"]
    sys.argv = [""]
    os.environ.clear()
    module, _, name = config["adapter"].partition(":")
    made_by = getattr(importlib.import_module(module), name)
    with contextlib.suppress(ConnectionError):  # the host has dropped this worker
        channel.send({"isolation": [config["isolation"]]})
        lines = channel.lines()
        payload = next(lines, None)
        if payload is None:
            return
        channel.send({"ready": True})
        mapped = _mapped(processes)
        if processes is not None:
            kernel.take_filter(seccomp.worker_filter())
        gc.collect()
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            try:
                if processes is not None:
                    os.close(processes)
                _confine(config, mapped, processes is not None)
                _serve(made_by, json.loads(payload), lines, channel, config)
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        channel.send({"ended": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0})


if __name__ == "__main__":
    main()
