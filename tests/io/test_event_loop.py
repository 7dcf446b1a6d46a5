"""The thread of the rollouts and the one that waits for it."""

import asyncio
import signal
import threading

import pytest

from orchestra_jax.io.event_loop import LoopThread


def test_a_signal_that_another_thread_gets_is_heeded():
    """The kernel hands a second signal to any thread, and a wait without end is not woken by that."""
    ended = []

    def heed(*_: object) -> None:
        raise KeyboardInterrupt

    async def work() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        await asyncio.sleep(20)
        ended.append(True)

    before = signal.signal(signal.SIGUSR1, heed)
    try:
        with LoopThread() as loop, pytest.raises(KeyboardInterrupt):
            loop.run(work())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not ended
