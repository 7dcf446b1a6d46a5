"""Servers that answer what they like, over real HTTP: experts, judges, searches, embeddings, bare bytes."""

import asyncio
import json
import math
import os
import random
from typing import Any
from unittest.mock import patch

from aiohttp import web

from benchmarks.chaos.faults import Kind, holds, sentence
from benchmarks.chaos.odd import change, change_bytes, cut, insert, nothing_of_it, odd_value
from orchestra_jax.io.http_json import JsonClient, ServerError
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.tools.experts.judge import Judge
from orchestra_jax.tools.search.embeddings import EndpointEmbedder
from orchestra_jax.tools.search.server import RemoteIndex
from orchestra_jax.tools.search.web import TavilySearch, WikipediaSearch
from orchestra_jax.types import InfrastructureError, ToolResult
from tests.tools.http_stub import serving
from tests.tools.openai_stub import PRICES, RESET_AFTER, RESET_BEFORE, After, Before, Fault, StubOpenAI
from tests.tools.search.test_outside_search import PRICES as SEARCH_PRICES
from tests.tools.search.test_outside_search import WIRE

WAITS = (
    "0", "0.01", "-1", "", "soon", "1e300", "nan", "inf", "9" * 400, "\xe9", "Fri, 31 Dec 9999 23:59:59 -2359",
    "Fri, 31 Dec 9999 23:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 99 Foo 20 99:99:99",
)  # fmt: skip
TIMEOUT_S = 3.0  # of a request; what is slow takes longer or a fraction


class Answered:
    """A fault of an expert's answer that was billed, and whether the bill stands in it untouched."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.bill_stands, self.what = True, ""
        self.fault: Fault = self._drawn()

    def _drawn(self) -> Fault:
        match self._draw.randrange(10):
            case 0:
                self.what = "reset before"
                return RESET_BEFORE
            case 1 | 2:
                return Before(self._status)
            case 3:
                self.what = "reset after"
                return RESET_AFTER
            case 4 | 5 | 6:
                return After(self._value)
            case 7 | 8:
                return After(self._bytes)
            case _:
                return After(self._drip)

    async def _status(self, request: web.Request) -> web.Response:
        draw = self._draw
        code, wait = (
            draw.choice((400, 401, 404, 408, 409, 413, 418, 422, 429, 500, 502, 503, 529, 599)),
            draw.choice(WAITS),
        )
        body = json.dumps({"error": odd_value(draw)}).encode() if draw.random() < 0.5 else nothing_of_it(draw, b"")
        self.what = f"status {code}, Retry-After {wait[:40]!r}, {body[:60]!r}"
        return web.Response(status=code, body=body, headers={"Retry-After": wait}, content_type="application/json")

    async def _value(self, request: web.Request, answer: dict[str, Any]) -> web.Response:
        changed, path = change(self._draw, answer)
        self.bill_stands = bool(path) and path[0] != "usage"
        self.what = f"{path}: {ascii(changed)[:200]}"
        return web.Response(body=json.dumps(changed).encode(), content_type="application/json")

    async def _bytes(self, request: web.Request, answer: dict[str, Any]) -> web.Response:
        body, name = change_bytes(self._draw, json.dumps(answer).encode())
        # Other changes may be to the counts themselves.
        self.bill_stands = name in (cut.__name__, nothing_of_it.__name__)
        self.what = f"{name}: {body[:200]!r}"
        headers = {"Content-Encoding": "gzip"} if self._draw.random() < 0.1 else {}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _drip(self, request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
        body, pieces = json.dumps(answer).encode(), self._draw.randint(2, 9)
        pause = self._draw.choice((0.005, 0.02, 2 * TIMEOUT_S / pieces))
        self.what = f"{pieces} pieces, {pause:.3f} s between them"
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
        await response.prepare(request)
        size = len(body) // pieces + 1
        for first in range(0, len(body), size):
            await response.write(body[first : first + size])
            await asyncio.sleep(pause)
        return response


class Experts(Kind):
    """Experts and judges: an answer, or one sentence; and what is charged is what was billed, or the worst case."""

    name = "experts and judges"
    share = 2.0

    async def __aenter__(self) -> "Experts":
        self._stub = await StubOpenAI().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stub.__aexit__(*error)

    async def attempt(self, draw: random.Random) -> None:
        stub, budget = self._stub, Budget(Limits(usd=1.0))
        retries, judges = draw.choice((0, 0, 1, 2)), draw.random() < 0.3
        faults = [Answered(draw) for _ in range(draw.randint(1, 3))]
        stub.faults.extend(fault.fault for fault in faults)
        stub.reply = lambda body: '{"reason": "It is right.", "verdict": "correct"}' if judges else "Some words."
        stub.bills.clear()
        expert = Expert("small", "small", stub.url, max_tokens=50, retries=retries, timeout_s=TIMEOUT_S)
        client, rows, exact = ExpertClient(expert, PRICES, backoff_s=0.001), (), False
        try:
            if judges:
                rows = (await Judge(client).judge("How far?", "7", ["8"], budget=budget)).usage
            else:
                completion = await client.chat([{"role": "user", "content": "[a] How far?"}], budget=budget)
                completion.text.encode()
                rows = completion.usage
        except InfrastructureError as error:
            sentence(error, InfrastructureError)
        finally:
            await client.close(patience_s=3 * TIMEOUT_S)
            taken = faults[: len(faults) - len(stub.faults)]
            stub.faults.clear()
            self.what = "; ".join(fault.what for fault in taken) + (" (judge)" if judges else "")
        stands = all(fault.bill_stands for fault in taken)
        exact = bool(rows) and stands and not any(row.estimated for row in rows)
        _check_money(budget, sum(bill.usd for bill in stub.bills), at_least=stands, exact=exact)
        spent = budget.spent.usd
        async with asyncio.timeout(60):  # the next call finds nothing in its way
            sound = ExpertClient(expert, PRICES)
            await sound.chat([{"role": "user", "content": "[b] How far?"}], budget=budget)
            await sound.close()
        holds(math.isclose(budget.spent.usd - spent, stub.bills[-1].usd), "the next call is not paid as it was billed")


def _check_money(budget: Budget, billed: float, *, at_least: bool, exact: bool) -> None:
    spent, reserved = budget.spent, budget.reserved
    holds(math.isfinite(spent.usd) and spent.usd >= 0, f"{spent.usd} dollars were spent")
    holds((reserved.calls, reserved.tokens) == (0, 0), f"a reservation is left: {reserved}")
    if at_least:
        holds(spent.usd >= billed - 1e-12, f"{billed} dollars were billed, {spent.usd} spent")
    if exact:
        holds(math.isclose(spent.usd, billed, abs_tol=1e-12), f"{billed} dollars were billed, {spent.usd} spent")


QUERIES: dict[str, tuple[str, Any]] = {
    "tavily search": ("search", {"results": [{"title": "t", "url": "u", "content": "c"}] * 2}),
    "tavily extract": ("extract", {"results": [{"raw_content": "a page"}]}),
    "wikipedia search": ("search", {"query": {"pages": [{"index": 1, "title": "a", "extract": "b"}]}}),
    "wikipedia extract": ("extract", {"query": {"pages": [{"title": "a", "extract": "b"}]}}),
    "retrieval": ("", {"result": [[{"document": {"text": "t", "title": "u"}, "score": 1.0}]]}),
    "embedding": ("", {"data": [{"index": 0, "embedding": [1.0, 2.0]}], "usage": {"prompt_tokens": 3}}),
}


class Searches(Kind):
    """Web search, retrieval and embedding servers: a result that is text, or one sentence."""

    name = "search, retrieval, embeddings"

    async def __aenter__(self) -> "Searches":
        self._variables = patch.dict(os.environ, TAVILY_API_KEY="chaos")
        self._variables.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._variables.stop()

    async def attempt(self, draw: random.Random) -> None:
        service = draw.choice(list(QUERIES))
        call, sound = QUERIES[service]
        if draw.random() < 0.6:
            changed, path = change(draw, sound)
            body, how = json.dumps(changed).encode(), str(path)
        else:
            body, how = change_bytes(draw, json.dumps(sound).encode())
        status = draw.choice((200, 200, 200, 200, 400, 403, 429, 432, 500, 503))
        headers = {"Retry-After": draw.choice(WAITS[2:])} if status in (429, 503) else {}
        self.what = f"{service}, status {status}, {how}: {body[:200]!r}"

        async def answer(request: web.Request) -> web.Response:
            return web.Response(body=body, status=status, content_type="application/json", headers=headers)

        async with serving(answer) as url:
            budget = Budget(Limits(usd=1.0))
            try:
                await self._ask(service, call, url, budget)
            except InfrastructureError as error:
                sentence(error, InfrastructureError, ServerError)
            _check_money(budget, 0.0, at_least=True, exact=False)

    async def _ask(self, service: str, call: str, url: str, budget: Budget) -> None:
        if service in ("retrieval", "embedding"):
            client = RemoteIndex(url, retries=0) if service == "retrieval" else EndpointEmbedder(url, "m", retries=0)
            try:
                if isinstance(client, RemoteIndex):
                    (await client.answer("oslo")).encode()
                else:
                    vectors = await client.embed(["oslo"])
                    holds(vectors.shape[0] == 1 and bool((vectors == vectors).all()), f"vectors {vectors}")
            finally:
                await client.close()
            return
        make = TavilySearch if service.startswith("tavily") else WikipediaSearch
        tool = make(SEARCH_PRICES, url=url, retries=0, backoff_s=0.001)
        try:
            asked = {"query": "oslo"} if call == "search" else {"url": "Oslo"}
            found = await getattr(tool, call)(asked, budget)
            holds(isinstance(found, ToolResult), f"the result {found!r}")
            found.text.encode()
        finally:
            await tool.close()


class Wire(Kind):
    """Bytes in the place of an HTTP answer, in one piece or in several."""

    name = "bytes on the wire"

    async def attempt(self, draw: random.Random) -> None:
        content = draw.choice(
            (*WIRE, b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"a": 1 }')
        )
        for _ in range(draw.randrange(3)):
            content = insert(draw, content) if draw.random() < 0.5 else change_bytes(draw, content)[0]
        self.what = repr(content[:200])
        pieces = draw.randint(1, 4)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            size = len(content) // pieces + 1
            for first in range(0, len(content), size):
                writer.write(content[first : first + size])
                await asyncio.sleep(0.001)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = JsonClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=TIMEOUT_S)
        try:
            json.dumps(await client.post("/x", {"a": "\ud83d"})).encode()
        except ServerError as error:
            sentence(error, ServerError)
        finally:
            await client.close()
            server.close()
