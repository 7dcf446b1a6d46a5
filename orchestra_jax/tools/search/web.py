"""Web search: Tavily, which needs a key, and Wikipedia's own search, which needs none.

Both offer the same two tools: `search` of a query and `extract` of a page's text. Calls are priced per call by the
price list, cached and replayed like every paid call (money/paid.py). Wikipedia is the key-less choice because its API
is an official one that has answered in the same format for many years; scrapers of search pages break every month.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

from orchestra_jax import __version__
from orchestra_jax.config.choices import WebProvider
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.config.tools import WebConfig
from orchestra_jax.io.fields import text_of
from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.http_json import JsonClient, ServerError, require_aiohttp, retry_after
from orchestra_jax.io.untrusted import Unreadable, valid_text
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.limits import Limiter
from orchestra_jax.money.paid import CLOSE_S, GRACE_S, Lost, Outcome, PaidCalls, Refused, read_key
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Recorded, Replay
from orchestra_jax.tools.base import Tool, ToolContext
from orchestra_jax.tools.schema import one_text
from orchestra_jax.tools.search.bm25 import NO_RESULTS
from orchestra_jax.types import SEARCH, InfrastructureError, ToolResult, ToolSpec, Usage

SEARCH_TOOL = ToolSpec(
    name="web_search",
    description="Searches the web and returns titles, addresses and the passages that fit the query best.",
    parameters=one_text("query", "Keywords or a short question.", minLength=1),
    traits=(SEARCH,),
)
EXTRACT_TOOL = ToolSpec(
    name="web_extract",
    description="Returns the text of one web page, such as one that a search found.",
    parameters=one_text("url", "Address of the page.", minLength=1),
)
TAVILY_URL = "https://api.tavily.com"
_RETRIED = {408, 429}  # and every 5xx
_HINTS = dict.fromkeys((401, 403), "; check its key") | dict.fromkeys((432, 433), "; its credits are used up")  # Tavily
_SHOWN = 300  # characters of a service's own error text
_AT_ONCE = 8  # requests
_RESULTS = 5  # pages of a search
_RESULT_CHARS, _PAGE_CHARS = 1000, 8000  # that the policy sees of each result, and of an extracted page
_SITE = "https://en.wikipedia.org"
# Of a request for pages as plain text.
_EXTRACTS = {"action": "query", "format": "json", "formatversion": "2", "prop": "extracts", "explaintext": "1"}
_WIKI_RETRIED = {"maxlag", "ratelimited", "readonly"}

# From the answer's JSON to what is recorded; raises Unreadable, LookupError or TypeError on nonsense.
Read = Callable[[Any], Any]


class WebClient(ABC):
    """One provider's two tools, HTTP and money.

    Args:
        replay: the record; None: calls are neither recorded nor replayed.
        timeout_s, retries, backoff_s: see `PaidCalls`.

    Raises:
        MissingPrice: no price.
        ValueError: no http(s) URL.
    """

    provider: str
    method: str

    def __init__(
        self,
        prices: PriceList,
        url: str,
        *,
        replay: Replay | None = None,
        timeout_s: float = 30.0,
        retries: int = 3,
        backoff_s: float = 0.5,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"The address {url!r} of {self.provider} is no URL; write it like {TAVILY_URL}.")
        for tool in (SEARCH_TOOL, EXTRACT_TOOL):
            prices.cost(tool.name)
        self._prices, self._url, self._timeout_s = prices, url.rstrip("/"), timeout_s
        self._calls = PaidCalls(
            Limiter(_AT_ONCE),
            replay=replay,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            prepare=self.check,
        )
        self._client: JsonClient | None = None

    @abstractmethod
    async def search(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        """Search for {"query"}."""

    @abstractmethod
    async def extract(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        """Return the text of the page {"url"}."""

    @abstractmethod
    def _headers(self) -> dict[str, str]:
        """Return the headers of every request."""

    def check(self) -> None:
        """Check that calls can be made: raise ImportError without aiohttp, MissingKey without a key."""
        require_aiohttp()
        self._headers()

    async def close(self, patience_s: float = CLOSE_S) -> None:
        """See `PaidCalls.close`."""
        await self._calls.close(patience_s)
        if self._client is not None:
            await self._client.close()

    async def _call(
        self, name: str, request: Mapping[str, Any], path: str, fields: Mapping[str, Any], read: Read, budget: Budget
    ) -> Recorded:
        """Return what `read` makes of the answer to `fields`; `request` identifies the call."""
        worst = self._prices.priced(Usage(name, seconds=self._timeout_s + GRACE_S))

        async def send() -> Outcome:
            return await self._send(name, path, fields, read)

        return await self._calls.call(name, {"provider": self.provider, **request}, worst, send, budget=budget)

    async def _send(self, name: str, path: str, fields: Mapping[str, Any], read: Read) -> Outcome:
        if self._client is None:
            self._client = JsonClient(self._url, headers=self._headers(), timeout_s=self._timeout_s + GRACE_S)
        client, start = self._client, time.perf_counter()
        body = {"data": json.dumps(dict(fields)).encode()} if self.method == "POST" else {"query": fields}
        try:
            response = await client.request(self.method, path, **body)
        except ServerError as error:
            return Lost(str(error)) if error.sent else Refused(str(error), retry=True)
        row = self._prices.priced(Usage(name, seconds=time.perf_counter() - start))
        said = client.shown(_reason(response.content)).rstrip(".")
        if response.status == 400:  # the arguments are the policy's, and so is the error
            return Recorded({"error": said}, (replace(row, cost_usd=0.0),), is_error=True)
        if response.status != 200:
            return self._refused(response.status, said, response.headers)
        try:
            answer = read_json(response.content)
            if isinstance(answer, dict) and "error" in answer:
                return self._error(answer["error"], row, response.headers)
            value = read(answer)
        except Unreadable as problem:
            return Lost(f"The answer of {self.provider} cannot be read: {problem}.")
        except (LookupError, TypeError, AttributeError):
            return Lost(f"The answer of {self.provider} cannot be read: it is not of the documented form.")
        return Recorded(value, (row if value is not None else replace(row, cost_usd=0.0),))

    def _refused(self, status: int, said: str, headers: Mapping[str, str]) -> Refused:
        retry = status in _RETRIED or status >= 500
        hint = _HINTS.get(status, "")
        reason = f"{self.provider} answered with status {status}: {said}{hint}."
        return Refused(reason, retry, retry_after(headers) if retry else None)

    def _error(self, error: Any, row: Usage, headers: Mapping[str, str]) -> Outcome:
        """Return the outcome of an error within an answer of status 200, as MediaWiki gives them."""
        code, said = text_of(error["code"]), text_of(error.get("info"))[:_SHOWN].rstrip(".")
        if code in _WIKI_RETRIED:
            return Refused(f"{self.provider} answered with {code}: {said}.", True, retry_after(headers))
        return Recorded({"error": said}, (replace(row, cost_usd=0.0),), is_error=True)

    def _results(self, found: Recorded) -> ToolResult:
        """Return the observation of a search: numbered results, each with title, address and text."""
        if found.is_error:
            return self._said(found)
        try:
            parts = [
                f"[{number}] {result['title']}\n{result['url']}\n{_short(result['content'], _RESULT_CHARS)}"
                for number, result in enumerate(found.value, 1)
            ]
        except (LookupError, TypeError, AttributeError):
            raise self._foreign() from None
        return ToolResult("\n\n".join(parts) or NO_RESULTS, found.usage)

    def _page(self, url: str, found: Recorded) -> ToolResult:
        if found.is_error:
            return self._said(found)
        if found.value is None:
            return ToolResult(f"There is no text to be had from {url}.", found.usage, is_error=True)
        if not isinstance(found.value, str):
            raise self._foreign()
        return ToolResult(_short(found.value, _PAGE_CHARS), found.usage)

    def _said(self, found: Recorded) -> ToolResult:
        """Return the service's own words about the arguments."""
        if not isinstance(found.value, dict) or not isinstance(found.value.get("error"), str):
            raise self._foreign()
        return ToolResult(found.value["error"], found.usage, is_error=True)

    def _foreign(self) -> InfrastructureError:
        return InfrastructureError(
            f"What is recorded of a call of {self.provider} is no answer of it; record to another replay.path."
        )


class TavilySearch(WebClient):
    """Tavily's search and extract."""

    provider, method = "tavily", "POST"

    def __init__(self, prices: PriceList, url: str | None = None, **options: Any) -> None:
        super().__init__(prices, url or TAVILY_URL, **options)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {read_key('TAVILY_API_KEY', 'Tavily')}"}

    async def search(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        fields = {"query": arguments["query"], "max_results": _RESULTS, "search_depth": "basic"}

        def read(answer: Any) -> list[dict[str, str]]:
            return [{key: text_of(result[key]) for key in ("title", "url", "content")} for result in answer["results"]]

        return self._results(await self._call(SEARCH_TOOL.name, fields, "/search", fields, read, budget))

    async def extract(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        """Return the text of the page {"url"}. Tavily bills pages that it could read, and only those."""
        fields = {"urls": [arguments["url"]], "extract_depth": "basic", "format": "text"}

        def read(answer: Any) -> str | None:
            texts = [text for result in answer["results"] if (text := text_of(result["raw_content"]))]
            return texts[0] if texts else None

        found = await self._call(EXTRACT_TOOL.name, fields, "/extract", fields, read, budget)
        return self._page(arguments["url"], found)


class WikipediaSearch(WebClient):
    """Wikipedia's search and page texts, through MediaWiki's API: no key, no charge.

    Args:
        url: of another wiki's api.php; its pages are those at /wiki/ of the same address.
        contact: an address or URL; Wikimedia's rules ask who is calling, and may block those who do not say.
    """

    provider, method = "wikipedia", "GET"

    def __init__(
        self,
        prices: PriceList,
        url: str | None = None,
        *,
        contact: str = "no contact given",
        **options: Any,
    ) -> None:
        super().__init__(prices, url or f"{_SITE}/w/api.php", **options)
        self._contact = contact
        parts = urlsplit(self._url)
        self._site = f"{parts.scheme}://{parts.netloc}"
        # The wiki in the record; the English Wikipedia has the name that it had there before others could be read.
        self._wiki = {"language": "en"} if self._site == _SITE else {"wiki": self._url}

    def _headers(self) -> dict[str, str]:
        return {"User-Agent": f"orchestra-jax/{__version__} ({self._contact})"}

    async def search(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        """Search for {"query"}; a result's text is the introduction of its page."""
        request = {**self._wiki, "query": arguments["query"], "max_results": _RESULTS}
        fields = {
            **_EXTRACTS,
            "generator": "search",
            "gsrsearch": arguments["query"],
            "gsrlimit": str(_RESULTS),
            "exintro": "1",
            "exlimit": "max",
        }

        def read(answer: Any) -> list[dict[str, str]]:
            return [
                {
                    "title": text_of(page["title"]),
                    "url": f"{self._site}/wiki/{_in_address(text_of(page['title']))}",
                    "content": text_of(page.get("extract")),
                }
                for page in sorted(_pages(answer), key=lambda page: page["index"])
            ]

        return self._results(await self._call(SEARCH_TOOL.name, request, "", fields, read, budget))

    async def extract(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        """Return the text of the page {"url"}: an address on this wiki, or a title."""
        title = arguments["url"]
        if title.startswith(("http://", "https://")):
            try:
                parts = urlsplit(title)
            except ValueError:
                return ToolResult(f"{title} is no address of a page.", is_error=True, refused=True)
            if parts.hostname != urlsplit(self._site).hostname or not parts.path.startswith("/wiki/"):
                return ToolResult(f"Only pages of {self._site} can be read, not {title}.", is_error=True, refused=True)
            title = unquote(parts.path.removeprefix("/wiki/"))
        title = title.replace("_", " ")
        fields = {**_EXTRACTS, "titles": title, "redirects": "1"}

        def read(answer: Any) -> str | None:
            pages = _pages(answer)  # none for a title of blanks, or of another wiki ("de:Oslo")
            return (text_of(pages[0].get("extract")) if pages else "") or None

        request = {**self._wiki, "title": title}
        found = await self._call(EXTRACT_TOOL.name, request, "", fields, read, budget)
        return self._page(arguments["url"], found)


def _pages(answer: Any) -> Any:
    """Return the pages of MediaWiki's answer; raise LookupError if it has neither pages nor the mark of their end."""
    if "query" not in answer and "batchcomplete" not in answer:
        raise LookupError("neither pages nor their end")
    return answer.get("query", {}).get("pages", [])


def _in_address(title: str) -> str:
    """Return a page's title as it stands in an address, where a question mark would begin something else."""
    return title.replace(" ", "_").replace("%", "%25").replace("?", "%3F")


def _short(text: str, length: int) -> str:
    text = text.strip()
    return text if len(text) <= length else text[:length] + "..."


def _reason(content: bytes) -> str:
    """Return the server's own words about an error, on one line."""
    text = content.decode("utf-8", "replace")
    try:
        detail = read_json(content)["detail"]
        text = text_of(detail["error"] if isinstance(detail, dict) else detail)
    except (Unreadable, LookupError, TypeError):
        pass
    return valid_text(" ".join(text.split()))


class WebSearchTool(Tool):
    """Searches the web with the provider of `tools.web`; its client keeps the record."""

    spec = SEARCH_TOOL
    settings = None

    def __init__(self, context: ToolContext) -> None:
        self._web = context.share(_client_of_run)

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        return await self._web.search(arguments, budget)

    async def close(self) -> None:
        await self._web.close()

    @classmethod
    def problems(cls, cfg: WorldConfig, prices: PriceList) -> list[str]:
        _client(cfg.tools.web, prices, None).check()
        return []


class WebExtractTool(WebSearchTool):
    """Reads a page with the same client."""

    spec = EXTRACT_TOOL

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        return await self._web.extract(arguments, budget)


def _client_of_run(context: ToolContext) -> WebClient:
    return _client(context.cfg.tools.web, context.prices, context.replay)


def _client(cfg: WebConfig, prices: PriceList, replay: Replay | None) -> WebClient:
    make = TavilySearch if cfg.provider is WebProvider.tavily else WikipediaSearch
    return make(prices, cfg.url, replay=replay)
