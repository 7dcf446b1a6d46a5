"""Starts the runs of a soak as forks of one process that has imported what a run imports, in namespaces of its own.

Each line of stdin is a command, each line of stdout a reply or the end of a child; `starts.Launcher` runs this under
`unshare`. /tmp and /dev/shm are empty at the start, and no process is there but this one: what a run leaves cannot
hide. When this ends, the kernel ends all that it started.
"""

import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

# What takes most of a start: none of it starts a thread or a JAX backend, so forks are sound.
import grain  # noqa: F401
import hydra  # noqa: F401
import openai  # noqa: F401
import transformers  # noqa: F401

import orchestra_jax.engines.embedded
import orchestra_jax.envs.qa.environment
import orchestra_jax.evaluation.pictures
import orchestra_jax.models.tokenizer
import orchestra_jax.training.main  # noqa: F401
from orchestra_jax.money.bill import bill

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "experiments/train.py"
WATCHED = ("/tmp", "/dev/shm")


def mount(path: str, mib: int) -> None:
    """A tmpfs of that size, or another size for the one that is there."""
    options = f"size={mib}m,mode=755"
    if os.path.ismount(path):
        options += ",remount"
    else:
        os.makedirs(path, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)


def unmount(path: str) -> None:
    """The run's folder and all that is in it are gone."""
    subprocess.run(["umount", path], check=True)
    os.rmdir(path)


def fill(file: str) -> None:
    """Takes all the space that is left on the file's disk."""
    with open(file, "wb", buffering=0) as ballast:
        try:
            while ballast.write(bytes(1 << 16)):
                pass
        except OSError:
            pass


def remove(file: str) -> None:
    """Gives back what `fill` took."""
    Path(file).unlink(missing_ok=True)


def look(out: str) -> dict[str, Any]:
    """What there is: the run's bill and files, processes, and what others than the run's folder hold."""
    processes = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                processes.append(Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
            except OSError:
                continue
    files = sorted(str(path.relative_to(out)) for path in Path(out).rglob("*")) if os.path.isdir(out) else []
    return {
        "bill": bill(Path(out)),
        "files": files,
        "processes": processes,
        "elsewhere": [str(path) for folder in WATCHED for path in Path(folder).iterdir()],
    }


COMMANDS = {"mount": mount, "unmount": unmount, "fill": fill, "remove": remove, "look": look}


def start(command: dict[str, Any]) -> int:
    """Forks; the child returns 0 from here with the streams, variables and arguments of the run."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(command["environment"])
    for number, path in enumerate((os.devnull, command["stdout"], command["stderr"])):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = [SCRIPT, *command["overrides"]]
    return 0


def serve() -> None:
    """Obeys until stdin ends; returns in a child, which has to run the script."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    selector.register(reader, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    pending = b""

    def say(reply: Any) -> None:
        os.write(1, json.dumps(reply).encode() + b"\n")

    say("ready")
    while True:
        for key, _ in selector.select():
            if key.fd == reader:
                os.read(reader, 4096)
                while True:
                    try:
                        pid, status = os.waitpid(-1, os.WNOHANG)
                    except ChildProcessError:
                        break
                    if pid == 0:
                        break
                    say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})
                continue
            data = os.read(0, 1 << 16)
            if not data:
                raise SystemExit
            *lines, pending = (pending + data).split(b"\n")
            for command in map(json.loads, lines):
                match command["do"]:
                    case "start":
                        pid = start(command)
                        if pid == 0:
                            os.close(reader)
                            os.close(writer)
                            selector.close()
                            return
                        say({"reply": pid})
                    case "signal":
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(command["pid"], command["number"])
                        say({"reply": None})
                    case name:
                        arguments = {key: value for key, value in command.items() if key != "do"}
                        try:
                            say({"reply": COMMANDS[name](**arguments)})
                        except Exception as error:
                            say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    os.chdir(ROOT)
    for folder in WATCHED:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    gc.freeze()
    serve()
    # A child: the run, as `python experiments/train.py` would be.
    runpy.run_path(SCRIPT, run_name="__main__")
