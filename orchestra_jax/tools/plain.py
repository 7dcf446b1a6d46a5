"""The plain tools that come with us, made from `tools.*`: sandbox, searches and the tool that ends the task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestra_jax.config.choices import WebProvider
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.config.tools import WebConfig
from orchestra_jax.io import hub
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Recorded, Replay
from orchestra_jax.tools.answers import ANSWER_TOOL
from orchestra_jax.tools.base import Tool, ToolContext, unreachable
from orchestra_jax.tools.entries import recorded
from orchestra_jax.tools.python import sandbox
from orchestra_jax.tools.python.server import RemoteSandbox
from orchestra_jax.tools.search import local, web
from orchestra_jax.tools.search.server import RemoteIndex, open_index
from orchestra_jax.types import ToolResult, Usage


class Python(Tool):
    """Runs code in a sandbox of this machine, or on the server at `tools.sandbox.url`."""

    spec = sandbox.TOOL

    def __init__(self, context: ToolContext) -> None:
        cfg = context.cfg.tools.sandbox
        self.settings = {"timeout_s": cfg.timeout_s}
        self._executor: sandbox.PythonSandbox | RemoteSandbox | None = None
        if context.live and cfg.url:
            self._executor = RemoteSandbox(cfg.url, cfg.timeout_s + 50.0)
        elif context.live:
            self._executor = sandbox.PythonSandbox(cfg.workers, cfg.timeout_s, isolation=cfg.isolation)

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        assert self._executor is not None  # what is only replayed is not run
        return await self._executor.run(arguments["code"])

    async def close(self) -> None:
        if self._executor is not None:
            self._executor.close()

    @classmethod
    def problems(cls, cfg: WorldConfig, prices: PriceList) -> list[str]:
        return unreachable(cls.spec.name, cfg.tools.sandbox.url)


class LocalSearch(Tool):
    """Searches the passages of `tools.search.corpus` or `tools.search.index`.

    Its answers are recorded under the content of these, and so is the content under their name: a machine that only
    replays need not have them.
    """

    spec = local.TOOL
    settings = None

    def __init__(self, context: ToolContext) -> None:
        cfg = context.cfg.tools.search
        self._top_k, self._replay = cfg.top_k, context.replay
        self._name = Path(cfg.index or cfg.corpus or "").name
        self._index: local.LocalIndex | local.BatchIndex | None = None
        self._live, self._content = context.live, ""  # until the first call
        self._here = _content(cfg.index or cfg.corpus, context.live)
        if not context.live:
            return
        if cfg.index is not None:
            remote = cfg.index.startswith("http")
            self._index = RemoteIndex(cfg.index) if remote else open_index(cfg.index, cfg.embedder_url)
        elif cfg.corpus is not None:
            self._index = local.LocalIndex.build(local.read_passages(cfg.corpus))
        else:
            raise ValueError("local_search needs passages: set tools.search.corpus=FILE or tools.search.index=FOLDER.")

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult | str:
        async def search(arguments: Mapping[str, Any], budget: Budget) -> ToolResult | str:
            assert self._index is not None  # what is only replayed is not run
            return await local.search_handler(self._index, self._top_k)(arguments, budget)

        self._content = self._content or await self._find_content()
        settings = {"top_k": self._top_k, "content": self._content}
        return await recorded(self.spec.name, search, self._replay, settings)(arguments, budget)

    async def _find_content(self) -> str:
        """What tells the collection from others: of what is here, of what a server says, or as it was recorded."""
        found = self._here
        if isinstance(self._index, RemoteIndex):
            found = await self._index.content()
        if found and not self._live:
            return found

        async def known() -> Recorded:
            return Recorded(found or self._name)

        noted = await self._replay.call(f"{self.spec.name}.content", {"source": self._name}, known)
        return found or str(noted.value)

    async def close(self) -> None:
        if isinstance(self._index, local.BatchIndex):
            await self._index.close()

    @classmethod
    def problems(cls, cfg: WorldConfig, prices: PriceList) -> list[str]:
        return unreachable(cls.spec.name, cfg.tools.search.index)


class WebSearch(Tool):
    """Searches the web with the provider of `tools.web`; its client keeps the record."""

    spec = web.SEARCH_TOOL
    settings = None

    def __init__(self, context: ToolContext) -> None:
        self._web = context.share(_web_of_run)

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        return await self._web.search(arguments, budget)

    async def close(self) -> None:
        await self._web.close()

    @classmethod
    def problems(cls, cfg: WorldConfig, prices: PriceList) -> list[str]:
        _web(cfg.tools.web, prices, None).check()
        return []


class WebExtract(WebSearch):
    """Reads a page with the same client."""

    spec = web.EXTRACT_TOOL

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        return await self._web.extract(arguments, budget)


class Answer(Tool):
    """Ends the task with its argument."""

    spec = ANSWER_TOOL
    listed = False
    settings = None

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        return ToolResult("The answer is given.", (Usage(self.spec.name),), final=arguments["answer"])


def _content(source: str | None, live: bool) -> str:
    """See `local.content_of`; what the hub has is fetched only where it will be searched."""
    if source is None or source.startswith("http"):
        return ""
    return local.content_of(hub.local(source, "dataset", ("*",)) if live else source)


def _web_of_run(context: ToolContext) -> web.WebSearch:
    return _web(context.cfg.tools.web, context.prices, context.replay)


def _web(cfg: WebConfig, prices: PriceList, replay: Replay | None) -> web.WebSearch:
    make = web.TavilySearch if cfg.provider is WebProvider.tavily else web.WikipediaSearch
    return make(prices, cfg.url, replay=replay, timeout_s=cfg.timeout_s)
