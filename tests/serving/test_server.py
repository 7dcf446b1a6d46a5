"""The server as clients meet it: the OpenAI client, statuses and bodies, limits, keys, and clients that go away."""

import asyncio
import json
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import httpx
import openai

from orchestra_jax.serving.database import PICO, ServerDatabase, opened
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.serving.server import ChatServer, ServerLimits
from orchestra_jax.serving.wire import MOST_BYTES
from orchestra_jax.tools.base import tool
from tests.serving.made import CALLED, ask_dear, calling, python, qa_settings, rows, scripted
from tests.tools.openai_stub import StubOpenAI

USER = [{"role": "user", "content": "What is 7 * 8 + 3?"}]
LOOKUP = [{"type": "function", "function": {"name": "lookup", "description": "Looks up.", "parameters": {
    "type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}]  # fmt: skip
LOOKUP_WITH_QUESTION = [{"type": "function", "function": {"name": "lookup"}}]
LOCAL = "http://127.0.0.1"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    with scripted(tmp_path_factory.mktemp("served"), python, "name=tiny") as orchestrator:
        yield orchestrator


@asynccontextmanager
async def client(orchestrator: Orchestrator, **limits: Any) -> AsyncIterator[httpx.AsyncClient]:
    with opened(orchestrator.folder / "served.db") as database:
        app = ChatServer(orchestrator, database, ServerLimits(**limits)).app()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL) as found:
            yield found


async def posted(http: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await http.post("/v1/chat/completions", json={"model": "tiny", "messages": USER, **body})


def requests(orchestrator: Orchestrator) -> list[dict]:
    with opened(orchestrator.folder / "served.db") as database:
        return rows(database, "requests")


def calls(orchestrator: Orchestrator) -> list[dict]:
    with opened(orchestrator.folder / "served.db") as database:
        return rows(database, "calls")


async def test_the_openai_client_reads_answers_streams_and_models(served: Orchestrator):
    async with client(served) as http:
        api = openai.AsyncOpenAI(base_url=f"{LOCAL}/v1", api_key="none", http_client=http, max_retries=0)
        assert [model.id async for model in api.models.list()] == [
            "tiny", "tiny:best", "tiny:cheap", "tiny:fast", "tiny:local", "tiny:dearest",
        ]  # fmt: skip
        assert (await api.models.retrieve("tiny:cheap")).owned_by == "orchestra_jax"
        asked: dict[str, Any] = {"model": "tiny:cheap", "messages": USER}
        found = await api.chat.completions.create(**asked, extra_body={"orchestra": {"trace": True}})
        assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("59", "stop")
        told = found.model_extra["orchestra"]
        menu = served._opened.environment.pose(USER[0]["content"], None).tools
        (price,) = (spec.price_usd for spec in menu if spec.name == "python")
        assert [(call["tool"], call["result"], call["usd"]) for call in told["calls"]] == [("python", "59", price)]
        assert requests(served)[-1]["id"] == found.id
        stream = await api.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert {chunk.id for chunk in chunks} == {requests(served)[-1]["id"]}
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "59"
    thoughts = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
    assert thoughts.startswith("python(7 * 8 + 3) ")
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.model_extra["cost_usd"] * PICO == requests(served)[-1]["usd"]


async def test_the_dearest_model_alone_is_a_model_within_the_same_limits(served: Orchestrator, tmp_path: Path):
    ask = {"model": "tiny:dearest", "orchestra": {"trace": True}}
    async with client(served) as http:
        found = (await posted(http, **ask)).json()
        refused = (await posted(http, **ask | {"orchestra": {"max_usd": 0.001, "trace": True}})).json()
    menu = served._opened.environment.experts(served.posed(USER[0]["content"]))
    prices = {spec.name: spec.price_usd for spec in served.posed(USER[0]["content"]).tools}
    (call,) = found["orchestra"]["calls"]
    assert call["tool"] == menu[-1].name
    assert call["usd"] == found["usage"]["cost_usd"] == max(prices[expert.name] for expert in menu)
    assert found["choices"][0]["message"]["content"] == call["result"]
    assert (refused["orchestra"]["cost_usd"], refused["orchestra"]["calls"][0]["refused"]) == (0, True)
    assert requests(served)[-2]["policy"] == "the dearest model alone"
    # Where no menu has a model with a price there is none.
    with scripted(tmp_path, ask_dear, *qa_settings(tmp_path), "name=tiny") as orchestrator:
        async with client(orchestrator) as http:
            missing = await posted(http, model="tiny:dearest")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_clients_own_tool_is_called_by_the_client(tmp_path: Path):
    with scripted(tmp_path, calling("lookup"), "name=tiny") as orchestrator:
        async with client(orchestrator) as http:
            api = openai.AsyncOpenAI(base_url=f"{LOCAL}/v1", api_key="none", http_client=http, max_retries=0)
            asked: dict[str, Any] = {"model": "tiny", "messages": USER, "tools": LOOKUP_WITH_QUESTION}
            found = (await api.chat.completions.create(**asked)).choices[0]
            assert (found.finish_reason, found.message.content) == ("tool_calls", None)
            (call,) = found.message.tool_calls or ()
            assert (call.function.name, json.loads(call.function.arguments)) == (
                "lookup", {"question": USER[0]["content"]},
            )  # fmt: skip
            chunks = [chunk async for chunk in await api.chat.completions.create(**asked, stream=True)]
            deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or ()]
            assert [delta.function.name for delta in deltas if delta.function] == ["lookup"]
            assert chunks[-1].choices[0].finish_reason == "tool_calls"
            answered = {"role": "tool", "content": "12", "tool_call_id": call.id}
            again = {**asked, "messages": [*USER, found.message.model_dump(exclude_none=True), answered]}
            assert (await api.chat.completions.create(**again)).choices[0].finish_reason == "tool_calls"


async def test_parallel_calls_of_a_clients_tools_may_be_refused(tmp_path: Path, stub: StubOpenAI):
    call = '<tool_call>{"name": "lookup", "arguments": {"query": "%d"}}</tool_call>'
    stub.says(*[call % 1 + call % 2] * 3)
    settings = [*qa_settings(tmp_path), "pricing.name=paper", "name=tiny", f"output_dir={tmp_path}"]
    endpoint = "evaluation.endpoint.model=gpt-5-mini"
    orchestrator = await asyncio.to_thread(Orchestrator.load, stub.url, *settings, endpoint)
    async with client(orchestrator) as http:
        both, one = [
            (await posted(http, tools=LOOKUP, parallel_tool_calls=may)).json()["choices"][0] for may in (True, False)
        ]
        stream = (await posted(http, tools=LOOKUP, parallel_tool_calls=False, stream=True)).text
    await asyncio.to_thread(orchestrator.close)
    assert both["finish_reason"] == one["finish_reason"] == "tool_calls"
    asked = [[call["function"]["arguments"] for call in each["message"]["tool_calls"]] for each in (both, one)]
    assert asked == [['{"query": "1"}', '{"query": "2"}'], ['{"query": "1"}']]
    assert stream.count('"type": "function"') == 1


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"model": "gpt-4"}, 404, "model_not_found", "model"),
        ({"model": "tiny:zesty"}, 404, "model_not_found", "model"),
        ({"model": None}, 400, "missing_required_parameter", "model"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"messages": [*USER, {"role": "assistant", "content": "59"}]}, 400, "invalid_value", "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "unsupported_parameter", "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "invalid_value", "messages[0].tool_call_id"),
        ({"messages": [*USER, CALLED]}, 400, "invalid_value", "messages"),
        ({"messages": [*USER, CALLED, *USER]}, 400, "invalid_value", "messages[2]"),
        ({"messages": [*USER, {**CALLED, "tool_calls": [{"id": "c1"}]}]}, 400, "invalid_value",
         "messages[1].tool_calls[0]"),
        ({"messages": [{**USER[0], "audio": {"id": "x"}}]}, 400, "unsupported_parameter", "messages[0].audio"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "unsupported_parameter",
         "messages[0].content"),
        ({"messages": [{"role": "user", "content": "Who is the pope?"}]}, 400, "invalid_value", "messages"),
        ({"messages": [{"role": "system", "content": "Be zesty"}, *USER]}, 200, None, None),  # a script reads all
        ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
        ({"max_tokens": True}, 400, "invalid_value", "max_tokens"),
        ({"max_completion_tokens": 5.5}, 400, "invalid_value", "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": None}, 200, None, None),  # a script writes no tokens
        ({"tools": [{"type": "function"}]}, 400, "unsupported_parameter", "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "python"}}]}, 400, "invalid_value", "messages"),
        ({"tools": LOOKUP, "tool_choice": "required"}, 400, "unsupported_parameter", "tool_choice"),
        ({"tools": LOOKUP, "tool_choice": "none", "parallel_tool_calls": True}, 200, None, None),
        ({"n": 2}, 400, "unsupported_parameter", "n"),
        ({"max_usd": 2}, 400, "unsupported_parameter", "max_usd"),
        ({"reasoning_effort": "low"}, 400, "unsupported_parameter", "reasoning_effort"),
        ({"presence_penalty": 0.0, "frequency_penalty": 0, "store": False, "logprobs": False, "top_logprobs": 0,
          "response_format": {"type": "text"}, "stop": None, "functions": [], "metadata": {"a": "b"},
          "parallel_tool_calls": True, "tool_choice": "auto", "reasoning_effort": None}, 200, None, None),
        ({"n": True}, 400, "unsupported_parameter", "n"),
        ({"seed": -1, "parallel_tool_calls": False}, 200, None, None),
        ({"seed": 1.5}, 400, "invalid_value", "seed"),
        ({"seed": True}, 400, "invalid_value", "seed"),
        ({"parallel_tool_calls": "no"}, 400, "invalid_value", "parallel_tool_calls"),
        ({"temperature": "hot"}, 400, "invalid_value", "temperature"),
        ({"temperature": 3}, 400, "invalid_value", "temperature"),
        ({"stream_options": {"include_usage": True}}, 400, "invalid_value", "stream_options"),
        ({"orchestra": {"wishes": "cheap"}}, 400, "unsupported_parameter", "orchestra.wishes"),
        ({"orchestra": {"max_usd": -1}}, 400, "invalid_value", "orchestra.max_usd"),
        ({"orchestra": {"max_usd": 2}}, 400, "invalid_value", "orchestra.max_usd"),
        ({"model": "tiny:cheap", "orchestra": {"wish": "fast"}}, 400, None, "orchestra.wish"),
        ({"n": 1, "user": "me", "top_p": 1, "seed": None, "tool_choice": "auto", "tools": []}, 200, None, None),
        ({"orchestra": {"max_seconds": 0}}, 200, None, None),
    ],
)  # fmt: skip
async def test_a_request_is_answered_or_refused_by_the_name_of_its_field(
    served: Orchestrator, body: dict, status: int, code: str | None, param: str | None
):
    async with client(served, max_usd=1.0) as http:
        for stream in ({}, {"stream": True}):
            found = await posted(http, **body, **stream)
            if stream and "stream_options" in body:
                continue
            assert found.status_code == status, found.text
            if status != 200:
                error = found.json()["error"]
                assert (error["code"], error["param"]) == (code, param)
                assert error["message"].endswith(".")
    if body.get("orchestra") == {"max_seconds": 0}:
        assert "no answer within 0 s" in found.text


@pytest.mark.parametrize(
    ("most", "sizes", "usd", "finish", "answer"),
    [
        ({"max_tokens": 5}, [5], 0, "length", ""),  # the call is cut, and not made
        ({"max_tokens": 6}, [6], 0.4, "length", ""),
        ({"max_completion_tokens": 8, "max_tokens": 9}, [8, 2], 0.4, "length", ""),
        ({"max_completion_tokens": 9}, [9, 3], 0.4, "stop", "It is so."),
    ],
)
async def test_max_tokens_bounds_what_the_policy_writes_in_all_its_turns(
    tmp_path: Path, most: dict, sizes: list[int], usd: float, finish: str, answer: str, stub: StubOpenAI
):
    """The policy calls with 6 tokens, and answers with 3."""
    stub.says('Hm. <tool_call>{"name": "dear", "arguments": {"question": "Why?"}}</tool_call>', "It is so.")
    settings = [*qa_settings(tmp_path), "pricing.name=paper", "name=tiny", f"output_dir={tmp_path}"]
    endpoint = "evaluation.endpoint.model=gpt-5-mini"
    orchestrator = await asyncio.to_thread(Orchestrator.load, stub.url, *settings, endpoint)
    async with client(orchestrator) as http:
        found = (await posted(http, **most)).json()
        paid = [(row["name"], row["usd"] is not None) for row in calls(orchestrator)]
    await asyncio.to_thread(orchestrator.close)
    assert [body["max_completion_tokens"] for body in stub.bodies] == sizes
    (choice,) = found["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == (finish, answer)
    assert found["usage"]["completion_tokens"] == sum(bill.completion for bill in stub.bills)
    assert found["usage"]["cost_usd"] == pytest.approx(usd, abs=0.01)
    assert found["orchestra"]["limit"] == ("max_tokens" if finish == "length" else "")
    assert ("max_tokens=" in found["orchestra"]["reason"]) == (finish == "length")
    assert ("dear", True) in paid if usd else len(paid) == 1


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json; charset=utf-8", 400),
        (b'{"model": NaN}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b" " * (MOST_BYTES + 1), "application/json", 413),
        (json.dumps({"model": "tiny", "messages": USER}).encode(), "text/plain", 415),
    ],
    ids=["cut", "list", "nan", "deep", "bytes", "large", "form"],
)
async def test_a_body_that_is_none_has_its_status(served: Orchestrator, content: bytes, kind: str, status: int):
    async def parts() -> AsyncIterator[bytes]:
        yield content

    async with client(served) as http:
        for sent in (content, parts()):
            found = await http.post("/v1/chat/completions", content=sent, headers={"content-type": kind})
            assert found.status_code == status
            assert found.json()["error"]["type"] == "invalid_request_error"


async def test_keys_and_names_of_the_server_are_asked_for(served: Orchestrator):
    async with client(served, key="secret") as http:
        for path in ("/v1/models", "/metrics", "/v1/models/tiny"):
            for key in ({}, {"authorization": "Bearer no"}, {"authorization": "secret"}):
                found = await http.get(path, headers=key)
                assert (found.status_code, found.headers["www-authenticate"]) == (401, "Bearer")
                assert found.json()["error"]["code"] == "invalid_api_key"
            assert (await http.get(path, headers={"authorization": "Bearer secret"})).status_code == 200
        assert (await http.get("/health")).json() == {"status": "ok"}
        wrong = openai.AsyncOpenAI(base_url=f"{LOCAL}/v1", api_key="wrong", http_client=http)
        with pytest.raises(openai.AuthenticationError, match="The key is missing or wrong"):
            await wrong.chat.completions.create(model="tiny", messages=USER)  # type: ignore[arg-type]
    async with client(served) as http:
        assert (await http.get("/v1/models", headers={"host": "evil.example"})).status_code == 421
        assert (await http.get("/nothing")).json()["error"]["message"].startswith("There is nothing at /nothing: ")
        assert (await http.get("/v1/chat/completions")).status_code == 405


BEGUN, GO_ON = threading.Semaphore(0), threading.Event()


@tool
async def slow(question: str) -> str:
    """Answers when it is told to."""
    BEGUN.release()
    await asyncio.to_thread(GO_ON.wait, 60)
    return "done"


async def test_a_client_that_goes_away_ends_its_request_which_pays_its_bill(tmp_path: Path):
    GO_ON.clear()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Why?"}]}
    settings = ["name=tiny", *qa_settings(tmp_path, f"dear,{__name__}:slow")]
    with scripted(tmp_path, calling("dear", "slow"), *settings) as orchestrator:
        database = ServerDatabase(orchestrator.folder / "served.db")
        server = ChatServer(orchestrator, database, ServerLimits())
        app = server.app()
        for stream in (False, True):
            gone, sent = asyncio.Event(), list[Any]()
            parts = [{"type": "http.request", "body": json.dumps({**body, "stream": stream}).encode()}]

            async def receive(parts: list = parts, gone: asyncio.Event = gone) -> Any:
                if parts:
                    return parts.pop()
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any, sent: list = sent) -> None:
                sent.append(message)

            scope = {
                "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "POST",
                "path": "/v1/chat/completions", "query_string": b"", "server": ("127.0.0.1", 80), "scheme": "http",
                "headers": [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")],
            }  # fmt: skip
            serving = asyncio.create_task(app(scope, receive, send))
            await asyncio.to_thread(BEGUN.acquire, timeout=60)
            assert server.under_way == 1
            gone.set()
            await asyncio.wait([serving], timeout=60)
            assert serving.done()
            assert server.under_way == 0
        GO_ON.set()
    asked, called = rows(database, "requests"), rows(database, "calls")
    database.close()
    assert [(row["reason"], row["usd"]) for row in asked] == [("cancelled", 0.4 * PICO)] * 2
    assert [(row["name"], row["usd"]) for row in called] == [("dear", 0.4 * PICO)] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_stops_says_so_to_whoever_waits(tmp_path: Path, stream: bool):
    GO_ON.clear()
    settings = ["name=tiny", *qa_settings(tmp_path, f"{__name__}:slow")]
    with scripted(tmp_path, calling("slow"), *settings) as orchestrator, opened(tmp_path / "served.db") as database:
        server = ChatServer(orchestrator, database, ServerLimits())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app()), base_url=LOCAL) as http:
            asking = asyncio.create_task(posted(http, stream=stream))
            await asyncio.to_thread(BEGUN.acquire, timeout=60)
            server.stopping.set()
            found = await asking
        GO_ON.set()
    said = found.text.split("\n\n")[-3].removeprefix("data: ") if stream else found.text
    assert json.loads(said)["error"]["code"] == "stopping"
    assert (found.status_code, found.headers.get("retry-after")) == ((200, None) if stream else (503, "5"))
    assert server.under_way == 0


async def test_a_client_is_not_told_where_the_database_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    settings = ["name=tiny", *qa_settings(tmp_path)]
    with scripted(tmp_path, ask_dear, *settings) as orchestrator:
        async with client(orchestrator) as http:
            assert (await posted(http)).status_code == 200  # the keys are read
            sqlite3.connect(orchestrator.folder / "served.db").execute("DROP TABLE calls")
            lost = await posted(http)
    assert (lost.status_code, lost.json()["error"]["code"], lost.headers["retry-after"]) == (503, "disk", "30")
    assert lost.json()["error"]["message"] == "The record of requests cannot be written."
    assert str(orchestrator.folder) in capfd.readouterr().err


async def test_an_empty_budget_a_dead_tool_and_too_many_requests_have_their_statuses(tmp_path: Path):
    why = [{"role": "user", "content": "Why?"}]
    with scripted(tmp_path, ask_dear, "name=tiny", *qa_settings(tmp_path), "budget.run_usd=0.5") as orchestrator:
        async with client(orchestrator) as http:
            refused = await posted(http, messages=why, orchestra={"max_usd": 0.3})
            assert (refused.status_code, refused.json()["usage"]["cost_usd"]) == (200, 0)
            assert (await posted(http, messages=why)).json()["usage"]["cost_usd"] == 0.4
            for stream in (False, True):
                empty = await posted(http, messages=why, stream=stream)
                if stream:  # the policy had begun to call
                    error = json.loads(empty.text.split("\n\n")[-3].removeprefix("data: "))["error"]
                else:
                    assert empty.status_code == 402
                    error = empty.json()["error"]
                assert (error["type"], error["code"]) == ("insufficient_quota", "budget_exceeded")
    twice = ["name=tiny", *qa_settings(tmp_path), "budget.run_usd=0.5"]
    with scripted(tmp_path / "twice", calling("dear", "dear"), *twice) as orchestrator:
        async with client(orchestrator) as http:
            assert (await posted(http, messages=why)).status_code == 402  # one of its calls was paid
            figures = (await http.get("/metrics")).text
    assert re.search(r"^orchestra_dollars_total\{.*\} 0\.4$", figures, re.M)
    more = ["name=tiny", *qa_settings(tmp_path, f"broken,{__name__}:slow"), "rollout.limits.retries=0"]
    with scripted(tmp_path / "more", calling("broken"), *more) as orchestrator:
        async with client(orchestrator) as http:
            dead = await posted(http, messages=why)
            assert (dead.status_code, dead.headers["retry-after"]) == (503, "5")
            assert "Its server is down" in dead.json()["error"]["message"]
    GO_ON.clear()
    with scripted(tmp_path / "more", calling("slow"), *more) as orchestrator:
        async with client(orchestrator, under_way=2) as http:
            two = [asyncio.create_task(posted(http, messages=why)) for _ in range(2)]
            for _ in two:
                await asyncio.to_thread(BEGUN.acquire, timeout=60)
            third = await posted(http, messages=why)
            assert (third.status_code, third.headers["retry-after"]) == (503, "1")
            GO_ON.set()
            assert [(await one).status_code for one in two] == [200, 200]
            figures = (await http.get("/metrics")).text
    assert 'orchestra_requests_total{status="200"} 2.0' in figures
    assert 'orchestra_requests_total{status="503"} 1.0' in figures
    assert 'orchestra_calls_total{tool="slow"} 2.0' in figures
    assert "orchestra_under_way 0.0" in figures


async def test_a_bug_is_a_500_that_tells_nothing(served: Orchestrator, monkeypatch: pytest.MonkeyPatch):
    async def buggy(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(served, "aask", buggy)
    async with client(served) as http:
        found = await posted(http)
    assert (found.status_code, found.json()["error"]["code"], "secret" in found.text) == (500, "bug", False)
