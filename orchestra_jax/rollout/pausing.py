"""An engine that stands still between the rollouts of two steps (`rollout.oversample`).

A turn that is being sampled when the rollouts end is given up. It is sampled again under the next weights, with the
same seed. So all tokens of a turn are of one version, and long turns are not left out. Finished turns stay, and tools
and judges go on during the pause.
"""

import asyncio
import itertools
from collections.abc import Sequence

from orchestra_jax.engines.base import Engine, Generation, SamplingParams
from orchestra_jax.io.stopwatch import current, queued


class PausingEngine:
    """Samples with another engine between `go_on` and `pause`; time at rest is not counted as work.

    A pause ends the other engine's sessions, so that it is free for an evaluation. The next weights would drop their
    cache anyway.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._going = engine, asyncio.Event()
        self._numbers = itertools.count(1)
        self._sessions: dict[int, int | None] = {}  # the other engine's sessions, by our own
        self._sampling: set[asyncio.Task[Generation]] = set()

    def go_on(self) -> None:
        """Let generations begin; call this in their loop."""
        self._going.set()

    async def pause(self) -> None:
        """Give up the generations under way, which begin again after `go_on`, and return when none is left."""
        self._going.clear()
        for work in self._sampling:
            work.cancel()
        await asyncio.gather(*self._sampling, return_exceptions=True)
        for session, inner in self._sessions.items():
            if inner is not None:
                self._engine.close_session(inner)
                self._sessions[session] = None

    def open_session(self) -> int:
        session = next(self._numbers)
        self._sessions[session] = None
        return session

    def close_session(self, session: int) -> None:
        if (inner := self._sessions.pop(session, None)) is not None:
            self._engine.close_session(inner)

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Generation:
        while True:
            while not self._going.is_set():  # a pause may come before the one that was woken goes on
                await queued(self._going.wait())
            watch, before = current(), current().seconds
            work = asyncio.ensure_future(self._engine.generate(prompt_ids, params, session=self._inner(session)))
            self._sampling.add(work)
            try:
                return await work
            except asyncio.CancelledError:
                caller = asyncio.current_task()
                if self._going.is_set() or (caller is not None and caller.cancelling()):
                    raise
                watch.add(before - watch.seconds)  # what was given up is no work
            finally:
                self._sampling.discard(work)

    async def update_weights(self, params: object, version: int) -> None:
        await self._engine.update_weights(params, version)

    async def close(self) -> None:
        await self._engine.close()

    def _inner(self, session: int | None) -> int | None:
        """Return the other engine's session, a new one after a pause."""
        if session is None:
            return None
        inner = self._sessions[session]
        if inner is None:
            inner = self._sessions[session] = self._engine.open_session()
        return inner
