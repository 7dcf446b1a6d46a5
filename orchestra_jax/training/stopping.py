"""Signals and errors that stop a run: Ctrl-C, SIGTERM (Kubernetes, Slurm), SIGHUP (a closed terminal), a full disk."""

import errno
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_Handler = Callable[[int, FrameType | None], Any]
_FULL = (errno.ENOSPC, errno.EDQUOT)
# The words of libraries that are not Python: Orbax' TensorStore, safetensors.
_FULL_TEXT = re.compile(rf"No space left on device|[Qq]uota exceeded|os error ({'|'.join(map(str, _FULL))})\b")


class Interrupted(Exception):  # noqa: N818  an event, no error
    """The user stopped the run; everything is saved."""


class CleanInterrupt:
    """A context manager whose first signal asks the run to end after the step under way; a second ends it at once.

    Outside the main thread (a notebook's or sweep's worker) it changes nothing.

    Args:
        grace_s: seconds after the first signal until `late` is called, in a thread of its own.
        late: function that ends a step which takes too long.

    Attributes:
        asked: whether a signal came.
    """

    def __init__(self, grace_s: float, late: Callable[[], None]) -> None:
        self.asked = False
        self._timer = threading.Timer(grace_s, late)
        self._timer.daemon = True
        self._signals = handling(self._note)

    def __enter__(self) -> None:
        self._signals.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._timer.cancel()
        self._signals.__exit__(*error)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._timer.start()


@contextmanager
def handling(handler: _Handler) -> Iterator[None]:
    """Let the stopping signals call `handler`, except those that the process was told to ignore (nohup)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _STOPPING}
    heeded = [n for n, known in before.items() if n == signal.SIGINT or known is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number] or signal.SIG_DFL)  # None: a handler that Python did not set


def end_now(number: int, frame: FrameType | None) -> None:
    """Stop at once, as Ctrl-C does: handler before and after a run."""
    raise KeyboardInterrupt


def disk_full(error: BaseException | None) -> bool:
    """Return whether the error, or its cause, is that a disk or a quota is used up."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if (error.errno in _FULL) if isinstance(error, OSError) and error.errno else _FULL_TEXT.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def disk_full_sentence(folder: str | None) -> str:
    """Return what to do about a full disk. `folder` is the run's."""
    rooms = []
    for place in dict.fromkeys([folder, tempfile.gettempdir()]):
        if place and Path(place).is_dir():
            rooms.append(f"{place!r} has {shutil.disk_usage(place).free / 1e9:.2f} GB free")
    return (
        f"No space, or quota, is left on a disk that the run writes to ({', '.join(rooms)}): free some, and the same "
        "command continues from the last checkpoint."
    )
