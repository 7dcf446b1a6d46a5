"""Limits of one provider: requests at a time, requests per minute, and the pauses that it asks for."""

import asyncio
import time

from orchestra_jax.io.stopwatch import waiting


class Limiter:
    """The limits of one provider, shared by all its callers in one event loop.

    Requests start at least 60 / requests_per_minute seconds apart, so that no minute ever holds more than allowed. (A
    bucket that fills up, as in the package aiolimiter, would let nearly twice as many through in its first minute, and
    knows no pauses. Waiting is not counted as work.)

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
        self._places = asyncio.Semaphore(concurrency)
        self._start = asyncio.Lock()  # its waiters start in their order
        self._next_start = 0.0  # on the monotonic clock

    async def acquire(self) -> None:
        """Wait until the next request may start; `release` must follow once it has ended."""
        with waiting():
            await self._places.acquire()
            try:
                async with self._start:
                    # Looks again after each sleep: a `pause` may have come meanwhile.
                    while (wait := self._next_start - time.monotonic()) > 0:  # noqa: ASYNC110  no event ends a pause
                        await asyncio.sleep(wait)
                    self._next_start = time.monotonic() + self._spacing_s
            except BaseException:
                self._places.release()
                raise

    def release(self) -> None:
        """End a request that `acquire` let through."""
        self._places.release()

    def pause(self, seconds: float) -> None:
        """Start no request for so many seconds: a provider's Retry-After holds for all its callers."""
        self._next_start = max(self._next_start, time.monotonic() + seconds)
