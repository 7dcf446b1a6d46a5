"""Starts worker processes of the sandbox: inside bubblewrap, in namespaces of our own, or without isolation."""

import functools
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from orchestra_jax.config.choices import SandboxIsolation
from orchestra_jax.tools.python import common

if TYPE_CHECKING:  # loaded without isolation
    from orchestra_jax.io.temporary import TemporaryFolder

LIBRARIES = ("numpy", "scipy", "sympy", "mpmath")
START_S = 60.0  # a worker that does not come up in this time is dead

_SOURCE = Path(__file__).resolve().parents[3]
_FOLDER = "orchestra_jax/tools/python"
_WORKER_FILES = (  # all that the worker imports of this package
    "orchestra_jax/__init__.py",
    "orchestra_jax/tools/__init__.py",
    *(f"{_FOLDER}/{name}.py" for name in ("__init__", "common", "kernel", "seccomp", "snippet", "worker")),
)
_NAMESPACES = f"{_FOLDER}/namespaces.py"
_SOURCE_INSIDE, _LIBRARIES_INSIDE = Path("/worker"), "/libraries"  # where what may lie anywhere is shown
_INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_FIX = (
    "install bubblewrap (apt-get install bubblewrap), let this user create user namespaces (where they are restricted: "
    "sysctl kernel.apparmor_restrict_unprivileged_userns=0; in Docker: --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined), or, to run the code unprotected with "
    "your own rights, say isolation: none"
)


@dataclass(frozen=True)
class IsolatedScript:
    """A script of this package that runs isolated, all that it imports of it, and libraries that may be installed."""

    script: str
    files: tuple[str, ...]
    libraries: tuple[str, ...]


SNIPPETS = IsolatedScript(f"{_FOLDER}/worker.py", _WORKER_FILES, LIBRARIES)


class IsolationError(RuntimeError):
    """This machine offers no isolation for the sandbox; the message names the fix."""


class Launch:
    """A started worker process and our end of its socket.

    Args:
        isolation: see `choose`.
        limits: of the program; it reads them as JSON from its command line.
        libraries: that it imports before it says that it is there.
        kind: of the socket; a packet is read whole, but must be small.

    Attributes:
        process: the outermost process; when it is killed, all inside are.
        connection: blocking socket; its first message says that the worker is ready, see `worker.py`.
        stop: kills the processes and removes what they left; more than once is harmless. It is called with this object
            or at the end of the program too.
    """

    def __init__(
        self,
        isolation: str,
        limits: Mapping[str, Any],
        libraries: Iterable[str] = (),
        stderr: int | None = None,
        *,
        program: IsolatedScript = SNIPPETS,
        kind: socket.SocketKind = socket.SOCK_SEQPACKET,
    ) -> None:
        workspaces: TemporaryFolder | None = None
        if isolation == "none":
            from orchestra_jax.io import temporary

            workspaces = temporary.TemporaryFolder(Path(tempfile.gettempdir()), "orchestra-python-")
        directory = workspaces and str(workspaces.path)
        config = {**limits, "libraries": sorted(libraries), "isolation": isolation, "directory": directory}
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, kind)
        try:
            self.process = subprocess.Popen(
                _command(isolation, config, program),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=_environment(_SOURCE),
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal is for the trainer, which ends the workers itself
            )
        except OSError:
            self.connection.close()
            raise
        finally:
            theirs.close()
        self.stop = weakref.finalize(self, _stop, self.connection, self.process, workspaces)


def _stop(connection: socket.socket, process: subprocess.Popen[bytes], workspaces: "TemporaryFolder | None") -> None:
    connection.close()
    process.kill()
    process.wait()
    if workspaces is not None:
        workspaces.remove()


def choose(wanted: str) -> str:
    """Return the isolation to use: the one that is wanted, for "auto" the first that works on this machine.

    Raises:
        ValueError: there is no such isolation.
        IsolationError: it does not work here.
    """
    if wanted not in SandboxIsolation.__members__:
        raise ValueError(f"The sandbox's isolation is one of {', '.join(SandboxIsolation)}, not {wanted!r}.")
    if wanted == "none":
        return wanted
    problems = []
    for name in ("bubblewrap", "namespaces") if wanted == "auto" else (wanted,):
        problem = why_not(name)
        if problem is None:
            return name
        problems.append(f"{name}: {problem}")
    raise IsolationError(f"The Python sandbox cannot isolate code on this machine ({'; '.join(problems)}): {_FIX}.")


@functools.cache
def why_not(isolation: str) -> str | None:
    """Start a worker to see whether an isolation works on this machine; return the problem, or None."""
    if isolation == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    limits = {"timeout_s": 1.0, "memory_mb": 64, "max_output": 100, "file_mb": 1, "disk_mb": 1, "processes": 1}
    try:
        launch = Launch(isolation, limits, stderr=subprocess.PIPE)
    except OSError as error:
        return str(error)
    try:
        launch.connection.settimeout(START_S)
        hello = launch.connection.recv(1 << 16)
        if hello:
            return cast(str | None, json.loads(hello).get("refused"))
        assert launch.process.stderr is not None
        return launch.process.stderr.read().decode(errors="replace").strip().split("\n")[-1] or "the worker died"
    except TimeoutError:
        return f"the worker did not start in {START_S:g} s"
    finally:
        launch.stop()


def _command(isolation: str, config: Mapping[str, Any], program: IsolatedScript) -> list[str]:
    shown, links, outside, inside = _shown(program.libraries)
    if isolation == "none":
        return [*_python(_SOURCE, program.script), json.dumps({**config, "site": outside})]
    worker = [*_python(_SOURCE_INSIDE, program.script), json.dumps({**config, "site": inside})]
    shown = shown | {f"{_SOURCE_INSIDE}/{name}": str(_SOURCE / name) for name in program.files}
    if isolation == "namespaces":
        spaces = {"shown": shown, "links": links, "environment": _environment(_SOURCE_INSIDE)}
        return [*_python(_SOURCE, _NAMESPACES), "all", json.dumps(spaces), *worker]
    from orchestra_jax.tools.python.bubblewrap import bubblewrap_command

    command = bubblewrap_command(shown, links, _environment(_SOURCE_INSIDE), worker)
    # Root enters the user namespace first: bubblewrap's own would hold one id, and the kernel counts none of root's
    # processes.
    return [*_python(_SOURCE, _NAMESPACES), "user", *command] if os.geteuid() == 0 else command


def _environment(source: Path) -> dict[str, str]:
    return {"PYTHONHASHSEED": "0", "PYTHONPATH": str(source)}


def _python(source: Path, script: str) -> list[str]:
    # -I would also ignore PYTHONHASHSEED, so its other parts are given one by one and the environment is ours.
    return [_INTERPRETER, "-s", "-S", "-P", "-B", "-X", "utf8", str(source / script)]


@functools.cache
def _shown(libraries: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str], list[str], list[str]]:
    """Return what the code sees of this machine, read-only: the system's programs and libraries, Python, `libraries`.

    Returns:
        Paths inside with those of this machine, none below another; links to make; the folders to import the libraries
        from here, and inside.
    """
    prefix = os.path.realpath(sys.base_prefix)
    shown: dict[str, str] = {}
    for path in sorted(filter(os.path.lexists, {*_SYSTEM, _INTERPRETER, f"{prefix}/lib", f"{prefix}/lib64"})):
        if not _below(path, shown):
            shown[path] = path
    outside, inside = [], []
    for name in libraries:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        path = os.path.realpath(spec.origin)
        if spec.submodule_search_locations is not None:  # else it is one file
            path = os.path.dirname(path)
        place, own = os.path.split(path)
        outside.append(place)
        if _below(path, shown):
            inside.append(place)
            continue
        inside.append(_LIBRARIES_INSIDE)
        for end in filter(lambda end: os.path.exists(path + end), ("", ".libs")):
            shown[f"{_LIBRARIES_INSIDE}/{own}{end}"] = path + end
    # Python itself may be installed below /tmp, where the link would be.
    links = {link: target for link, target in common.LINKS.items() if not any(_below(path, [link]) for path in shown)}
    return shown, links, sorted(set(outside)), sorted(set(inside))


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)
