"""An event loop in a thread of its own: rollouts go on in it while the main thread updates the policy."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
_HEED_S = 0.5


class LoopThread:
    """Runs coroutines for a caller that waits for them, and keeps running what they started.

    A context manager; at its end the loop's remaining tasks are cancelled.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._thread = threading.Thread(target=self._serve, name="rollouts", daemon=True)

    def __enter__(self) -> "LoopThread":
        self._loop = self._runner.get_loop()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises; it is cancelled if the caller is interrupted meanwhile."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            # A signal that the kernel hands to another thread does not wake this one, which alone can heed it.
            while not wait([future], timeout=_HEED_S).done:
                pass
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begins the coroutine; what it returns or raises comes later. From any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Has the loop call the function, from any thread; nothing once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def _serve(self) -> None:
        with self._runner:
            self._loop.run_forever()
