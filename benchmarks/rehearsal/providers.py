"""Stand-ins for what a run pays, on this machine: experts and a judge behind OpenAI's API, and Tavily's web search.

They answer without knowing anything, and keep books: what they billed is what the run's ledger must hold.
"""

import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from orchestra_jax.config.roles import Role
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.sums import State, added
from orchestra_jax.tools.experts.judge import CORRECT, INCORRECT, JUDGE_SYSTEM
from orchestra_jax.tools.experts.roles import ROLES

if TYPE_CHECKING:
    from aiohttp import web

_CACHED = 4  # every fourth token of a prompt is billed as a cached one
_PAGES = 2


class Providers:
    """A server on 127.0.0.1 that speaks for all providers of a run; an asynchronous context manager.

    Args:
        prices: what is billed.

    Attributes:
        billed: until now, by entry of the price list; as `Budget.get_state` gives it.
        url: where it listens; experts are at `url`/v1.
    """

    def __init__(self, prices: PriceList) -> None:
        self._prices, self.url = prices, ""
        self.billed: State = {}

    async def __aenter__(self) -> "Providers":
        from aiohttp import web

        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
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

        body = await request.json()
        allowed = body.get("max_completion_tokens") or body["max_tokens"]
        prompt = sum(4 + len(message["content"].split()) for message in body["messages"])
        words = self._reply(body["messages"]).split(" ")
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

    def _reply(self, messages: list[Mapping[str, str]]) -> str:
        """What an expert in its role, or the judge, says; verdicts are drawn by the candidate's digest."""
        system, asked = messages[0]["content"], messages[-1]["content"]
        if system == JUDGE_SYSTEM:
            verdict = (CORRECT, INCORRECT)[hashlib.blake2b(asked.encode(), digest_size=1).digest()[0] % 2]
            return json.dumps({"reason": "It was drawn.", "verdict": verdict})
        if system == ROLES[Role.query_writer].system:
            return f"<answer>{' '.join(asked.split()[-6:])}</answer>"
        if system == ROLES[Role.code_writer].system:
            return "```python\nprint(6 * 7)\n```"
        return "Nobody is here who could know, so \\boxed{42}"

    async def _search(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        query = (await request.json())["query"]
        self._bill("web_search", self._prices.cost("web_search"), 0)
        pages = [
            {"title": f"{query}, part {number}", "url": f"http://pages.invalid/{number}", "content": f"About {query}."}
            for number in range(1, _PAGES + 1)
        ]
        return web.json_response({"results": pages})
