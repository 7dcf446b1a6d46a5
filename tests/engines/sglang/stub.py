"""An SGLang server without a model: the protocol, deterministic ids, and faults on demand."""

import asyncio
import contextlib
import json
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from orchestra_jax.engines.base import SamplingParams
from orchestra_jax.engines.sglang.weight_sync import SyncReport
from orchestra_jax.io.http_json import JsonClient, ServerError
from orchestra_jax.types import InfrastructureError

VOCAB = 50
SECONDS = 60.0
PROMPT = (3, 1, 4)
LOOKS = ("/health", "/model_info")
# Changes an answer that is right, or answers itself.
Fault = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse] | None]


class StubServer:
    """Speaks /generate, /abort_request, /health, /model_info, a weight update, and the release of memory.

    Attributes:
        version: weight version it reports.
        bodies: of every /generate, in order; `aborted`: rids of /abort_request; `calls`: every path, in order.
        faults: the next generation takes the first; None is no fault.
        gate: generations wait until it is set; `most`: how many waited or ran at once.
        healthy: whether /health answers 200.
        hangs: paths that never answer.
        sick: how often a path still answers with status 500, at once.
        refuse_weights: status of an update that fails; 0: it does not.
        paused, released: as it was told; `tags`: those of every release and resume, in the order of `calls`.
        eos: id that ends every generation unless it ignores such ids, or None.
        info, details: what /model_info and /server_info say beside the ordinary.
        updates: body of every weight update.
    """

    def __init__(self) -> None:
        self.port = 0
        self.runner: web.AppRunner | None = None
        self.reset()

    def reset(self, version: str = "0") -> None:
        self.version = version
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.calls: list[str] = []
        self.faults: deque[Fault | None] = deque()
        self.gate = asyncio.Event()
        self.gate.set()
        self.active = self.most = 0
        self.healthy, self.refuse_weights = True, 0
        self.hangs: Sequence[str] = ()
        self.sick = Counter[str]()
        self.paused, self.released = False, set[str]()
        self.tags: list[set[str]] = []
        self.eos: int | None = None
        self.info: dict[str, Any] = {}
        self.details: dict[str, Any] = {}
        self.updates: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application(middlewares=[self._noted])
        app.router.add_get("/health", self._health)
        app.router.add_get("/model_info", self._model_info)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/pause_generation", self._control)
        app.router.add_post("/update_weights_from_disk", self._update)
        app.router.add_post("/continue_generation", self._control)
        app.router.add_post("/release_memory_occupation", self._release)
        app.router.add_post("/resume_memory_occupation", self._resume)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.port = self.runner.addresses[0][1]

    async def kill(self) -> None:
        """Ends at once: open connections are cut, new ones refused. `start` brings it back on the same port."""
        runner, self.runner = self.runner, None
        if runner is not None:
            assert runner.server is not None
            for connection in runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    @web.middleware
    async def _noted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Notes the path, and hangs or fails where that was ordered."""
        self.calls.append(request.path)
        while request.path in self.hangs:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if self.sick[request.path]:
            self.sick[request.path] -= 1
            return web.Response(status=500, text="something broke")
        return await handler(request)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.version, "architectures": ["Qwen3ForCausalLM"]} | self.info)

    async def _server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"max_req_input_len": 100} | self.details)

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()

    async def _control(self, request: web.Request) -> web.Response:
        self.paused = request.path == "/pause_generation"
        assert await request.json() == ({"mode": "retract"} if self.paused else {})
        assert self.paused or not self.released, "it would go on without its memory"
        return web.json_response({"status": "ok"})

    async def _release(self, request: web.Request) -> web.Response:
        tags = await self._tags(request)
        # As the real one, whose scheduler dies of both.
        assert self.paused or not self.active, "release_memory_occupation should be called only when server is idle."
        assert not tags & self.released, "released twice"
        self.released |= tags
        return web.Response()

    async def _resume(self, request: web.Request) -> web.Response:
        for tag in await self._tags(request):
            self.released.remove(tag)  # KeyError, as in the real one
        return web.Response()

    async def _tags(self, request: web.Request) -> set[str]:
        self.tags.append(set((await request.json())["tags"]))
        return self.tags[-1]

    async def _update(self, request: web.Request) -> web.Response:
        assert self.paused
        assert "weights" not in self.released, "written into memory that is not there"
        if self.refuse_weights:
            return web.json_response({"success": False, "message": "no such folder"}, status=self.refuse_weights)
        self.updates.append(await request.json())
        self.version = self.updates[-1]["weight_version"]
        return web.json_response({"success": True})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert not self.released, "generates without its memory"
        self.bodies.append(body)
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            await self.gate.wait()
            answer = self.answer(body)
            fault = self.faults.popleft() if self.faults else None
            found = fault(request, answer) if fault is not None else None
            return await found if found is not None else web.json_response(answer)
        finally:
            self.active -= 1

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling = body["sampling_params"]
        stops = set(sampling["stop_token_ids"])
        if self.eos is not None:
            stops.add(self.eos)
        stops = set() if sampling["ignore_eos"] else stops
        ids = continuation(body["input_ids"], sampling["max_new_tokens"], stops)
        reason = {"type": "stop", "matched": ids[-1]} if ids[-1] in stops else {"type": "length", "length": len(ids)}
        meta = {
            "id": body["rid"],
            "finish_reason": reason,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 1,
            "weight_version": self.version,
            "output_token_logprobs": [[-(1 + token) / 10, token, None] for token in ids],
        }
        return {"output_ids": ids, "meta_info": meta}


def continuation(prompt: Sequence[int], count: int, stops: Sequence[int] | set[int] = ()) -> list[int]:
    """The ids that every stub samples: a function of what stands before, so a continued generation is the same."""
    ids = list(prompt)
    while len(ids) < len(prompt) + count:
        ids.append(random.Random(str(ids)).randrange(VOCAB))
        if ids[-1] in stops:
            break
    return ids[len(prompt) :]


class StubWeightSync:
    """Tells every stub the version."""

    closed, label = False, str

    def close(self) -> None:
        self.closed = True

    async def sync(self, servers: Sequence[JsonClient], params: Any, version: int) -> SyncReport:
        failures = {}
        for server in servers:
            try:
                await server.post("/pause_generation", {"mode": "retract"}, timeout_s=SECONDS)
                body = {"model_path": str(params), "weight_version": str(version)}
                await server.post("/update_weights_from_disk", body, timeout_s=SECONDS)
            except ServerError as error:
                failures[server.url] = str(error)
            finally:
                with contextlib.suppress(ServerError):
                    await server.post("/continue_generation", {}, timeout_s=SECONDS)
        if servers and len(failures) == len(servers):
            raise InfrastructureError(" ".join(failures.values()))
        return SyncReport(0.0, 0.0, 0, failures)


# --- callers ---


async def soon(condition):
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def one(engine, prompt=PROMPT, count=5, session=None, **params):
    async with asyncio.timeout(SECONDS):
        return await engine.generate(prompt, SamplingParams(count, **params), session=session)


def start(engine, count, **options):
    return [asyncio.ensure_future(one(engine, (i + 1,), **options)) for i in range(count)]


# --- faults ---


async def reset(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
    """Cuts the connection before a byte of the answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def reset_in_body(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
    text = json.dumps(answer).encode()
    response = web.StreamResponse(headers={"Content-Length": str(len(text))})
    await response.prepare(request)
    await response.write(text[: len(text) // 2])
    assert request.transport is not None
    request.transport.close()
    return response


async def hang(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


def status(code: int) -> Fault:
    async def answer_status(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=code, text="something broke")

    return answer_status


def text(change: Callable[[str], str]) -> Fault:
    """Sends other bytes than the answer's, with a length that is right."""

    async def answer_text(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text=change(json.dumps(answer)), content_type="application/json")

    return answer_text


def changed(change: Callable[[dict[str, Any], dict[str, Any], list[Any]], object]) -> Fault:
    """`change` gets the answer, its meta_info and its log-prob rows, and alters them."""

    def fault(request: web.Request, answer: dict[str, Any]) -> None:
        meta = answer["meta_info"]
        change(answer, meta, meta["output_token_logprobs"])

    return fault


def put(position: int, index: int, value: Any) -> Fault:
    """Replaces the log-prob (index 0) or the id (1) of one token; NaN travels as Python writes it."""
    return changed(lambda answer, meta, rows: (rows[position].__setitem__(index, value), answer.pop("output_ids")))


def other_finish(reason: Any) -> Fault:
    return changed(lambda answer, meta, rows: meta.update(finish_reason=reason))


def append_token(answer: dict[str, Any], meta: dict[str, Any], rows: list[Any]) -> None:
    rows.append([-1.0, 7, None])
    answer["output_ids"].append(7)
    meta["completion_tokens"] += 1


def drop_tokens(left: int) -> Fault:
    """Keeps the first `left` tokens, consistently."""

    def change(answer: dict[str, Any], meta: dict[str, Any], rows: list[Any]) -> None:
        del rows[left:], answer["output_ids"][left:]
        meta["completion_tokens"] = left

    return changed(change)
