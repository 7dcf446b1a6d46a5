"""Web search over real HTTP against a server that speaks the documented formats of Tavily and MediaWiki."""

import json
from collections import deque
from typing import Any

import pytest
from aiohttp import web

from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits
from orchestra_jax.money.paid import MissingKey
from orchestra_jax.money.prices import MissingPrice, Price, PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools import schema
from orchestra_jax.tools.search.web import EXTRACT_TOOL, NO_RESULTS, SEARCH_TOOL, TavilySearch, WikipediaSearch
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import InfrastructureError
from tests.tools.http_stub import serving

PRICES = PriceList("p", "d", "s", {"web_search": Price(call=0.01), "web_extract": Price(call=0.002)})
KEY = "tvly-secret"
QUERY, PAGE = {"query": "capital of Norway"}, {"url": "https://example.org/oslo"}


class StubWeb:
    """Answers `pages` of both services; `faults` come first: a response, None for none, or an exception to cut."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.faults: deque[Any] = deque()
        self.billed = 0.0
        self.title = "New Oslo"  # of the first page that a search of the wiki finds

    async def __aenter__(self) -> "StubWeb":
        self._server = serving(self._answer)
        self.url = await self._server.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.__aexit__(None, None, None)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self._seen(request)) is not None:
            return fault
        answers = {"/search": self._tavily_search, "/extract": self._tavily_extract, "/w/api.php": self._wiki}
        return web.json_response(answers[request.path](self.requests[-1][1]))

    async def _seen(self, request: web.Request) -> web.StreamResponse | None:
        fields = await request.json() if request.method == "POST" else dict(request.query)
        self.requests.append((request.path, fields, dict(request.headers)))
        fault = self.faults.popleft() if self.faults else None
        if fault is ConnectionResetError:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if request.method == "POST" and request.headers.get("Authorization") != f"Bearer {KEY}":
            text = f"Unauthorized: invalid API key {request.headers.get('Authorization')}."
            return web.json_response({"detail": {"error": text}}, status=401)
        return fault

    def _tavily_search(self, fields: dict[str, Any]) -> dict[str, Any]:
        self.billed += 0.01
        results = [
            {"title": "Oslo", "url": "https://o.no", "content": "Oslo is the capital. " * 60, "score": 0.9,
             "raw_content": None},
            {"title": "Norway", "url": "https://n.no", "content": "A country.", "score": 0.8, "raw_content": None},
        ]  # fmt: skip
        return {
            "query": fields["query"], "follow_up_questions": None, "answer": None, "images": [],
            "results": [] if fields["query"] == "nothing" else results[: fields["max_results"]],
            "response_time": 1.67, "request_id": "123e4567",
        }  # fmt: skip

    def _tavily_extract(self, fields: dict[str, Any]) -> dict[str, Any]:
        (url,) = fields["urls"]
        failed = "missing" in url
        self.billed += 0.0 if failed else 0.002
        return {
            "results": [] if failed else [{"url": url, "raw_content": "All about Oslo. " * 2, "images": []}],
            "failed_results": [{"url": url, "error": "Failed to fetch url"}] if failed else [],
            "response_time": 0.02, "request_id": "123e4567",
        }  # fmt: skip

    def _wiki(self, fields: dict[str, Any]) -> dict[str, Any]:
        if fields.get("gsrsearch") == "nothing":
            return {"batchcomplete": True}
        if "titles" in fields:
            title = fields["titles"]
            page = {"ns": 0, "title": title, "missing": True}
            if title == "New Oslo":
                page = {"pageid": 1, "ns": 0, "title": title, "extract": "New Oslo is a town."}
            return {"batchcomplete": True, "query": {"pages": [page]}}
        pages = [
            {"pageid": 2, "ns": 0, "title": "Norway", "index": 2, "extract": "Norway is a country."},
            {"pageid": 1, "ns": 0, "title": self.title, "index": 1, "extract": "New Oslo is a town."},
        ]
        more = {"gsroffset": 2, "continue": "gsroffset||"}
        return {"batchcomplete": True, "continue": more, "query": {"pages": pages}}


@pytest.fixture
async def stub(monkeypatch):
    monkeypatch.setenv("TAVILY_API_KEY", KEY)
    async with StubWeb() as server:
        yield server


@pytest.fixture
async def tavily(stub):
    tool = TavilySearch(PRICES, url=stub.url, backoff_s=0.001)
    yield tool
    await tool.close()


@pytest.fixture
async def wikipedia(stub):
    tool = WikipediaSearch(PRICES, contact="me@example.org", backoff_s=0.001)
    tool._url = f"{stub.url}/w/api.php"  # the English Wikipedia, as the stub plays it
    yield tool
    await tool.close()


def failure(status: int, said: str, **headers: str) -> web.Response:
    return web.json_response({"detail": {"error": said}}, status=status, headers=headers)


def test_the_tools_can_be_offered():
    for spec in (SEARCH_TOOL, EXTRACT_TOOL):
        check_spec(spec)
    assert schema.validate_arguments(SEARCH_TOOL, {"query": ""}) is not None


async def test_tavily_search(stub, tavily):
    budget = Budget()
    result = await tavily.search(QUERY, budget)
    assert result.text == (
        f"[1] Oslo\nhttps://o.no\n{('Oslo is the capital. ' * 60)[:1000]}...\n\n[2] Norway\nhttps://n.no\nA country."
    )
    (row,) = result.usage
    assert (row.name, row.cost_usd, row.price_list) == ("web_search", 0.01, "p")
    assert row.seconds > 0
    assert budget.spent.usd == stub.billed == 0.01
    path, fields, headers = stub.requests[0]
    assert (path, headers["Authorization"]) == ("/search", f"Bearer {KEY}")
    assert fields == {"query": "capital of Norway", "max_results": 5, "search_depth": "basic"}
    assert (await tavily.search({"query": "nothing"}, budget)).text == NO_RESULTS


async def test_tavily_extract_bills_what_it_could_read(stub, tavily):
    budget = Budget()
    result = await tavily.extract(PAGE, budget)
    assert result.text == "All about Oslo. All about Oslo."
    assert [row.cost_usd for row in result.usage] == [0.002]
    result = await tavily.extract({"url": "https://missing.org"}, budget)
    assert (result.text, result.is_error) == ("There is no text to be had from https://missing.org.", True)
    assert [row.cost_usd for row in result.usage] == [0.0]
    assert budget.spent.usd == stub.billed


async def test_tavilys_word_about_the_arguments_is_an_observation(stub, tavily):
    stub.faults.append(failure(400, "Query is too long. Max query length is 400 characters."))
    budget = Budget()
    result = await tavily.search(QUERY, budget)
    assert result.is_error
    assert result.text == "Query is too long. Max query length is 400 characters"
    assert budget.spent.usd == 0.0


@pytest.mark.parametrize(
    ("fault", "retried", "charged"),
    [
        (failure(429, "slow down", **{"Retry-After": "0"}), True, 0.01),
        (failure(500, "oops"), True, 0.01),
        (ConnectionResetError, True, 0.02),  # may have been billed
        (web.Response(text='{"results": [', content_type="application/json"), True, 0.02),
        (web.json_response({"no": "results"}), True, 0.02),
        (failure(432, "plan limit"), False, 0.0),
        (failure(403, "forbidden"), False, 0.0),
    ],
)
async def test_failures(stub, tavily, fault, retried, charged):
    stub.faults.append(fault)
    budget = Budget()
    if retried:
        assert (await tavily.search(QUERY, budget)).text.startswith("[1] Oslo")
    else:
        with pytest.raises(InfrastructureError, match=r"^tavily answered with status 4\d\d: .*\.$"):
            await tavily.search(QUERY, budget)
    assert budget.spent.usd == pytest.approx(charged, rel=1e-15)
    assert budget.spent.usd >= stub.billed
    assert len(stub.requests) == 1 + retried


async def test_a_wrong_or_missing_key(stub, monkeypatch):
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-other")
    tool = TavilySearch(PRICES, url=stub.url)
    with pytest.raises(InfrastructureError, match=r"status 401: .*invalid API key Bearer \*\*\*; check its key\.$"):
        await tool.search(QUERY, Budget())
    monkeypatch.delenv("TAVILY_API_KEY")
    with pytest.raises(MissingKey, match=r"^Tavily needs a key; set the environment variable TAVILY_API_KEY,"):
        await tool.search(QUERY, Budget())
    await tool.close()


async def test_a_budget_stops_a_search(stub, tavily):
    budget = Budget(Limits(usd=0.015))
    await tavily.search(QUERY, budget)
    with pytest.raises(BudgetExceeded):
        await tavily.search({"query": "another"}, budget)
    await tavily.extract(PAGE, budget)
    assert budget.spent.usd == pytest.approx(0.012)
    assert len(stub.requests) == 2


async def test_searches_are_cached(stub, tmp_path, monkeypatch):
    replay = Replay(tmp_path / "calls.db", "replay_or_record")
    tools = [
        TavilySearch(PRICES, url=stub.url, replay=replay),
        WikipediaSearch(PRICES, url=f"{stub.url}/w/api.php", replay=replay),
    ]
    first = [
        await handle(arguments, Budget())
        for tool in tools
        for handle, arguments in ((tool.search, QUERY), (tool.extract, {"url": "New Oslo"}))
    ]
    sent = len(stub.requests)
    assert sent == 4  # the two services do not share records
    monkeypatch.delenv("TAVILY_API_KEY")
    budget = Budget(Limits(calls=0))
    again = [
        await handle(arguments, budget)
        for tool in tools
        for handle, arguments in ((tool.search, QUERY), (tool.extract, {"url": "New Oslo"}))
    ]
    assert again == first
    assert len(stub.requests) == sent
    for tool in tools:
        await tool.close()
    replay.close()
    assert KEY.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


async def test_wikipedia_search(stub, wikipedia):
    result = await wikipedia.search(QUERY, Budget())
    assert result.text == (
        "[1] New Oslo\nhttps://en.wikipedia.org/wiki/New_Oslo\nNew Oslo is a town.\n\n"
        "[2] Norway\nhttps://en.wikipedia.org/wiki/Norway\nNorway is a country."
    )
    assert [row.cost_usd for row in result.usage] == [0.01]
    _, fields, headers = stub.requests[0]
    assert (fields["generator"], fields["gsrsearch"], fields["gsrlimit"]) == ("search", "capital of Norway", "5")
    assert headers["User-Agent"].startswith("orchestra-jax/")
    assert "me@example.org" in headers["User-Agent"]
    assert "Authorization" not in headers
    assert (await wikipedia.search({"query": "nothing"}, Budget())).text == NO_RESULTS


async def test_another_wiki_has_addresses_and_records_of_its_own(stub, tmp_path):
    replay = Replay(tmp_path / "calls.db", "replay_or_record")
    english = WikipediaSearch(PRICES, replay=replay)
    english._url = f"{stub.url}/w/api.php"
    other = WikipediaSearch(PRICES, url=f"{stub.url}/w/api.php", replay=replay)
    for tool, site in ((english, "https://en.wikipedia.org"), (other, stub.url)):
        result = await tool.search(QUERY, Budget())
        assert f"{site}/wiki/New_Oslo" in result.text
        assert (await tool.extract({"url": f"{site}/wiki/New_Oslo"}, Budget())).text == "New Oslo is a town."
    assert len(stub.requests) == 4
    refused = await other.extract({"url": "https://en.wikipedia.org/wiki/New_Oslo"}, Budget())
    assert refused.text == f"Only pages of {stub.url} can be read, not https://en.wikipedia.org/wiki/New_Oslo."
    for tool in (english, other):
        await tool.close()
    replay.close()


@pytest.mark.parametrize(
    "url", ["https://en.wikipedia.org/wiki/New_Oslo", "New Oslo", "https://en.wikipedia.org/wiki/New%20Oslo"]
)
async def test_wikipedia_extract(stub, wikipedia, url):
    assert (await wikipedia.extract({"url": url}, Budget())).text == "New Oslo is a town."
    assert stub.requests[0][1]["titles"] == "New Oslo"


async def test_an_address_that_was_found_leads_to_its_page(stub, wikipedia):
    titles = {"Who at 100%? (film)": "Who_at_100%25%3F_(film)", "50%25 off?": "50%2525_off%3F", "Zürich": "Zürich"}
    for title, place in titles.items():
        stub.title = title
        _, address, *_ = (await wikipedia.search(QUERY, Budget())).text.splitlines()
        assert address == f"https://en.wikipedia.org/wiki/{place}"
        await wikipedia.extract({"url": address}, Budget())
        assert stub.requests[-1][1]["titles"] == title


async def test_pages_that_wikipedia_has_not(stub, wikipedia):
    assert (await wikipedia.extract({"url": "Atlantis"}, Budget())).is_error
    sent = len(stub.requests)
    result = await wikipedia.extract({"url": "http://169.254.169.254/wiki/x"}, Budget())
    assert result.is_error
    assert result.text == "Only pages of https://en.wikipedia.org can be read, not http://169.254.169.254/wiki/x."
    assert len(stub.requests) == sent


@pytest.mark.parametrize("answer", [{}, {"query": {"interwiki": [{"title": "de:Oslo", "iw": "de"}]}}])
async def test_a_title_that_can_have_no_page_is_the_policys_mistake(stub, wikipedia, answer):
    stub.faults.append(web.json_response({"batchcomplete": True, **answer}))
    budget = Budget()
    result = await wikipedia.extract({"url": "https://en.wikipedia.org/wiki/de:Oslo"}, budget)
    assert result.is_error
    assert result.text == "There is no text to be had from https://en.wikipedia.org/wiki/de:Oslo."
    assert (len(stub.requests), budget.spent.usd) == (1, 0.0)


async def test_errors_of_mediawiki(stub, wikipedia):
    stub.faults.append(
        web.json_response({"error": {"code": "ratelimited", "info": "Too fast."}}, headers={"Retry-After": "0"})
    )
    assert (await wikipedia.search(QUERY, Budget())).text.startswith("[1] New Oslo")
    assert len(stub.requests) == 2
    stub.faults.append(web.json_response({"error": {"code": "badquery", "info": "That is no query."}}))
    result = await wikipedia.search(QUERY, Budget())
    assert (result.text, result.is_error) == ("That is no query", True)


async def test_a_server_that_is_not_there():
    tool = WikipediaSearch(PRICES, url="http://127.0.0.1:9/w/api.php", retries=1, backoff_s=0.001)
    budget = Budget()
    with pytest.raises(InfrastructureError, match=r"api\.php cannot be reached"):
        await tool.search(QUERY, budget)
    assert json.dumps(budget.get_state()) == "{}"
    await tool.close()


def test_tools_that_cannot_be_made():
    with pytest.raises(MissingPrice):
        TavilySearch(PriceList("p", "d", "s", {"web_search": Price()}))
    with pytest.raises(ValueError, match="is no URL"):
        TavilySearch(PRICES, url="api.tavily.com")
