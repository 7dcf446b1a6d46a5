"""An event loop on a thread of its own: rollouts and connections go on in it while other threads do something else."""

import asyncio
import atexit
import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
_HEED_S = 0.5
_BUSY_S = 30.0  # without a turn, when the loop is to end


class LoopThread:
    """Runs coroutines for callers of any thread, and keeps running what they started.

    A context manager, or ended by `stop`: then the loop's remaining tasks are cancelled and clean up.
    """

    def __init__(self, name: str = "rollouts") -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._asked: float | None = None  # since when the loop was asked to turn and did not
        self._ending, self.name = False, name
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

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the coroutine; its result or error comes later."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have the loop call the function; nothing happens once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def busy_s(self) -> float:
        """Return the seconds for which one piece of code has kept the loop from turning, since this was first asked."""
        asked = self._asked
        if asked is None:
            asked = self._asked = time.monotonic()
            self.call_soon(setattr, self, "_asked", None)
        return time.monotonic() - asked if self._thread.is_alive() else 0.0

    def frame(self) -> FrameType | None:
        """Return the frame that the loop's thread is in."""
        return sys._current_frames().get(self._thread.ident or 0)

    def interrupt(self) -> None:
        """Raise TimeoutError in the code that keeps the loop busy, as soon as Python runs there."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(TimeoutError)
        )

    def stop(self) -> None:
        """Cancel what still runs, let it clean up, and end the thread; more than once is harmless."""
        atexit.unregister(self.stop)
        self._ending = True
        self.call_soon(self._loop.stop)
        while self._thread.is_alive():
            self._thread.join(_HEED_S)
            if self.busy_s() > _BUSY_S:
                self.interrupt()

    def _serve(self) -> None:
        with self._runner:
            while not self._ending:
                with contextlib.suppress(TimeoutError):  # of `interrupt`, if the busy code has just ended
                    self._loop.run_forever()
