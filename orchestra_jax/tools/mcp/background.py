"""An event loop on a thread of its own, where the connections of MCP servers live as long as the run.

What the `mcp` package opens must be closed by the task that opened it, and the tools have to be listed before a run has
an event loop: so neither depends on the loop that makes the calls.
"""

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from concurrent.futures import wait
from typing import Any, TypeVar

T = TypeVar("T")

_HEED_S = 0.5  # a signal that the kernel hands to another thread is heeded after so long


class Background:
    """Runs coroutines for callers of any thread and any event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="mcp", daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # a run that fails before its end leaves no server

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises; it is cancelled with its caller."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The same for a caller that has no event loop and blocks meanwhile."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not wait([future], timeout=_HEED_S).done:
                pass
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancels what still runs, lets it clean up, and ends the thread; more than once is harmless."""
        atexit.unregister(self.stop)
        if not self._loop.is_closed() and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
