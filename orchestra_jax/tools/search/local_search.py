"""The tool `local_search`, made from `tools.search`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.io import hub
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.store import Recorded
from orchestra_jax.tools.base import Tool, ToolContext, unreachable
from orchestra_jax.tools.entries import recorded
from orchestra_jax.tools.search import local
from orchestra_jax.tools.search.bm25 import LocalIndex
from orchestra_jax.tools.search.server import RemoteIndex, open_index
from orchestra_jax.types import ToolResult


class LocalSearch(Tool):
    """Searches the passages of `tools.search.corpus` or `tools.search.index`.

    The record keeps its answers under the content of the passages, and the content under their name: a machine that
    only replays need not have them.
    """

    spec = local.TOOL
    settings = None

    def __init__(self, context: ToolContext) -> None:
        cfg = context.cfg.tools.search
        self._top_k, self._replay = cfg.top_k, context.replay
        self._name = Path(cfg.index or cfg.corpus or "").name
        self._index: LocalIndex | local.BatchIndex | None = None
        self._live, self._content = context.live, ""  # until the first call
        self._source = cfg.index or cfg.corpus
        self._content_here = _content(self._source, True) if context.live else None
        if not context.live:
            return
        if cfg.index is not None:
            remote = cfg.index.startswith("http")
            self._index = RemoteIndex(cfg.index) if remote else open_index(cfg.index, cfg.embedder_url)
        elif cfg.corpus is not None:
            self._index = LocalIndex.build(local.read_passages(cfg.corpus))
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
        """Return the digest of the passages: from their files, from their server, or from the record."""
        found = _content(self._source, False) if self._content_here is None else self._content_here
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
        search = cfg.tools.search
        found = unreachable(cls.spec.name, search.index)
        found += unreachable("the queries of local_search", search.embedder_url, "tools.search.embedder_url")
        try:
            foreign = search.index is not None and search.embedder_url is None and local.pair_of(search.index)
        except ValueError as error:
            return [*found, str(error)]
        if foreign:
            found.append(
                f"tools.search.index={search.index} does not say where queries are embedded: set "
                "tools.search.embedder_url to a server of its embedding model (docs/search.md)."
            )
        return found


def _content(source: str | None, live: bool) -> str:
    """Return `local.content_of` the source; a collection of the hub is fetched only where it will be searched."""
    if source is None or source.startswith("http"):
        return ""
    return local.content_of(hub.local(source, "dataset", ("*",)) if live else source)
