"""The worker process of `sandbox.py`: warm once, then one fork per snippet. A script that needs only the stdlib.

A fork inherits the worker's memory, so nothing of a snippet may ever lie there: code and output are two files that the
sandbox makes for each. The child alone reads the one and writes the other; the worker passes them on.

Protocol on the socket at fd 0, a message a packet. First out: {"ready": true}, or {"refused": str}. Then in: any
byte, with the descriptors of code and output; out: {"status": int, "stopped": str, "seconds": float}, where status is
that of waitpid and `stopped` says why the snippet had to be ended ("time", "memory", "output", "" for not). Until the
socket closes.
"""

# ruff: noqa: F401, E402  (preloaded modules cost a snippet nothing to import)
import os

_register_at_fork = os.register_at_fork
os.register_at_fork = lambda **_: None  # random would reseed in every child: 0.1 ms, and another output each time
import random

os.register_at_fork = _register_at_fork

import _socket  # all of `socket` that is wanted here
import ast
import builtins
import collections
import contextlib
import ctypes
import datetime
import decimal
import fractions
import functools
import gc
import importlib
import itertools
import json
import math
import re
import resource
import select
import shutil
import signal
import statistics
import string
import struct
import sys
import time
import types

from orchestra_jax.tools.python import common, kernel, seccomp, snippet

_WATCH_S = 0.05  # between two looks at the memory that all processes of a snippet use, and at what they printed
_WORKSPACE_FILES = 4096
_STACK_BYTES = 8 << 20
_PENDING_SIGNALS = 256  # and timers: a user has some ten thousand
_SOCKET_BYTES = 1 << 19  # what the kernel buffers at most for one, with the kernel's own limits as they usually are
# One thread: a snippet has few processes, and each thread of OpenBLAS would reserve address space besides.
_LIBRARY_ENVIRONMENT = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_UNBACKED = re.compile(rb"^(?:RssAnon|HugetlbPages|VmSwap):\s*(\d+) kB", re.MULTILINE)


class _SnippetRunner:
    """Runs one snippet after another, each in a process that is forked from this one.

    Args:
        config: the options of `PythonSandbox`, and those of `isolation.Launch`.
        processes: descriptor of /proc of the sealed worker, None where nothing is isolated.
    """

    def __init__(self, config: dict, connection: "_socket.socket", processes: int | None) -> None:
        self.timeout_s: float = config["timeout_s"]
        self.directory: str = config["directory"]
        self.memory: int = config["memory_mb"] << 20
        self.disk_mb: int = config["disk_mb"]
        self.connection, self.processes = connection, processes
        self.null = os.open(os.devnull, os.O_RDONLY)
        self.filter = b"" if processes is None else seccomp.snippet_filter()
        self.count = 0
        cpu, file = math.ceil(self.timeout_s), config["file_mb"] << 20
        limits = [
            (resource.RLIMIT_CPU, (cpu, cpu + 1)),
            (resource.RLIMIT_FSIZE, (file, file)),
            (resource.RLIMIT_STACK, (_STACK_BYTES, _STACK_BYTES)),
            (resource.RLIMIT_CORE, (0, 0)),
            (resource.RLIMIT_NOFILE, (64, 64)),
            (resource.RLIMIT_SIGPENDING, (_PENDING_SIGNALS, _PENDING_SIGNALS)),
        ]
        # Outside a user namespace this counts every process of the user. The worker may count as one.
        if processes is not None:
            limits.append((resource.RLIMIT_NPROC, (config["processes"] + 1,) * 2))
        # Memory as it is now belongs to no snippet: the limits are on what a snippet adds.
        gc.collect()
        gc.freeze()
        gc.disable()
        proc, self.base = "/proc/self/statm", 0
        if processes is not None:
            proc, self.base = "1/statm", self._unbacked("1")
            kernel.take_filter(seccomp.worker_filter())
        with open(os.open(proc, os.O_RDONLY, dir_fd=processes)) as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        limits.append((resource.RLIMIT_AS, (mapped + self.memory,) * 2))
        self.limits = [(name, _allowed(name, wanted)) for name, wanted in limits]

    def try_out(self) -> int:
        """Return the wait status of a snippet without code: 0 if one can be set up with these limits."""
        self.make_workspace()
        answer = self.run(os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY))
        self.remove_workspace()
        return answer["status"]

    def run(self, code: int, output: int) -> dict:
        """Run one snippet and return its status, reason of a stop and seconds; close both files."""
        start = time.monotonic()
        pid = os.fork()
        if pid == 0:
            self._child(code, output)
        os.close(code)
        stopped = self._watch(pid, output, start + self.timeout_s)
        status = self._reap(pid)
        seconds = time.monotonic() - start
        os.close(output)
        return {"status": status, "stopped": stopped, "seconds": seconds}

    def make_workspace(self) -> None:
        """Make an empty workspace for the next snippet."""
        if self.processes is None:
            self.count += 1
            os.mkdir(os.path.join(self.directory, str(self.count)), 0o700)
        else:
            kernel.mount_workspace(self.disk_mb, _WORKSPACE_FILES)

    def remove_workspace(self) -> None:
        """Remove the workspace with all that the last snippet left there."""
        if self.processes is None:
            shutil.rmtree(os.path.join(self.directory, str(self.count)), ignore_errors=True)
        else:
            kernel.remove_workspace()

    def _child(self, code: int, output: int) -> None:
        """Run the snippet in the file `code` in a process of its own, which is confined first. Never returns."""
        exit_code = 1
        try:
            os.setsid()
            source = os.pread(code, os.fstat(code).st_size, 0)
            os.dup2(self.null, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.closerange(3, 256)
            if self.processes is None:
                os.chdir(os.path.join(self.directory, str(self.count)))
            else:
                kernel.confine_snippet(self.filter)
                os.chdir(common.WORKSPACE)
                os.mkdir("tmp")
                os.mkdir("work")
                os.chdir("work")
            for name, limit in self.limits:
                resource.setrlimit(name, limit)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.stderr = sys.stdout  # in the order of printing
            gc.enable()
            exit_code = snippet.execute(source)
        finally:
            os._exit(exit_code)

    def _watch(self, pid: int, output: int, deadline: float) -> str:
        """Wait for the end of the snippet; return why it has to be stopped, "" if it ended by itself."""
        pidfd = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.register(self.connection, 0)  # its end
        try:
            while (left := deadline - time.monotonic()) > 0:
                if poll.poll(min(left, _WATCH_S) * 1000):
                    return ""
                if os.fstat(output).st_size > common.FLOOD_BYTES:
                    return "output"
                if self._memory() > self.memory:
                    return "memory"
            return "time"
        finally:
            os.close(pidfd)

    def _memory(self) -> int:
        """Return the bytes of the snippet's processes and sockets, without what they share with this process."""
        if self.processes is None:
            return 0
        names = [name for name in os.listdir(self.processes) if name.isdigit() and name != "1"]
        used = sum(max(0, self._unbacked(name) - self.base) for name in names)
        return used + self._read("1/net/unix").count(b"\n") * _SOCKET_BYTES - _SOCKET_BYTES  # the first line is a head

    def _unbacked(self, pid: str) -> int:
        """Return the bytes of a process in memory that no file backs; 0 if it is gone."""
        return sum(int(kilobytes) << 10 for kilobytes in _UNBACKED.findall(self._read(f"{pid}/status")))

    def _read(self, path: str) -> bytes:
        """Read a file of /proc; it is empty when it is gone. It holds bytes: a process calls itself what it likes."""
        try:
            with open(os.open(path, os.O_RDONLY, dir_fd=self.processes), "rb") as file:
                return file.read()
        except OSError:
            return b""

    def _reap(self, pid: int) -> int:
        """Kill and collect whatever the snippet left behind; return the snippet's wait status."""
        with contextlib.suppress(ProcessLookupError):
            if self.processes is not None:
                os.kill(-1, signal.SIGKILL)  # every process but this one: it is the first
            else:
                os.kill(pid, signal.SIGKILL)  # it may not lead its group yet
                os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        try:
            while os.waitpid(-1, 0 if self.processes is not None else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        return status


def _allowed(name: int, wanted: tuple[int, int]) -> tuple[int, int]:
    """Return a soft and a hard limit, no higher than this process may set them."""
    _, most = resource.getrlimit(name)
    return wanted if most == resource.RLIM_INFINITY else (min(wanted[0], most), min(wanted[1], most))


def _import(libraries: list[str]) -> None:
    for name in libraries:
        with contextlib.suppress(Exception):  # not installed, or broken: the snippet shows its own exception
            importlib.import_module(name)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed(0)


def _refuse(connection: "_socket.socket", why: str) -> None:
    connection.send(json.dumps({"refused": why}).encode())


def main() -> None:
    """Isolate this process, then answer requests until the sandbox closes the socket."""
    config = json.loads(sys.argv[1])
    connection = _socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    try:
        processes = None if config["isolation"] == "none" else kernel.seal_worker()
        if processes is None:
            kernel.adopt_orphans()
    except OSError as error:
        _refuse(connection, str(error.strerror))
        return
    sys.path[:] = [path for path in sys.path if path != os.environ["PYTHONPATH"]] + config["site"]
    sys.argv = [""]
    os.environ.clear()
    for name in _LIBRARY_ENVIRONMENT:
        os.putenv(name, "1")  # for the C libraries; os.environ stays empty
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    snippet.compile_parts("x = 1\nx")  # creates what the compiler makes lazily
    random.seed(0)
    _import(config["libraries"])
    worker = _SnippetRunner(config, connection, processes)
    with contextlib.suppress(ConnectionError):  # the sandbox gave this worker up
        if status := worker.try_out():  # else each snippet would be blamed for it
            _refuse(connection, f"an empty snippet ends with status {status}")
            return
        connection.send(json.dumps({"ready": True}).encode())
        while True:
            worker.make_workspace()  # while nobody waits
            byte, passed, _, _ = connection.recvmsg(1, _socket.CMSG_SPACE(8))
            if not byte:
                break
            code, output = struct.unpack("2i", passed[0][2])
            connection.send(json.dumps(worker.run(code, output)).encode())
            worker.remove_workspace()
    if processes is None:
        shutil.rmtree(config["directory"], ignore_errors=True)  # the sandbox may have been killed


if __name__ == "__main__":
    main()
