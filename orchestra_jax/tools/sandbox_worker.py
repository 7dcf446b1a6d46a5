"""The worker process of `sandbox.py`: warm once, then one fork per snippet. A script that needs only the stdlib.

Protocol on the socket at fd 0, each message a 4-byte big-endian length and JSON. First out: {"isolation": [...]}.
Then in: {"code": str}; out: {"text": str, "error": bool, "seconds": float}. The end of the stream ends the worker.
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
import ctypes
import datetime
import decimal
import fractions
import functools
import gc
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

_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWPID, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x20000000, 0x08000000
_NAMESPACES = (
    (("user", "network", "ipc", "pid"), _CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWPID),
    (("user", "network"), _CLONE_NEWUSER | _CLONE_NEWNET),
)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 1, 4, 38, 36
_CAPSET = {"x86_64": 126, "aarch64": 91}  # syscall numbers
_EXCEPTION_EXIT = 97
_EXCEPTION_LINE_MAX = 2000
_FLOOD_BYTES = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def _isolate(socket_fd: int) -> tuple[str, ...]:
    """Enters the namespaces that this kernel allows; in a new pid namespace only its first process returns."""
    isolation: tuple[str, ...] = ()
    for names, flags in _NAMESPACES:
        if _libc.unshare(flags) == 0:
            isolation = names
            break
    if "pid" not in isolation:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return isolation
    init = os.fork()
    if init:
        os.close(socket_fd)  # else the sandbox would not notice the death of the inner process
        os.waitpid(init, 0)
        os._exit(0)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return isolation


def _drop_capabilities() -> None:
    """The creator of a user namespace holds every capability in it; neither this process nor a snippet needs one."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # else a snippet could trace this process
    number = _CAPSET.get(os.uname().machine)
    if number is not None:
        header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        _libc.syscall(number, header, nothing)


def _show_exception(error: BaseException) -> None:
    # traceback.format_exception_only would import and format more than the one line that is wanted.
    sys.stdout.flush()
    if isinstance(error, SyntaxError):
        line = f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    else:
        text = str(error)
        line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    print(line[:_EXCEPTION_LINE_MAX])


def _compile(code: str) -> list[types.CodeType]:
    """Code objects to run in order; the value of the last one is shown when it is not None.

    The Python AST costs a fork 0.2 ms in copied pages, so first the last statement is guessed from the text. The guess
    holds when both parts compile: then no statement spans the cut, and a tail that is no expression has no value.
    """
    lines = code.rstrip().split("\n")
    cut = len(lines) - 1
    while cut and lines[cut][:1] in " \t\r)]}#":  # a line without text too
        cut -= 1
    head, tail = "\n".join(lines[:cut]), "\n".join(lines[cut:])
    if "__future__" not in code:
        try:
            parts = [compile(head, "<code>", "exec")] if head else []
            try:
                return [*parts, compile(tail, "<code>", "eval")]
            except SyntaxError:
                if ";" not in tail:
                    return [*parts, compile(tail, "<code>", "exec")]
        except SyntaxError:
            pass  # a wrong guess, or wrong code: the whole text tells
    tree = ast.parse(code, "<code>")
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return [compile(tree, "<code>", "exec")]
    del tree.body[-1]
    return [compile(tree, "<code>", "exec"), compile(ast.Expression(last.value), "<code>", "eval")]


def _execute(code: str) -> int:
    """Runs the snippet in this process; the exit code."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    scope = module.__dict__
    scope["__builtins__"] = builtins
    try:
        value = None
        for part in _compile(code):
            value = eval(part, scope)
        if value is not None:
            print(repr(value))
        if (threading := sys.modules.get("threading")) is not None:  # not preloaded: 0.3 ms for every fork
            for thread in threading.enumerate():
                if thread is not threading.main_thread() and not thread.daemon:
                    thread.join()
    except SystemExit as stop:
        if stop.code in (None, 0):
            return 0
        _show_exception(stop)
        return _EXCEPTION_EXIT
    except BaseException as error:
        _show_exception(error)
        return _EXCEPTION_EXIT
    return 0


class _Worker:
    def __init__(self, config: dict, isolation: tuple[str, ...]) -> None:
        self.timeout_s: float = config["timeout_s"]
        self.max_output: int = config["max_output"]
        self.directory: str = config["directory"]
        self.isolation = isolation
        self.count = 0
        self.cwd, self.cwd_state = "", (0, 0)
        self.null = os.open(os.devnull, os.O_RDONLY)
        cpu, memory, file = math.ceil(self.timeout_s), config["memory_mb"] << 20, config["file_mb"] << 20
        self.limits = [
            (resource.RLIMIT_CPU, (cpu, cpu + 1)),
            (resource.RLIMIT_AS, (memory, memory)),
            (resource.RLIMIT_FSIZE, (file, file)),
            (resource.RLIMIT_CORE, (0, 0)),
            (resource.RLIMIT_NOFILE, (64, 64)),
        ]
        # Outside a user namespace this counts every process of the user; root is never counted.
        if "user" in isolation:
            self.limits.append((resource.RLIMIT_NPROC, (32, 32)))

    def run(self, code: str) -> dict:
        cwd = self._working_directory()
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
        text, error = self._observation(output, stopped, status)
        return {"text": text, "error": error, "seconds": seconds}

    def _working_directory(self) -> str:
        """An empty directory: the last one where the snippet left it as it was (making one costs 60 us on a disk)."""
        try:
            state = os.lstat(self.cwd)
            if (state.st_ino, state.st_mode) == self.cwd_state and not os.listdir(self.cwd):
                return self.cwd
        except OSError:
            pass
        if self.cwd:
            shutil.rmtree(self.cwd, ignore_errors=True)
        self.count += 1
        self.cwd = f"{self.directory}/{self.count}"
        os.mkdir(self.cwd, 0o700)
        state = os.lstat(self.cwd)
        self.cwd_state = (state.st_ino, state.st_mode)
        return self.cwd

    def _child(self, code: str, cwd: str, writer: int) -> None:
        exit_code = 1
        try:
            os.setsid()
            os.dup2(self.null, 0)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            os.closerange(3, 64)
            os.chdir(cwd)
            for name, limit in self.limits:
                resource.setrlimit(name, limit)
            gc.enable()
            exit_code = _execute(code)
            sys.stdout.flush()
        finally:
            os._exit(exit_code)

    def _collect(self, pid: int, reader: int, deadline: float) -> tuple[bytearray, str]:
        """Everything printed until the snippet ends, and why it had to be stopped ("" when it ended by itself)."""
        output = bytearray()
        pidfd = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        poll.register(pidfd, select.POLLIN)
        os.set_blocking(reader, False)
        try:
            while True:
                left = deadline - time.monotonic()
                ready = poll.poll(left * 1000) if left > 0 else []
                if not ready:
                    return output, f"The code was stopped after {self.timeout_s:g} s (time-out)."
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

    def _reap(self, pid: int) -> int:
        """Kills whatever the snippet left behind and collects it; the snippet's wait status."""
        try:
            if "pid" in self.isolation:
                os.kill(-1, signal.SIGKILL)
            else:
                os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        _, status = os.waitpid(pid, 0)
        try:
            while os.waitpid(-1, 0 if "pid" in self.isolation else os.WNOHANG)[0]:
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
        elif not stopped and os.WEXITSTATUS(status) not in (0, _EXCEPTION_EXIT):
            problem = f"The code ended with exit code {os.WEXITSTATUS(status)}."
        text = text.removesuffix("\n")
        if problem:
            text = f"{text}\n{problem}" if text else problem
        return text, bool(problem) or status != 0


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


def main() -> None:
    """Isolates itself, then answers requests until the sandbox closes the socket."""
    config = json.loads(sys.argv[1])
    connection = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    isolation = _isolate(connection)
    sys.argv = [""]
    os.environ.clear()
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    if "user" in isolation:
        _drop_capabilities()
    worker = _Worker(config, isolation)
    _send(connection, {"isolation": list(isolation)})
    _compile("x = 1\nx")  # creates what the compiler makes lazily
    sys.stderr = sys.stdout  # in the order of printing; a crash of this process shows on fd 2
    random.seed(0)
    gc.collect()
    gc.freeze()
    gc.disable()
    while (request := _receive(connection)) is not None:
        _send(connection, worker.run(request["code"]))


if __name__ == "__main__":
    main()
