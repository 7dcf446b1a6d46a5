"""Streams of steps that end with their client, however it goes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from orchestra_jax.serving.answers import Answer, CallStep

_BEAT_S = 15.0  # between two signs of life of a stream


class Stream(StreamingResponse):
    """A response of server-sent events; when it ends, however it does, so do the steps and what was held for it."""

    def __init__(
        self, lines: AsyncIterator[str], steps: AsyncIterator[CallStep | Answer], held: contextlib.ExitStack
    ) -> None:
        super().__init__(lines, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self._steps, self._held = steps, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            try:
                await super().__call__(scope, receive, send)
            finally:
                await cast(Any, self._steps).aclose()


async def beating(
    first: CallStep | Answer, steps: AsyncIterator[CallStep | Answer]
) -> AsyncIterator[CallStep | Answer | None]:
    """Yield the steps, and None where none came for a while, so that no proxy takes the stream for dead."""
    yield first
    waiting: asyncio.Task[CallStep | Answer] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(cast(Any, anext(steps)))
            done, _ = await asyncio.wait([waiting], timeout=_BEAT_S)
            if not done:
                yield None
                continue
            found, waiting = waiting, None
            try:
                yield found.result()
            except StopAsyncIteration:
                return
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def until_gone(request: Request, work: Any) -> Any:
    """Return the result of the work, which ends when its client has gone.

    Raises:
        ClientDisconnect: it has.
    """
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())  # the body is read: nothing but the end can come
    try:
        await asyncio.wait([doing, gone], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        for task in (doing, gone):
            task.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)
