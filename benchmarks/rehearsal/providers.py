"""Stand-ins for what a run asks, on this machine: models behind OpenAI's API, vectors too, and Tavily's web search.

They answer without knowing anything, and keep books: what they billed is what the run's ledger must hold.
"""

import asyncio
import itertools
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from benchmarks.rehearsal.replies import reply, vector
from orchestra_jax.money.bill import State, added
from orchestra_jax.money.prices import PriceList

if TYPE_CHECKING:
    from aiohttp import web

_CACHED = 4  # every fourth token of a prompt is billed as a cached one
_PAGES = 2
_USUAL_S = 0.2  # of the shortest answer under a slow tail
_MOST_S = 20.0  # of the longest: nobody gives up waiting


def slow_tail(seed: int) -> Iterator[float]:
    """Yield seconds until each answer with a heavy tail, Pareto's with exponent 1, cut at the longest.

    One answer in ten takes ten times the shortest or more, one in a hundred a hundred times. The n-th request of a run
    waits as long as the n-th of another.
    """
    drawn = random.Random(seed)
    while True:
        yield min(_MOST_S, _USUAL_S * drawn.paretovariate(1.0))


class Providers:
    """A server on 127.0.0.1 that speaks for all providers of a run; an asynchronous context manager.

    Args:
        prices: what is billed.
        delays: seconds until each answer, in the order of requests.

    Attributes:
        billed: until now, by entry of the price list; as `Budget.get_state` gives it.
        embedded: texts that were turned into vectors, which costs nothing.
        url: where it listens; models are at `url`/v1.
    """

    def __init__(self, prices: PriceList, delays: Iterator[float] | None = None) -> None:
        self._prices, self.url = prices, ""
        self._delays = delays or itertools.repeat(0.0)
        self.billed: State = {}
        self.embedded = 0

    async def __aenter__(self) -> "Providers":
        from aiohttp import web

        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/embeddings", self._embed)
        app.router.add_post("/search", self._search)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    def _bill(self, name: str, usd: float, tokens: int) -> None:
        self.billed = added([self.billed, {name: [str(Fraction(usd)), tokens, 1]}])

    async def _complete(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        body = await _body(request)
        await asyncio.sleep(next(self._delays))
        allowed = body.get("max_completion_tokens") or body["max_tokens"]
        prompt = sum(4 + len(message["content"].split()) for message in body["messages"])
        words = reply(body["messages"]).split(" ")
        cut, completion, cached = len(words) > allowed, min(len(words), allowed), prompt // _CACHED
        usd = self._prices.cost(body["model"], prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)
        self._bill(body["model"], usd, prompt + completion)
        message = {"role": "assistant", "content": " ".join(words[:completion])}
        return web.json_response(
            {
                "id": "chatcmpl-rehearsal",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "length" if cut else "stop"}],
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": completion,
                    "total_tokens": prompt + completion,
                    "prompt_tokens_details": {"cached_tokens": cached},
                },
            }
        )

    async def _embed(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        texts = (await _body(request))["input"]
        self.embedded += len(texts)
        rows = [{"index": number, "embedding": vector(text)} for number, text in enumerate(texts)]
        return web.json_response({"data": rows, "usage": {"prompt_tokens": len(texts)}})

    async def _search(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        query = (await _body(request))["query"]
        await asyncio.sleep(next(self._delays))
        self._bill("web_search", self._prices.cost("web_search"), 0)
        pages = [
            {"title": f"{query}, part {number}", "url": f"http://pages.invalid/{number}", "content": f"About {query}."}
            for number in range(1, _PAGES + 1)
        ]
        return web.json_response({"results": pages})


async def _body(request: "web.Request") -> Any:
    """The request's JSON."""
    from aiohttp import web

    try:
        return await request.json()
    except ConnectionResetError:  # whoever asked was killed
        raise web.HTTPBadRequest from None
