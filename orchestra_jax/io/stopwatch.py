"""Working time: what something took, less the time in which it only waited its turn.

A generation and a tool's call run under a `Stopwatch` of their own, which a context variable carries. Whatever they
call says `with waiting():` around time that is nobody's work: a place in a queue, a provider's pause, new weights. The
tasks that they start belong to the same watch; while one of these waits, the watch stands still.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


class Stopwatch:
    """Counts the seconds of one piece of work, and ends it when they exceed a limit. Used in one event loop.

    Args:
        limit_s: the most seconds of work; None: no limit.

    Attributes:
        expired: the limit has ended the work.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s, self.expired = limit_s, False
        self._counted = 0.0
        self._since: float | None = None
        self._waits = 1  # it has not begun
        self._deadline: asyncio.Timeout | None = None

    @property
    def seconds(self) -> float:
        """Seconds of work so far."""
        return self._counted + (0.0 if self._since is None else _now() - self._since)

    async def run(self, work: Awaitable[T]) -> T:
        """What the work gives; it is the current watch's until then.

        Raises:
            TimeoutError: it took more than `limit_s` seconds.
        """
        token = _current.set(self)
        self._deadline = deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self.resume()
                try:
                    return await work
                finally:
                    self.pause()
        finally:
            self._deadline, self.expired = None, deadline.expired()  # what the work has started may go on
            _current.reset(token)

    def pause(self) -> None:
        """Stands still until as many calls of `resume`."""
        if self._since is not None:
            self._counted, self._since = self.seconds, None
        self._waits += 1
        self._aim()

    def resume(self) -> None:
        """Ends a `pause`."""
        self._waits -= 1
        if self._waits == 0:
            self._since = _now()
        self._aim()

    def add(self, seconds: float) -> None:
        """Counts work that was measured elsewhere; below 0: time that turned out to be none."""
        self._counted += seconds
        self._aim()

    def _aim(self) -> None:
        """Sets the deadline to where the limit will be reached."""
        if self._deadline is None or self._deadline.expired() or self.limit_s is None:
            return
        left = self.limit_s - self.seconds
        self._deadline.reschedule(_now() + max(left, 0.0) if self._since is not None or left < 0 else None)


_current: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


def current() -> Stopwatch:
    """The watch of what runs here; without one, a watch that nobody reads."""
    return _current.get() or Stopwatch()


def worked() -> float:
    """Seconds of work so far, whose differences tell what something took; wall-clock time where no watch runs."""
    watch = _current.get()
    return time.perf_counter() if watch is None else watch.seconds


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """The block is nobody's work: the current watch stands still."""
    watch = current()
    watch.pause()
    try:
        yield
    finally:
        watch.resume()


async def queued(turn: Awaitable[T]) -> T:
    """What comes when it is our turn; the time until then is nobody's work."""
    with waiting():
        return await turn


def _now() -> float:
    return asyncio.get_running_loop().time()
