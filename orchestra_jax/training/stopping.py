"""Signals that stop a run: Ctrl-C, SIGTERM (Kubernetes, Slurm), SIGHUP (a closed terminal)."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_Handler = Callable[[int, FrameType | None], Any]


class Interrupted(Exception):  # noqa: N818  an event, no error
    """The run was stopped by a signal; its last finished step is saved."""


class CleanInterrupt:
    """A context manager whose first signal asks the run to end after the step under way; a second ends it at once.

    `Trainer.stop_if_asked` saves that step. If it takes longer than `grace_s`, rollouts under way are given up, and
    `Trainer.running` saves the step before it; what they cost stays in the run's bill. Outside the main thread (a
    notebook's or sweep's worker) it changes nothing.

    Args:
        grace_s: seconds after the first signal until `late` is called, in a thread of its own (checkpoint.grace_s).
        late: function that gives up a step which takes too long; the run continues from the step before.

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
