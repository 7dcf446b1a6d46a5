"""Search services, retrieval and embedding servers that write nonsense or fail."""

import asyncio
import json

import pytest
from aiohttp import web

from orchestra_jax.io.http_json import JsonClient, ServerError
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.money.prices import Price, PriceList
from orchestra_jax.money.replay import Recorded, Replay
from orchestra_jax.tools.entries import recorded
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.tools.search.bm25 import Hit, Passage
from orchestra_jax.tools.search.embeddings import EndpointEmbedder
from orchestra_jax.tools.search.server import RemoteIndex
from orchestra_jax.tools.search.web import TavilySearch, WikipediaSearch
from orchestra_jax.types import InfrastructureError, ToolCall, ToolResult, ToolSpec
from tests.tools.http_stub import serving

PRICES = PriceList("p", "d", "s", {"web_search": Price(call=0.01), "web_extract": Price(call=0.002)})
QUERY, PAGE = {"query": "oslo"}, {"url": "Oslo"}
DEEP = b"[" * 50_000 + b"]" * 50_000


def says(body: bytes, status: int = 200, **headers: str):
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, status=status, content_type="application/json", headers=headers)

    return answer


def result(**fields) -> bytes:
    return json.dumps({"results": [{"title": "t", "url": "u", "content": "c"} | fields]}).encode()


@pytest.fixture
def tavily(monkeypatch):
    monkeypatch.setenv("TAVILY_API_KEY", "k")
    return lambda url, **options: TavilySearch(PRICES, url=url, retries=0, backoff_s=0.001, **options)


def wikipedia(url: str) -> WikipediaSearch:
    return WikipediaSearch(PRICES, url=url, retries=0, backoff_s=0.001)


async def test_a_cut_emoji_in_a_page_is_a_mark(tavily, tmp_path):
    replay = Replay(tmp_path / "calls.db", "replay_or_record")
    async with serving(says(result(content="cut \ud83d", title="\ude00"))) as url:
        tool = tavily(url, replay=replay)
        first, again = [await tool.search(QUERY, Budget()) for _ in range(2)]
        assert first.text == again.text == "[1] \ufffd\nu\ncut \ufffd"
        await tool.close()
    async with serving(says(json.dumps({"results": [{"raw_content": "cut \ud83d"}]}).encode())) as url:
        tool = tavily(url)
        assert (await tool.extract(PAGE, Budget())).text == "cut \ufffd"
        await tool.close()
    replay.close()


async def test_a_failure_whose_text_breaks_off_costs_nothing(tavily):
    async def broken(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=502, headers={"Content-Length": "5000"})
        await answer.prepare(request)
        await answer.write(b"<html>Bad")
        request.transport.close()
        return answer

    budget = Budget(Limits(usd=1.0))
    async with serving(broken) as url:
        tool = tavily(url)
        with pytest.raises(InfrastructureError, match="answered with status 502"):
            await tool.search(QUERY, budget)
        await tool.close()
    assert (budget.spent.calls, budget.reserved.calls) == (0, 0)


UNREADABLE = [DEEP, b'{"results": 1e999}', b'{"results": [1' + b"0" * 400 + b"]}", b"NaN", b'"text"', b"[]",
              b'{"results": "abc"}', b'{"results": [[]]}', result(content=["a", "list"]), result(title={"a": 1}),
              result(url=7), b'{"results": [{"raw_content": [1]}]}', b'{"error": 7}', b'{"error": {"code": []}}',
              b'{"query": {"pages": [{"index": 1, "title": 7}]}}',
              b'{"query": {"pages": [{"index": 1}, {"index": "a"}]}}',
              b'{"query": {"pages": [{"index": 1, "title": "a", "extract": ["b"]}]}}', b'{"query": []}',
              b'{"query": {"pages": {}}}']  # fmt: skip


@pytest.mark.parametrize("body", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_an_answer_that_cannot_be_read_is_infrastructure_and_charged(tavily, tmp_path, body):
    async with serving(says(body)) as url:
        for tool in (tavily(url), wikipedia(url)):
            for call, arguments in ((tool.search, QUERY), (tool.extract, PAGE)):
                budget = Budget(Limits(usd=1.0))
                said, charged = "", True
                try:
                    found = await call(arguments, budget)
                    # Sound for the other service or call: an empty or refused result.
                    assert found.is_error or found.text == "no results"
                except InfrastructureError as error:
                    said, charged = str(error), budget.spent.usd > 0
                assert len(said) < 400
                assert charged
                assert budget.reserved.calls == 0
            await tool.close()


@pytest.mark.parametrize("body", [DEEP, b'{"detail": {"error": "\\ud83d"}}', b'{"detail": ' + b"[" * 900, b"\xff" * 99])
async def test_refusals_are_one_sentence(tavily, body):
    for status in (400, 432):
        async with serving(says(body, status)) as url:
            tool = tavily(url)
            try:
                text = (await tool.search(QUERY, Budget())).text
            except InfrastructureError as error:
                text = str(error)
            assert len(text.encode()) < 1500
            await tool.close()


@pytest.mark.parametrize(
    "address", ["http://[", "http://[::1]:x/wiki/a", "https://en.wikipedia.org:99999/wiki/a", "//["]
)
async def test_an_address_that_is_none_is_an_observation(address):
    async with serving(says(b'{"query": {"pages": [{"title": "x", "missing": true}]}}')) as url:
        tool = wikipedia(url)
        assert (await tool.extract({"url": address}, Budget())).is_error
        await tool.close()


RETRIEVED = [
    DEEP, b"[]", b"{}", b'{"result": [1]}', b'{"result": [[{"document": {}}]]}', b'{"result": []}',
    b'{"result": [[], []]}', b'{"result": 1}', b'{"result": null}', b'{"result": [[{"document": [], "score": 1}]]}',
    b'{"result": [[{"document": {"text": "t"}, "score": NaN}]]}',
    b'{"result": [[{"document": {"text": "t"}, "score": []}]]}',
    b'{"result": [[{"document": {"text": "t", "title": {}}, "score": 1}]]}',
    b'{"result": [[{"document": {"text": ["t"]}, "score": 1}]]}',
    b'{"result": [[{"document": {"text": "t"}, "score": 1e999}]]}',
]  # fmt: skip


@pytest.mark.parametrize("body", RETRIEVED, ids=range(len(RETRIEVED)))
async def test_a_retrieval_server_that_lies_is_infrastructure(body):
    async with serving(says(body)) as url:
        client = RemoteIndex(url, retries=0)
        said = r"no list of documents|results for 1 queries|cannot be read"
        with pytest.raises(InfrastructureError, match=said) as caught:
            await client.search("q")
        assert len(str(caught.value)) < 600
        await client.close()


async def test_of_a_retrieval_server_that_gives_more_than_it_was_asked_the_best_are_taken():
    rows = [{"document": {"text": f"passage {n}"}, "score": -n} for n in range(5000)]
    async with serving(says(json.dumps({"result": [rows]}).encode())) as url:
        client = RemoteIndex(url)
        assert await client.answer("q", 2) == "passage 0\npassage 1"
        await client.close()


async def test_a_retrieved_text_is_made_valid():
    row = {"document": {"text": "cut \ud83d", "title": "\ud83d"}, "score": 1}
    async with serving(says(json.dumps({"result": [[row]]}).encode())) as url:
        client = RemoteIndex(url)
        assert await client.answer("q") == "\ufffd: cut \ufffd"
        await client.close()


# --- the client of all of them ---


async def search(url: str, **options) -> bool:
    client = RemoteIndex(url, **options)
    try:
        return await client.search("q", 7) == [Hit(Passage("", "t"), 1.0)]
    finally:
        await client.close()


async def embed(url: str, **options) -> bool:
    embedder = EndpointEmbedder(url, "m", **options)
    try:
        return (await embedder.embed(["a"])).tolist() == [[1.0]]
    finally:
        await embedder.close()


@pytest.mark.parametrize("ask", [search, embed])
@pytest.mark.parametrize("fault", ["500", "503", "429", "drop", "cut", "garbage", "slow"])
async def test_a_request_is_made_again_and_then_given_up(ask, fault: str):
    calls = []

    async def flaky(request: web.Request) -> web.StreamResponse:
        calls.append(await request.json())
        if len(calls) > 2:
            sound = {"result": [[{"document": {"text": "t"}, "score": 1}]], "data": [{"index": 0, "embedding": [2.0]}]}
            return web.json_response(sound)
        if fault == "drop":
            request.transport.close()
        if fault == "slow":
            await asyncio.sleep(5)
        if fault == "cut":
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b'{"result"')
            request.transport.close()
            return response
        status = int(fault) if fault.isdigit() else 200
        return web.Response(text="<html>", status=status, headers={"Retry-After": "0"})

    async with serving(flaky) as url:
        assert await ask(url, timeout_s=0.3, retries=2, backoff_s=0.01)
        assert calls == calls[:1] * 3
        calls.clear()
        with pytest.raises(InfrastructureError, match=f"The server {url}/"):
            await ask(url, timeout_s=0.3, retries=1, backoff_s=0.01)
        assert len(calls) == 2


# Against a socket that writes anything.
WIRE = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Encoding: gzip\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    b"HTTP/1.1 999999999999 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=\xff\xfe\r\nContent-Length: 2\r\n\r\n\xff\xff",
    b"HTTP/1.1 200 " + b"x" * 100_000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
    b"HTTP/1.1 200 OK\r\nSet-Cookie: \x00=\xff; expires=Fri, 31 Dec 99999\r\nContent-Length: 1\r\n\r\n[",
    b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 503 No\r\nRetry-After: Fri, 31 Dec 9999 23:59:59 -2359\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 500 No\r\nContent-Length: 20\r\n\r\n<html>\n\x1b[31m\xc2\x85\n\n..",
    b"\x00\x01\x02",
    b"",
]


@pytest.mark.parametrize("wire", WIRE, ids=range(len(WIRE)))
async def test_whatever_is_on_the_wire_is_a_server_error(wire):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(wire)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = JsonClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=60.0)
    with pytest.raises(ServerError) as caught:
        await client.post("/x", {"a": "\ud83d"})
    assert len(str(caught.value)) < 700
    assert str(caught.value).isprintable()
    await client.close()
    server.close()


async def test_an_answer_without_an_end_is_cut(monkeypatch):
    monkeypatch.setattr("orchestra_jax.io.http_json.MOST_BYTES", 1000)
    async with serving(says(b"[" + b"1," * 600 + b"1]")) as url:
        client = JsonClient(url)
        with pytest.raises(ServerError, match="more than 1000 bytes") as caught:
            await client.get("/")
        assert (caught.value.kind, caught.value.sent) == ("protocol", True)
        await client.close()


async def test_an_observation_of_any_tool_is_valid_text():
    async def handler(arguments, budget) -> ToolResult:
        return ToolResult("cut \ud83d", final="\ude00")

    spec = ToolSpec("t", "A tool.", {"type": "object", "properties": {}}, price_usd=0.0)
    found = await ToolExecutor([spec], {"t": handler}, Budget()).step(ToolCall("t", {}))
    assert (found.text, found.final) == ("cut \ufffd", "\ufffd")


@pytest.mark.parametrize("value", [None, 7, "text", [7], [{"title": "t"}], {"error": ["x"]}, {"a": 1}, ["x"]], ids=repr)
@pytest.mark.parametrize("is_error", [False, True])
async def test_a_foreign_record_is_infrastructure(tavily, tmp_path, value, is_error):
    replay = Replay(tmp_path / "calls.db", "replay_or_record")
    tool = tavily("http://127.0.0.1:9", replay=replay)

    async def foreign() -> Recorded:
        return Recorded(value, (), is_error)

    fields = {"provider": "tavily", "query": "oslo", "max_results": 5, "search_depth": "basic"}
    await replay.call("web_search", fields, foreign)
    fields = {"provider": "tavily", "urls": ["Oslo"], "extract_depth": "basic", "format": "text"}
    await replay.call("web_extract", fields, foreign)
    await replay.call("mine", {"arguments": {}}, foreign)

    async def never(arguments, budget) -> str:
        raise AssertionError

    for call, arguments in ((tool.search, QUERY), (tool.extract, PAGE), (recorded("mine", never, replay, {}), {})):
        said = ""
        try:
            said = (await call(arguments, Budget())).text  # one of them may have recorded just that
        except InfrastructureError as error:
            said = str(error)
        assert isinstance(said, str)
        assert 0 < len(said) < 300
    await tool.close()
    replay.close()
