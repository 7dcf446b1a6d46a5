"""How a user stops a run before its end: Ctrl-C."""

import contextlib
import signal
from types import FrameType
from typing import Any


class Interrupted(Exception):  # noqa: N818  an event, no error
    """The user stopped the run; everything is saved."""


class CleanInterrupt:
    """The first Ctrl-C asks the run to end after the step under way; a second one ends it at once.

    A context manager. Outside the main thread (a notebook's or sweep's worker) it changes nothing.

    Attributes:
        asked: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.asked = False
        self._previous: Any = None

    def __enter__(self) -> None:
        with contextlib.suppress(ValueError):  # not in the main thread
            self._previous = signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *error: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
