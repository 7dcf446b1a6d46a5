"""The tools `web_search` and `web_extract`, made from `tools.web`."""

from collections.abc import Mapping
from typing import Any

from orchestra_jax.config.choices import WebProvider
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.config.tools import WebConfig
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.base import Tool, ToolContext
from orchestra_jax.tools.search import web
from orchestra_jax.types import ToolResult


class WebSearchTool(Tool):
    """Searches the web with the provider of `tools.web`; its client keeps the record."""

    spec = web.SEARCH_TOOL
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

    spec = web.EXTRACT_TOOL

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        return await self._web.extract(arguments, budget)


def _client_of_run(context: ToolContext) -> web.WebClient:
    return _client(context.cfg.tools.web, context.prices, context.replay)


def _client(cfg: WebConfig, prices: PriceList, replay: Replay | None) -> web.WebClient:
    make = web.TavilySearch if cfg.provider is WebProvider.tavily else web.WikipediaSearch
    return make(prices, cfg.url, replay=replay)
