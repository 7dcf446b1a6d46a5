"""The worker process of `sandbox.py`: warm once, then one fork per snippet. A script that needs only the stdlib.

Protocol on the socket at fd 0, each message a 4-byte big-endian length and JSON. First out: {"isolation": [...]}, or
{"refused": str}. Then in: {"code": str}; out: {"text": str, "error": bool, "seconds": float}, until the stream ends.
"""

# ruff: noqa: F401, E402  (preloaded modules cost a snippet nothing to import)
import os

_register_at_fork = os.register_at_fork
os.register_at_fork = lambda **_: None  # random would reseed in every child: 0.1 ms, and another output each time
import random

os.register_at_fork = _register_at_fork

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
import sys
import time
import types

from orchestra_jax.tools.python import kernel, snippet

_FLOOD_BYTES = 1 << 20
_WATCH_S = 0.05  # between two looks at the memory that all processes of a snippet use
_WORKSPACE_FILES = 4096
_STACK_BYTES = 8 << 20
# One thread: a snippet has few processes, and each thread of OpenBLAS would reserve address space besides.
_LIBRARY_ENVIRONMENT = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_LIBRARY = re.compile(r"\b(?:import|from)\s+(numpy|scipy|sympy|mpmath)\b(?:\.(\w+)|\s+import\s+(\w+))?")
_SCIPY_PARTS = frozenset(
    "cluster fft integrate interpolate linalg ndimage optimize signal sparse spatial special stats".split()
)


class _SnippetRunner:
    """Runs one snippet after another, each in a process that is forked from this one.

    Args:
        config: the options of `PythonSandbox`, see `sandbox_isolation.launch`.
        processes: descriptor of /proc of the sealed worker, None where nothing is isolated.
    """

    def __init__(self, config: dict, processes: int | None) -> None:
        self.timeout_s: float = config["timeout_s"]
        self.max_output: int = config["max_output"]
        self.directory: str = config["directory"]
        self.memory_mb: int = config["memory_mb"]
        self.disk_mb: int = config["disk_mb"]
        self.processes = processes
        self.null = os.open(os.devnull, os.O_RDONLY)
        self.filter = b"" if processes is None else kernel.system_call_filter()
        self.count = 0
        self.loaded: set[str] = set()
        cpu, file = math.ceil(self.timeout_s), config["file_mb"] << 20
        self.limits = [
            (resource.RLIMIT_CPU, (cpu, cpu + 1)),
            (resource.RLIMIT_FSIZE, (file, file)),
            (resource.RLIMIT_STACK, (_STACK_BYTES, _STACK_BYTES)),
            (resource.RLIMIT_CORE, (0, 0)),
            (resource.RLIMIT_NOFILE, (64, 64)),
        ]
        # Outside a user namespace this counts every process of the user. The worker may count as one.
        if processes is not None:
            self.limits.append((resource.RLIMIT_NPROC, (config["processes"] + 1,) * 2))

    def settle(self) -> None:
        """Memory as it is now belongs to no snippet: the limits are on what a snippet adds."""
        gc.collect()
        gc.freeze()
        gc.disable()
        proc, self.base_bytes = "/proc/self/statm", 0
        if self.processes is not None:
            proc, self.base_bytes = "1/statm", _resident(self.processes, "1")
        with open(os.open(proc, os.O_RDONLY, dir_fd=self.processes)) as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        self.limit_memory = (resource.RLIMIT_AS, (mapped + (self.memory_mb << 20),) * 2)

    def preload(self, code: str) -> None:
        """Imports the libraries that the snippet names, so that it and those after it find them imported."""
        new = _named_libraries(code) - self.loaded
        if not new:
            return
        self.loaded |= new
        for name in sorted(new):
            with contextlib.suppress(Exception):  # not installed, or broken: the snippet shows its own exception
                importlib.import_module(name)
        if (numpy_random := sys.modules.get("numpy.random")) is not None:
            numpy_random.seed(0)
        self.settle()

    def run(self, code: str) -> dict:
        self.preload(code)
        cwd = self._make_workspace()
        start = time.monotonic()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._child(code, cwd, writer)
        os.close(writer)
        output, stopped = self._collect(pid, reader, start + self.timeout_s)
        os.close(reader)
        status = self._reap(pid)
        seconds = time.monotonic() - start
        self._remove_workspace()
        text, error = self._observation(output, stopped, status)
        return {"text": text, "error": error, "seconds": seconds}

    def _make_workspace(self) -> str:
        if self.processes is None:
            self.count += 1
            os.mkdir(cwd := os.path.join(self.directory, str(self.count)), 0o700)
            return cwd
        kernel.mount_workspace(self.disk_mb, _WORKSPACE_FILES)
        return f"{kernel.WORKSPACE}/work"

    def _remove_workspace(self) -> None:
        if self.processes is not None:
            kernel.remove_workspace()
            return
        for name in os.listdir(self.directory):
            shutil.rmtree(os.path.join(self.directory, name), ignore_errors=True)

    def _child(self, code: str, cwd: str, writer: int) -> None:
        exit_code = 1
        try:
            os.setsid()
            os.dup2(self.null, 0)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            os.closerange(3, 256)
            if self.processes is not None:
                kernel.confine_snippet(self.filter)
                os.mkdir(cwd)
                os.mkdir(f"{kernel.WORKSPACE}/tmp")
            os.chdir(cwd)
            for name, limit in (*self.limits, self.limit_memory):
                resource.setrlimit(name, limit)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.stderr = sys.stdout  # in the order of printing
            gc.enable()
            exit_code = snippet.execute(code)
            sys.stdout.flush()
        finally:
            os._exit(exit_code)

    def _collect(self, pid: int, reader: int, deadline: float) -> tuple[bytearray, str]:
        """Everything printed until the snippet ends, and why it had to be stopped ("" when it ended by itself)."""
        output = bytearray()
        watch = time.monotonic() + _WATCH_S if self.processes is not None else math.inf
        pidfd = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        poll.register(pidfd, select.POLLIN)
        os.set_blocking(reader, False)
        try:
            while True:
                now = time.monotonic()
                if now >= deadline:
                    return output, f"The code was stopped after {self.timeout_s:g} s (time-out)."
                if now >= watch:
                    if self._memory() > self.memory_mb << 20:
                        return output, f"The code was stopped because it used more than {self.memory_mb} MiB of memory."
                    watch = now + _WATCH_S
                ready = poll.poll((min(deadline, watch) - now) * 1000)
                if not ready:
                    continue
                ended = any(fd == pidfd for fd, _ in ready)
                while True:  # to the end once the snippet ended, else one read per wake-up
                    try:
                        chunk = os.read(reader, 1 << 16)
                    except BlockingIOError:
                        break
                    if not chunk:
                        if not ended:
                            poll.unregister(reader)
                        break
                    output += chunk
                    if len(output) > _FLOOD_BYTES:
                        return output, f"The code was stopped because it printed more than {_FLOOD_BYTES} bytes."
                    if not ended:
                        break
                if ended:
                    return output, ""
        finally:
            os.close(pidfd)

    def _memory(self) -> int:
        """Bytes that the snippet's processes use together, beyond what they share with this one."""
        assert self.processes is not None
        names = [name for name in os.listdir(self.processes) if name.isdigit() and name != "1"]
        used = [_resident(self.processes, name) - self.base_bytes for name in names]
        return sum(bytes_ for bytes_ in used if bytes_ > 0)

    def _reap(self, pid: int) -> int:
        """Kills whatever the snippet left behind and collects it; the snippet's wait status."""
        try:
            if self.processes is not None:
                os.kill(-1, signal.SIGKILL)  # every process but this one: it is the first
            else:
                os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        _, status = os.waitpid(pid, 0)
        try:
            while os.waitpid(-1, 0 if self.processes is not None else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        return status

    def _observation(self, output: bytearray, stopped: str, status: int) -> tuple[str, bool]:
        text = output.decode("utf-8", "replace")
        if len(text) > self.max_output:
            head, tail = self.max_output * 3 // 4, self.max_output // 4
            text = f"{text[:head]}\n[... {len(text) - head - tail} characters cut ...]\n{text[len(text) - tail :]}"
        problem = stopped
        if not stopped and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number == signal.SIGXCPU:
                problem = f"The code was stopped after {self.timeout_s:g} s of CPU time (time-out)."
            else:
                problem = f"The code was killed by {signal.Signals(number).name}."
        elif not stopped and os.WEXITSTATUS(status) not in (0, snippet.EXCEPTION_EXIT):
            problem = f"The code ended with exit code {os.WEXITSTATUS(status)}."
        text = text.removesuffix("\n")
        if problem:
            text = f"{text}\n{problem}" if text else problem
        return text, bool(problem) or status != 0


def _named_libraries(code: str) -> set[str]:
    names = set()
    for library, part, imported in _LIBRARY.findall(code):
        names.add("numpy.random" if library == "numpy" else library)
        if library == "scipy" and (part or imported) in _SCIPY_PARTS:
            names.add(f"scipy.{part or imported}")
    return names


def _resident(processes: int, pid: str) -> int:
    """Bytes of a process in memory that no file backs; 0 when it is gone."""
    try:
        with open(os.open(f"{pid}/status", os.O_RDONLY, dir_fd=processes)) as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _receive(fd: int) -> dict | None:
    data = bytearray()
    need = 4
    while len(data) < need:
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            return None
        data += chunk
        if need == 4 and len(data) >= 4:
            need += int.from_bytes(data[:4])
    return json.loads(data[4:])


def _send(fd: int, message: dict) -> None:
    body = json.dumps(message).encode()
    data = len(body).to_bytes(4) + body
    while data:
        data = data[os.write(fd, data) :]


def _isolate(config: dict) -> tuple[tuple[str, ...], int | None]:
    """What isolates this process from now on, and the descriptor of /proc that is left to it."""
    if config["isolation"] == "none":
        kernel.adopt_orphans()
        return (), None
    if config["isolation"] == "namespaces":
        kernel.enter_namespaces(config["directory"], config["shown"], config["links"])
    processes = kernel.seal_worker()
    return (config["isolation"], "user", "mount", "network", "ipc", "pid", "seccomp"), processes


def main() -> None:
    """Isolates itself, then answers requests until the sandbox closes the socket."""
    try:
        if sys.argv[1] == "enter":  # before bubblewrap, where it is root's
            kernel.enter_user_namespace()
            os.execv(sys.argv[2], sys.argv[2:])
        config = json.loads(sys.argv[1])
        connection = os.dup(0)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        isolation, processes = _isolate(config)
    except OSError as error:
        _send(0 if sys.argv[1] == "enter" else connection, {"refused": str(error.strerror)})
        return
    sys.argv = [""]
    os.environ.clear()
    for name in _LIBRARY_ENVIRONMENT:
        os.putenv(name, "1")  # for the C libraries; os.environ stays empty
    sys.path[:] = [path for path in sys.path if path != config["source"]] + config["site"]
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    worker = _SnippetRunner(config, processes)
    _send(connection, {"isolation": list(isolation)})
    snippet.compile_parts("x = 1\nx")  # creates what the compiler makes lazily
    random.seed(0)
    worker.settle()
    with contextlib.suppress(ConnectionError):  # the sandbox gave this worker up
        while (request := _receive(connection)) is not None:
            _send(connection, worker.run(request["code"]))


if __name__ == "__main__":
    main()
