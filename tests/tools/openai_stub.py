"""An OpenAI-compatible server on 127.0.0.1 with books of its own and faults on demand."""

import asyncio
import hashlib
import json
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from orchestra_jax.money.prices import Price, PriceList
from tests.tools.http_stub import hosting

PRICES = PriceList(
    "stub",
    "2026-01-01",
    "by hand",
    {"small": Price(input=0.5, cached_input=0.25, output=2.0), "big": Price(4.0, 1.0, 16.0)},
)
_BOOK = re.compile(r"\[(\w+)\]")


@dataclass(frozen=True)
class Bill:
    """What one request cost; `book` is the first [word] of its messages."""

    book: str
    model: str
    prompt: int
    cached: int
    completion: int

    @property
    def usd(self) -> float:
        return PRICES.cost(
            self.model, prompt_tokens=self.prompt, cached_tokens=self.cached, completion_tokens=self.completion
        )


def _unsupported(body: Mapping[str, Any]) -> web.StreamResponse | None:
    """What OpenAI's reasoning models answer to fields that they do not take."""
    if not body["model"].startswith(("gpt-5", "o3")):
        return None
    if "max_tokens" in body:
        return failure(400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                       "'max_completion_tokens' instead.", "unsupported_parameter")  # fmt: skip
    if body.get("temperature", 1) != 1:
        return failure(400, f"Unsupported value: 'temperature' does not support {body['temperature']} with this model. "
                       "Only the default (1) value is supported.", "unsupported_value")  # fmt: skip
    return None


class StubOpenAI:
    """Speaks /v1/chat/completions. Tokens are words, and a few per message. Strict about gpt-5 as OpenAI is.

    Attributes:
        bills: of every request that was billed; `bodies`, `keys` and `times` of every request, in order.
        faults: the next requests take them in turn, None is no fault; `chaos` then chooses by the request's number.
        reply: makes the text from the body; by default 1 to max_tokens words.
        context: longest prompt plus completion.
        accepted: keys let in; empty lets everybody in.
        formats: whether it takes `response_format`.
        active, most: requests under way, and the most that ever were.
        on_bill: called with every bill.
    """

    def __init__(self) -> None:
        self.bills: list[Bill] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.times: list[float] = []
        self.faults: deque[Fault | None] = deque()
        self.chaos: Callable[[int], Fault | None] = lambda number: None
        self.reply: Callable[[dict[str, Any]], str] = some_words
        self.context = 10**6
        self.accepted: set[str] = set()
        self.formats = True
        self.gate = asyncio.Event()  # requests wait here after they were billed
        self.gate.set()
        self.active = self.most = 0
        self.on_bill: Callable[[Bill], None] = lambda bill: None
        self.url = ""

    def says(self, *replies: str) -> None:
        """Give these replies in turn, the last of them from then on."""
        left = list(replies)
        self.reply = lambda body: left.pop(0) if len(left) > 1 else left[0]

    async def __aenter__(self) -> "StubOpenAI":
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._server = hosting(app)
        self.url = f"{await self._server.__aenter__()}/v1"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.__aexit__(None, None, None)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.times.append(time.monotonic())
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            return await self._answer(request)
        finally:
            self.active -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.bodies)
        self.bodies.append(body)
        self.keys.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if self.accepted and self.keys[-1] not in self.accepted:
            return failure(401, f"Incorrect API key provided: {self.keys[-1]}.", "invalid_api_key")
        if refused := _unsupported(body):
            return refused
        if "response_format" in body and not self.formats:
            return failure(400, "Unsupported parameter: 'response_format' is not supported.", "unsupported_parameter")
        fault = self.faults.popleft() if self.faults else self.chaos(number)
        if isinstance(fault, Before):
            return await fault.act(request)
        prompt = sum(5 + len(message["content"].split()) for message in body["messages"]) + 3
        allowed = body.get("max_tokens") or body["max_completion_tokens"]
        if prompt + allowed > self.context:
            return failure(
                400, f"This model's maximum context length is {self.context} tokens.", "context_length_exceeded"
            )
        text = self.reply(body)
        words = text.split()
        finish = "stop" if len(words) <= allowed else "length"
        text, completion = (text, len(words)) if finish == "stop" else (" ".join(words[:allowed]), allowed)
        found = _BOOK.search(" ".join(message["content"] for message in body["messages"]))
        bill = Bill(found[1] if found else "", body["model"], prompt, prompt // 3, completion)
        self.bills.append(bill)
        self.on_bill(bill)
        await self.gate.wait()
        answer = {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
                "prompt_tokens_details": {"cached_tokens": bill.cached},
                "completion_tokens_details": {"reasoning_tokens": completion // 2},
            },
        }
        if isinstance(fault, After):
            return await fault.act(request, answer)
        return web.json_response(answer)


def some_words(body: Mapping[str, Any]) -> str:
    """1 to max_tokens words, a function of the messages."""
    digest = hashlib.blake2b(json.dumps(body["messages"]).encode(), digest_size=4).digest()
    most = body.get("max_tokens") or body["max_completion_tokens"]
    return " ".join(["word"] * (1 + int.from_bytes(digest) % most))


def failure(
    status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "stub", "param": None, "code": code}}, status=status, headers=headers
    )


# --- faults ---


@dataclass(frozen=True)
class Before:
    """Happens instead of an answer; nothing is billed."""

    act: Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class After:
    """Happens to an answer that is billed."""

    act: Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


Fault = Before | After


def status(
    code: int, retry_after: str | None = None, error: str | None = None, message: str = "something broke"
) -> Before:
    async def act(request: web.Request) -> web.StreamResponse:
        return failure(code, message, error, {"Retry-After": retry_after} if retry_after else None)

    return Before(act)


def slow(seconds: float) -> After:
    async def act(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return web.json_response(answer)

    return After(act)


def changed(change: Callable[[dict[str, Any]], object]) -> After:
    """`change` alters the answer."""

    async def act(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
        change(answer)
        return web.json_response(answer)

    return After(act)


async def _cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _cut_answer(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
    return await _cut(request)


async def _half(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
    text = json.dumps(answer)
    return web.Response(text=text[: len(text) // 2], content_type="application/json")


RESET_BEFORE = Before(_cut)
RESET_AFTER = After(_cut_answer)
TRUNCATED = After(_half)
NO_USAGE = changed(lambda answer: answer.pop("usage"))
