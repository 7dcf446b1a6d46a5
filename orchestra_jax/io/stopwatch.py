"""Working time: the time that something took, less the time in which it only waited its turn.

A generation and a tool's call run under a `Stopwatch` of their own, which a context variable carries. Code that they
call puts `with waiting():` around time that is not work: a place in a queue, a provider's pause, new weights. Tasks
that they start use the same watch; while one of these waits, the watch stands still.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


class Stopwatch:
    """A watch that counts the seconds of one piece of work, and ends the work at a limit. For one event loop.

    Args:
        limit_s: most seconds of work; None: no limit.

    Attributes:
        expired: whether the limit has ended the work.
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

    @property
    def overdue(self) -> bool:
        """True if the work has taken its limit; may be asked by any thread."""
        since = self._since
        counted = self._counted + (0.0 if since is None else time.monotonic() - since)
        return self.limit_s is not None and counted > self.limit_s

    async def run(self, work: Awaitable[T]) -> T:
        """Return the result of the work, for which this is the current watch.

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
            self._deadline, self.expired = None, deadline.expired() or self.overdue  # its tasks may go on
            _current.reset(token)

    def pause(self) -> None:
        """Stand still until `resume` is called as often as this."""
        if self._since is not None:
            self._counted, self._since = self.seconds, None
        self._waits += 1
        self._aim()

    def resume(self) -> None:
        """End a `pause`."""
        self._waits -= 1
        if self._waits == 0:
            self._since = _now()
        self._aim()

    def add(self, seconds: float) -> None:
        """Count seconds that were measured elsewhere; negative ones turned out to be no work."""
        self._counted += seconds
        self._aim()

    def _aim(self) -> None:
        """Set the deadline to where the limit will be reached."""
        if self._deadline is None or self._deadline.expired() or self.limit_s is None:
            return
        left = self.limit_s - self.seconds
        self._deadline.reschedule(_now() + max(left, 0.0) if self._since is not None or left < 0 else None)


_current: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


def current() -> Stopwatch:
    """Return the watch of the running work, or a new one that nobody reads."""
    return _current.get() or Stopwatch()


def worked() -> float:
    """Return the seconds of work so far, to take differences of; wall-clock time if no watch runs."""
    watch = _current.get()
    return time.perf_counter() if watch is None else watch.seconds


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Let the current watch stand still during the block, which is not work."""
    watch = current()
    watch.pause()
    try:
        yield
    finally:
        watch.resume()


async def queued(turn: Awaitable[T]) -> T:
    """Wait for our turn and return its result. Waiting time is not counted as work."""
    with waiting():
        return await turn


def _now() -> float:
    return asyncio.get_running_loop().time()
