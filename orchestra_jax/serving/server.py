"""An OpenAI-compatible server of one orchestrator: routes, keys, limits and metrics."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.serving import wire
from orchestra_jax.serving.answers import Answer, CallStep, tell, told
from orchestra_jax.serving.asking import QuestionError
from orchestra_jax.serving.canary import Canary
from orchestra_jax.serving.database import ServerDatabase
from orchestra_jax.serving.dearest import DEAREST, DearestModel
from orchestra_jax.serving.errors import RequestError, no_model, wrong
from orchestra_jax.serving.feedback import keep, read_feedback
from orchestra_jax.serving.keys import Key, KeyRing, digest
from orchestra_jax.serving.ledger import ServedPurse
from orchestra_jax.serving.metrics import Metrics
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.serving.page import page
from orchestra_jax.serving.streaming import Stream, beating, until_gone
from orchestra_jax.serving.wire import ChatRequest
from orchestra_jax.types import OutOfTime, ReplayMiss

_BODY_S = 30.0  # for a request's body to arrive
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class ServerLimits:
    """Limits of a server beside those of its run.

    Attributes:
        max_usd: most dollars of one answer, where the request gives no smaller one; None: no limit.
        max_seconds: likewise seconds.
        under_way: most requests at once; further ones are told to come again.
        body: most bytes of a request's body.
        key: what clients may send as a bearer token beside the keys of the database; None: if there never was one
            either, anybody is let in.
        keep_days: days for which task and trajectory of a request are kept; 0: not at all.
        hosts: names that the server may be called by, "*" for any.

    Raises:
        ConfigError: a limit is negative or no number: days below 0 would delete what was kept.
    """

    max_usd: float | None = None
    max_seconds: float | None = None
    under_way: int = 128
    body: int = wire.MOST_BYTES
    key: str | None = None
    keep_days: float = 30.0
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "::1")

    def __post_init__(self) -> None:
        for name in ("max_usd", "max_seconds", "keep_days"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"--{name.replace('_', '-')}={value:g} must be a number >= 0: change it.")


class ChatServer:
    """The routes of a server.

    Args:
        canary: divides conversations between the orchestrator and a newer policy.

    Attributes:
        under_way: number of requests under way.
        stopping: set to end them.
    """

    def __init__(
        self,
        orchestrator: Orchestrator,
        database: ServerDatabase,
        limits: ServerLimits,
        canary: Canary | None = None,
    ) -> None:
        self.orchestrator, self.limits, self.metrics, self._canary = orchestrator, limits, Metrics(), canary
        self.database, self.keys = database, KeyRing(database, limits.key)
        self._dearest = DearestModel.of(orchestrator)
        self.under_way, self._started, self.stopping = 0, int(time.time()), asyncio.Event()
        self.metrics.under_way.set_function(lambda: self.under_way)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._guarded(self.chat), methods=["POST"]),
                Route("/v1/feedback", self._guarded(self.feedback), methods=["POST"]),
                Route("/v1/models", self._guarded(self.models)),
                Route("/v1/models/{name:path}", self._guarded(self.model)),
                Route("/metrics", self._guarded(self.figures)),
                Route("/health", self.health),
                Route("/", self.page),
            ],
            exception_handlers={HTTPException: _http_error, RequestError: _request_error, Exception: _bug},
        )

    def _guarded(self, handler: Handler) -> Handler:
        """Let in who has the key, and names the server by one of its names: a page of a browser may not."""

        async def guarded(request: Request) -> Response:
            hosts = self.limits.hosts
            if "*" not in hosts and request.url.hostname not in hosts:
                raise RequestError(421, f"This server is not {request.url.hostname}.", code="wrong_host")
            request.state.key = await self._key(request)
            return await handler(request)

        return guarded

    async def _key(self, request: Request) -> Key | None:
        """Return the key of a request, None where none is needed; raise RequestError: it has none or a wrong one."""
        if self.keys.old():
            try:
                await asyncio.to_thread(self.keys.read)
            except OSError as error:
                raise cast(RequestError, _problem(error)) from error
        if not self.keys.needed:
            return None
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        found = self.keys.known.get(digest(key.strip())) if kind.lower() == "bearer" else None
        if found is None:
            raise RequestError(
                401, "The key is missing or wrong: send the server's key as a bearer token.", code="invalid_api_key"
            )
        return found

    async def health(self, request: Request) -> Response:
        """Tell that the server is there."""
        return JSONResponse({"status": "ok"})

    async def page(self, request: Request) -> Response:
        """Show a page to ask on; it holds nothing but the way to ask."""
        content, headers = page()
        return HTMLResponse(content, headers=headers)

    async def figures(self, request: Request) -> Response:
        """Tell the metrics."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def models(self, request: Request) -> Response:
        """List the orchestrator, it with each wish, and what it is compared with."""
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self._names]})

    async def model(self, request: Request) -> Response:
        """Describe one of the models."""
        name = request.path_params["name"]
        if name not in self._names:
            raise no_model(name, self._names)
        return JSONResponse(self._model(name))

    async def feedback(self, request: Request) -> Response:
        """Keep what a user says of an answer."""
        try:
            said = read_feedback(await _body(request, self.limits.body))
            policy, right = await keep(self.database, said, request.state.key)
        except OSError as error:
            raise cast(RequestError, _problem(error)) from error
        if right is not None:
            self.metrics.note_verdict(policy, right=right)
        return JSONResponse({"id": said.request, "object": "feedback"})

    @property
    def _names(self) -> list[str]:
        name = self.orchestrator.name
        return [name, *(f"{name}:{wish}" for wish in self.orchestrator.wishes), *self._others]

    @property
    def _others(self) -> list[str]:
        return [] if self._dearest is None else [f"{self.orchestrator.name}:{DEAREST}"]

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "orchestra_jax"}

    async def chat(self, request: Request) -> Response:
        """Answer a conversation, at once or in chunks."""
        if self.under_way >= self.limits.under_way:
            self.metrics.requests.labels("503").inc()
            raise RequestError(
                503,
                "As many requests as this server takes are under way: try again.",
                kind="server_error",
                code="overloaded",
                retry_s=1,
            )
        held, asked, served = contextlib.ExitStack(), None, self.orchestrator
        held.enter_context(self.metrics.seconds.time())
        self.under_way += 1
        held.callback(self._ended)
        try:
            asked = self._bounded(
                wire.read_chat(await _body(request, self.limits.body), served.name, served.wishes, self._others)
            )
            orchestrator = self._dearest if asked.dearest and self._dearest is not None else served
            if self._canary is not None and not asked.dearest:
                orchestrator = held.enter_context(self._canary.chosen(asked, request.state.key))
            policy = orchestrator.policy
            asked.options["purse"] = self._purse(asked, request.state.key, policy)
            if asked.stream:
                steps = orchestrator.astream(asked.question, **asked.options)
                first = await until_gone(request, anext(steps), self.stopping)
                if isinstance(first, Answer):
                    self._ended_as(first, policy)
                response: Response = Stream(self._chunks(asked, policy, first, steps), steps, held.pop_all())
            else:
                answer = await until_gone(request, orchestrator.aask(asked.question, **asked.options), self.stopping)
                self._ended_as(answer, policy)
                response = JSONResponse(wire.completion(asked, answer), headers={"x-request-id": answer.id})
            self.metrics.requests.labels("200").inc()
            return response
        except Exception as error:
            problem = _problem(error)
            self.metrics.requests.labels(str(problem.status if problem is not None else 500)).inc()
            if problem is None:
                raise
            problem.request = None if asked is None else asked.options["request_id"]
            raise problem from error
        finally:
            held.close()

    def _ended(self) -> None:
        self.under_way -= 1

    def _bounded(self, asked: ChatRequest) -> ChatRequest:
        """Return the request within the server's limits."""
        for name in ("max_usd", "max_seconds"):
            most, given = getattr(self.limits, name), asked.options[name]
            if most is not None and given is not None and given > most:
                raise wrong(f"orchestra.{name}", f"at most {most:g} on this server")
            asked.options[name] = most if given is None else given
        return asked

    def _purse(self, asked: ChatRequest, key: Key | None, policy: str) -> ServedPurse:
        kept, budget = self.limits.keep_days > 0 and asked.keep, self.orchestrator.budget
        name, said = asked.options["request_id"], (asked.options["history"], asked.options["temperature"])
        told = self.metrics.dollars.labels(policy).inc
        return ServedPurse(self.database, name, key, budget, policy, *said, keep=kept, told=told)

    def _ended_as(self, answer: Answer, policy: str) -> Answer:
        """Count an answer of a policy; raise RequestError: it is an error."""
        self.metrics.note(answer, policy)
        if (problem := wire.failure(answer)) is not None:
            raise problem
        return answer

    async def _chunks(
        self, asked: ChatRequest, policy: str, first: CallStep | Answer, steps: AsyncIterator[CallStep | Answer]
    ) -> AsyncIterator[str]:
        """Yield the lines of a stream: calls as reasoning, then the answer."""
        name = asked.options["request_id"]
        yield _line(wire.chunk(asked, name, {"role": "assistant", "content": ""}))
        try:
            async for step in beating(first, steps, self.stopping):
                if step is None:
                    yield ": under way\n\n"
                elif isinstance(step, CallStep):
                    shown = {"orchestra": {"call": wire.shown_call(step)}} if asked.trace else {}
                    yield _line(wire.chunk(asked, name, {"reasoning_content": told(step)}) | shown)
                else:
                    answer = step if step is first else self._ended_as(step, policy)
                    said: dict[str, Any] = {"content": answer.answer or ""}
                    if answer.tool_calls:
                        calls = enumerate(wire.tool_calls(asked, answer))
                        said = {"tool_calls": [{"index": number, **call} for number, call in calls]}
                    yield _line(wire.chunk(asked, name, said))
                    last = wire.chunk(asked, name, {}, wire.finish_reason(answer))
                    yield _line(last | {"orchestra": wire.told(asked, answer)})
                    if asked.usage:
                        yield _line(wire.usage_chunk(asked, answer))
        except Exception as error:
            if (problem := _problem(error)) is None:
                raise
            yield _line(problem.body)
        yield "data: [DONE]\n\n"


async def _body(request: Request, most: int) -> bytes:
    """Return the body of a request; it is JSON, so that no page of a browser can send one to us unasked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(
            415, f"The content type must be application/json, not {kind!r}.", code="invalid_content_type"
        )
    too_large = RequestError(413, f"The body has more than {most:,} bytes.", code="body_too_large")
    if request.headers.get("content-length", "0").isdecimal() and (
        int(request.headers.get("content-length", "0")[:20]) > most
    ):
        raise too_large
    found = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                found += part
                if len(found) > most:
                    raise too_large
    except TimeoutError:
        raise RequestError(408, f"The body did not arrive within {_BODY_S:g} s.", code="timeout") from None
    return bytes(found)


def _problem(error: Exception) -> RequestError | None:
    """Return the error of the API that an exception is; None: it is a bug."""
    match error:
        case RequestError():
            return error
        case BudgetExceeded() if error.scope:
            return RequestError(402, str(error), kind="insufficient_quota", code="budget_exceeded")
        case OutOfTime():
            return RequestError(503, str(error), kind="server_error", code="engine_unavailable", retry_s=5)
        case ReplayMiss():
            return RequestError(422, str(error), code="not_recorded")
        case ClientDisconnect():
            return RequestError(499, "The client has gone.", code="client_closed_request")
        case BudgetExceeded() | OSError():
            tell(str(error))  # to whoever runs the server: it names the database
            words = "The record of requests cannot be written."
            return RequestError(503, words, kind="server_error", code="disk", retry_s=30)
        case QuestionError():
            return RequestError(400, str(error), param="messages", code="invalid_value")
    return None


def _line(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


async def _request_error(request: Request, error: Exception) -> Response:
    problem = cast(RequestError, error)
    headers = {} if problem.retry_s is None else {"retry-after": str(problem.retry_s)}
    if problem.request is not None:
        headers["x-request-id"] = problem.request
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(problem.body, problem.status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    found = cast(HTTPException, error)
    path = request.url.path
    words = {
        404: f"There is nothing at {path}: questions go to /v1/chat/completions.",
        405: f"{request.method} is not for {path}.",
    }
    problem = RequestError(found.status_code, words.get(found.status_code, str(found.detail)))
    return JSONResponse(problem.body, found.status_code, found.headers)


async def _bug(request: Request, error: Exception) -> Response:
    problem = RequestError(500, "The server has a bug; its log has the trace.", kind="server_error", code="bug")
    return JSONResponse(problem.body, 500)
