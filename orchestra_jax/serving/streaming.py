"""Streams of steps that end with their client, however it goes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from orchestra_jax.serving.answers import Answer, CallStep
from orchestra_jax.serving.errors import RequestError

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
    first: CallStep | Answer, steps: AsyncIterator[CallStep | Answer], stopping: asyncio.Event
) -> AsyncIterator[CallStep | Answer | None]:
    """Yield the steps, and None where none came for a while, so that no proxy takes the stream for dead.

    Raises:
        RequestError: the server stops.
    """
    yield first
    waiting: asyncio.Task[CallStep | Answer] | None = None
    stop = asyncio.ensure_future(stopping.wait())
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(cast(Any, anext(steps)))
            await asyncio.wait([waiting, stop], timeout=_BEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                if stop.done():
                    raise _stopped()
                yield None
                continue
            found, waiting = waiting, None
            try:
                yield found.result()
            except StopAsyncIteration:
                return
    finally:
        await _ended(*(task for task in (waiting, stop) if task is not None))


async def until_gone(request: Request, work: Any, stopping: asyncio.Event) -> Any:
    """Return the result of the work, which ends when its client has gone or the server stops.

    Raises:
        ClientDisconnect: the client has gone.
        RequestError: the server stops.
    """
    doing, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    gone = asyncio.ensure_future(request.receive())  # the body is read: nothing but the end can come
    try:
        await asyncio.wait([doing, gone, stop], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientDisconnect if gone.done() else _stopped()
    finally:
        await _ended(doing, gone, stop)


async def _ended(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _stopped() -> RequestError:
    return RequestError(503, "The server stops: ask again.", kind="server_error", code="stopping", retry_s=5)
