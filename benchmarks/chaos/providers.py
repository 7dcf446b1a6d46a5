"""Experts, a judge and web search on 127.0.0.1 that refuse, lie, vanish and come back, and keep honest books."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from benchmarks.rehearsal.providers import Providers
from orchestra_jax.money.prices import PriceList

Answer = Callable[[web.Request], Awaitable[web.Response]]


class Unreliable(Providers):
    """The rehearsal's providers, of whom some answers are faults.

    Args:
        draw: chooses them.
        lies: share of the answers that are one.

    Attributes:
        requests: until now, those that were never answered included.
        lost: answers that could not be read, or never came.
        under_way: requests that are billed and have no answer yet.
        on_request: called with the number of each request, before it is billed.
    """

    def __init__(self, prices: PriceList, draw: random.Random, lies: float) -> None:
        super().__init__(prices)
        self._draw, self._lies, self._gone = draw, lies, False
        self.requests = self.lost = self.under_way = 0
        self._hold_s = draw.choice([0.0, 0.05, 0.3])
        self.on_request: Callable[[int], None] = lambda number: None

    async def vanish(self) -> None:
        """Breaks every connection and refuses new ones."""
        self._gone = True
        for site in list(self._runner.sites):
            await site.stop()

    async def come_back(self) -> None:
        """At the same address."""
        if self._gone:
            host, port = self.url.removeprefix("http://").split(":")
            await web.TCPSite(self._runner, host, int(port), reuse_address=True).start()
            self._gone = False

    def calm(self) -> None:
        """Tells the truth from now on."""
        self._lies = 0.0

    async def _complete(self, request: web.Request) -> web.Response:
        return await self._perhaps(request, super()._complete)

    async def _search(self, request: web.Request) -> web.Response:
        return await self._perhaps(request, super()._search)

    async def _perhaps(self, request: web.Request, answer: Answer) -> web.Response:
        self.requests += 1
        self.on_request(self.requests)
        if self._gone:
            self.lost += 1
            return abort(request)
        act = self._draw.choice([*BEFORE, *AFTER, *AFTER]) if self._draw.random() < self._lies else None
        if act in BEFORE:
            self.lost += act == "reset"  # a client cannot know that it was not billed
            return BEFORE[act](request, self._draw)
        sound = await answer(request)
        self.under_way += 1
        try:
            await asyncio.sleep(self._hold_s)
            if self._gone:
                self.lost += 1
                return abort(request)
            if act is None:
                return sound
            self.lost += act not in READABLE
            return AFTER[act](request, self._draw, sound)
        except asyncio.CancelledError:  # the client is gone
            self.lost += 1
            raise
        finally:
            self.under_way -= 1


def abort(request: web.Request) -> web.Response:
    """The connection breaks without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _status(request: web.Request, draw: random.Random) -> web.Response:
    wait = draw.choice([None, "0", "1", "-5", "soon", "1e300", "Fri, 31 Dec 9999 23:59:59 -2359"])
    body = draw.choice([b'{"error": {"message": "\\ud83d"}}', b"", b"<html>", b"[" * 5000, b"\xff\xfe"])
    headers = {"Retry-After": wait} if wait else None
    return web.Response(status=draw.choice([429, 500, 502, 503, 529]), body=body, headers=headers)


def _with_half_an_emoji(request: web.Request, draw: random.Random, sound: web.Response) -> web.Response:
    value = json.loads(sound.body)
    for place in (*value.get("choices", ()), *value.get("results", ())):
        message = place.get("message", place)
        message["content"] = f"{message['content']} \ud83d"
    return _bytes(json.dumps(value).encode())


def _bytes(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _cut(request: web.Request, draw: random.Random, sound: web.Response) -> web.Response:
    return _bytes(sound.body[: draw.randrange(len(sound.body) - 1)])  # type: ignore[index,arg-type]


def _nonsense(request: web.Request, draw: random.Random, sound: web.Response) -> web.Response:
    return _bytes(draw.choice([b"<html>", b"[" * 100_000, b'{"choices": 1e999}', b"null", b'"text"', b"NaN", b"\x00"]))


BEFORE: dict[str | None, Any] = {"status": _status, "reset": lambda request, draw: abort(request)}
AFTER: dict[str | None, Any] = {
    "half an emoji": _with_half_an_emoji,
    "cut": _cut,
    "nonsense": _nonsense,
    "reset after the bill": lambda request, draw, sound: abort(request),
}
READABLE = {"half an emoji"}  # of these the bill is known
