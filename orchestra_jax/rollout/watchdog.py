"""A watchdog that knows which trajectory waits for what, and names the long waits."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic


@dataclass(frozen=True, slots=True)
class Waiting:
    """One wait of one trajectory until now; `what` is "engine" | "tool NAME" | "user" | "score"."""

    group: int
    member: int
    turn: int
    what: str
    seconds: float

    def __str__(self) -> str:
        return f"group {self.group} member {self.member}: {self.what} turn {self.turn} for {self.seconds:.0f} s"


def describe(waiting: Sequence[Waiting], most: int = 5) -> str:
    """Return one line for a log: how many waits there are, and the first `most` of them."""
    shown = "; ".join(map(str, waiting[:most]))
    more = f"; and {len(waiting) - most} more" if len(waiting) > most else ""
    return f"{len(waiting)} slow: {shown}{more}"


class Watchdog:
    """Keeps a list of waits, and calls back when one of them takes long. No thread: a timer of the event loop.

    Args:
        on_slow: called with the slow waits, longest first (`describe` makes one line of them); None: no timer. The loop
            logs what it raises.
        slow_after_s: seconds after which a wait is slow, and between two calls of `on_slow`.
    """

    def __init__(self, on_slow: Callable[[list[Waiting]], None] | None = None, slow_after_s: float = 60.0) -> None:
        self._on_slow, self._slow_after_s = on_slow, slow_after_s
        # (since when, (group, member, turn, what)), the longest first
        self._waits: dict[int, tuple[float, tuple[int, int, int, str]]] = {}
        self._keys = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._told = float("-inf")

    def waiting(self) -> list[Waiting]:
        """Return the waits of this moment, longest first; call it from anywhere, also outside the loop."""
        now = monotonic()
        return [Waiting(*wait, now - since) for since, wait in list(self._waits.values())]

    @contextlib.contextmanager
    def watch(self, group: int, member: int, turn: int, what: str) -> Iterator[None]:
        """List the wait for as long as the block runs, which must be within an event loop."""
        key = next(self._keys)
        self._waits[key] = monotonic(), (group, member, turn, what)
        self._arm()
        try:
            yield
        finally:
            del self._waits[key]
            if not self._waits and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _arm(self) -> None:
        """Set the timer to when the longest wait becomes slow, or to when it may be told again."""
        if self._on_slow is not None and self._timer is None and self._waits:
            oldest = next(iter(self._waits.values()))[0]
            due = max(oldest, self._told) + self._slow_after_s
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - monotonic()), self._look)

    def _look(self) -> None:
        self._timer = None
        slow = [wait for wait in self.waiting() if wait.seconds >= self._slow_after_s]
        try:
            if slow and self._on_slow is not None:
                self._told = monotonic()
                self._on_slow(slow)
        finally:
            self._arm()
