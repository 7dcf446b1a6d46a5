"""How fast one provider may be called: requests at a time, requests per minute, and its own wishes to wait."""

import asyncio
import time
from collections import deque


class Limiter:
    """Shared by everything that calls one provider.

    Requests start at least 60 / requests_per_minute seconds apart, so that no minute ever holds more than allowed.

    Args:
        concurrency: requests that are under way at once; more wait in the order of arrival.
        requests_per_minute: None for no limit.

    Raises:
        ValueError: a limit that lets nothing through.
    """

    def __init__(self, concurrency: int, requests_per_minute: float | None = None) -> None:
        if concurrency < 1 or (requests_per_minute is not None and requests_per_minute <= 0):
            raise ValueError(
                f"A limiter needs concurrency >= 1 and requests_per_minute > 0 (or null for none), not {concurrency} "
                f"and {requests_per_minute}."
            )
        self.concurrency, self.requests_per_minute = concurrency, requests_per_minute
        self._spacing_s = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._free = concurrency
        # Not asyncio.Semaphore: it is bound to one event loop, and a run may use several after one another.
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._next_start = 0.0  # on the monotonic clock

    async def acquire(self) -> None:
        """Returns when the next request may start; `release` must follow once it has ended."""
        if self._free > 0:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.release()  # the turn came in the same moment: it goes to the next
                raise
        try:
            # Looks again after each sleep: another request may have started meanwhile, or a `pause` come.
            while (wait := self._next_start - time.monotonic()) > 0:  # noqa: ASYNC110  nobody would set an event
                await asyncio.sleep(wait)
        except asyncio.CancelledError:
            self.release()
            raise
        self._next_start = time.monotonic() + self._spacing_s

    def release(self) -> None:
        """Ends a request that `acquire` let through."""
        while self._waiting:
            turn = self._waiting.popleft()
            # A future of a loop that is closed has nobody who waits for it.
            if not turn.done() and not turn.get_loop().is_closed():
                turn.set_result(None)
                return
        self._free += 1

    def pause(self, seconds: float) -> None:
        """Lets nothing start for so long: what a provider asks for by Retry-After holds for all who call it."""
        self._next_start = max(self._next_start, time.monotonic() + seconds)
