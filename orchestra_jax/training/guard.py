"""Deadlines and signals that hold while Python is busy, and the stack of what keeps it busy in `stacks.log`.

A thread ends work in the event loop that never gives way and is past its deadline. Code outside of Python that keeps
the interpreter to itself stops every thread; then a process beside this one acts (`guard_process`).
"""

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TextIO

from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.io.stopwatch import Stopwatch

LOG = "stacks.log"
_BEAT_S = 1.0
_DUMP = getattr(signal, "SIGRTMIN", signal.SIGUSR1)  # Slurm and its launchers use the other ones
_SLOW_S = 60.0


@contextlib.contextmanager
def guarded(folder: Path, loop: LoopThread, deadline_s: float, grace_s: float) -> Iterator[None]:
    """Guard the block. Outside the main thread (a notebook's or sweep's worker) nothing is done.

    Args:
        folder: existing folder of the run, for `stacks.log`.
        loop: event loop of the run.
        deadline_s: seconds without any Python code after which the process is killed, 60 at least. Stacks are written
            after 60 without a turn of the loop, or without any Python code.
        grace_s: seconds until it is killed after one stopping signal, 30 at least. After a second one they are 10, and
            a run that hears it has 30 s to close everything.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    words = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard_process.py")), str(os.getpid())]
    try:
        with (folder / LOG).open("a", encoding="utf-8") as log:
            faulthandler.register(_DUMP, file=log, all_threads=True)
            words += [str(int(_DUMP)), *map(str, (_SLOW_S, max(60.0, deadline_s), grace_s))]
            process = subprocess.Popen(words, stdin=reader, stdout=subprocess.DEVNULL, start_new_session=True)
            before, closing = signal.set_wakeup_fd(writer, warn_on_full_buffer=False), threading.Event()
            watched = loop, writer, closing, log, _SLOW_S
            thread = threading.Thread(target=_watch, args=watched, name="guard", daemon=True)
            thread.start()
            try:
                yield
            finally:
                closing.set()
                thread.join()
                signal.set_wakeup_fd(before)
                os.close(writer)
                os.close(reader)
                process.wait()
                faulthandler.unregister(_DUMP)
    finally:
        with contextlib.suppress(FileNotFoundError):  # another process of the run may remove it at any time
            if not (folder / LOG).stat().st_size:
                (folder / LOG).unlink()


def _watch(loop: LoopThread, writer: int, closing: threading.Event, log: TextIO, slow_s: float) -> None:
    told = False
    while not closing.wait(_BEAT_S):
        with contextlib.suppress(OSError):
            os.write(writer, b"\0")
        busy_s, frame = loop.busy_s(), loop.frame()
        told = told and busy_s > slow_s
        if busy_s > slow_s and not told:
            told = True
            stack = f"has not turned for {busy_s:.0f} s:\n{''.join(traceback.format_stack(frame))}"
            with contextlib.suppress(OSError):  # of a full disk: without this thread's beats the run would be killed
                print(f"{time.ctime()}: the event loop {loop.name!r} {stack}", file=log, flush=True)
                print(f"Code has kept the event loop busy for {busy_s:.0f} s: {LOG} tells which.", file=sys.stderr)
        if busy_s > _BEAT_S and _overdue(frame):
            loop.interrupt()


def _overdue(frame: FrameType | None) -> bool:
    """Return whether the code of a stack works under a `Stopwatch` whose limit has passed."""
    while frame is not None:
        if frame.f_code is Stopwatch.run.__code__ and frame.f_locals["self"].overdue:
            return True
        frame = frame.f_back
    return False
