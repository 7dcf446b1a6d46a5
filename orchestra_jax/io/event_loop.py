"""An event loop on a thread of its own: rollouts and connections go on in it while other threads do something else."""

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")
_HEED_S = 0.5


class LoopThread:
    """Runs coroutines for callers of any thread, and keeps running what they started.

    A context manager, or ended by `stop`: then the loop's remaining tasks are cancelled and clean up.
    """

    def __init__(self, name: str = "rollouts") -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # a run that fails before its end leaves no process of a server

    def __enter__(self) -> "LoopThread":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the coroutine and return its result; it is cancelled if the caller is interrupted meanwhile."""
        future = self.start(coroutine)
        try:
            # A signal that the kernel hands to another thread does not wake this one, which alone can heed it.
            while not wait([future], timeout=_HEED_S).done:
                pass
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def result(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await the coroutine from another event loop; it is cancelled with its caller."""
        return await asyncio.wrap_future(self.start(coroutine))

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the coroutine; its result or error comes later."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have the loop call the function; nothing happens once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        """Cancel what still runs, let it clean up, and end the thread; more than once is harmless."""
        atexit.unregister(self.stop)
        self.call_soon(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        with self._runner:
            self._loop.run_forever()
