"""Local search and its record: another collection under the same name never answers for the recorded one."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web

from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.base import ToolContext
from orchestra_jax.tools.search.bm25 import LocalIndex, Passage
from orchestra_jax.tools.search.local import content_of, load_index, save_index
from orchestra_jax.tools.search.local_search import LocalSearch
from orchestra_jax.tools.search.server import RemoteIndex, RetrievalServer
from orchestra_jax.types import ReplayMiss
from tests.tools.http_stub import serving


def written(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"title": "Oslo", "text": text}) + "\n")
    return str(path)


async def found(record: Path, mode: str, *, corpus: str | None = None, index: str | None = None, top_k: int = 3) -> str:
    replay = Replay(record, mode)
    search = SimpleNamespace(corpus=corpus, index=index, top_k=top_k, embedder_url=None)
    cfg = SimpleNamespace(tools=SimpleNamespace(search=search), replay=SimpleNamespace(mode=mode))
    tool = LocalSearch(ToolContext(cfg, PriceList("p", "d", "s", {}), replay))
    try:
        return (await tool.run({"query": "oslo"}, Budget())).text
    finally:
        await tool.close()
        replay.close()


async def test_a_changed_or_other_collection_is_searched_again(tmp_path):
    record = tmp_path / "calls.db"
    first, other = written(tmp_path / "a" / "passages.jsonl", "a town"), tmp_path / "b" / "passages.jsonl"
    assert await found(record, "replay_or_record", corpus=first) == "Oslo: a town"
    assert await found(record, "replay_or_record", corpus=written(other, "a city")) == "Oslo: a city"
    written(Path(first), "a village")
    assert await found(record, "replay_or_record", corpus=first) == "Oslo: a village"
    with pytest.raises(ReplayMiss):
        await found(record, "replay", corpus=written(other, "never recorded"))


async def test_the_same_collection_elsewhere_is_replayed_and_none_is_needed_for_that(tmp_path):
    record = tmp_path / "calls.db"
    await found(record, "replay_or_record", corpus=written(tmp_path / "a" / "passages.jsonl", "a town"))
    moved = written(tmp_path / "b" / "other.jsonl", "a town")
    assert await found(record, "replay", corpus=moved) == "Oslo: a town"
    assert await found(record, "replay", corpus="/nowhere/passages.jsonl") == "Oslo: a town"
    with pytest.raises(ReplayMiss):
        await found(record, "replay", corpus="/nowhere/others.jsonl")
    with pytest.raises(ReplayMiss):
        await found(record, "replay", corpus=moved, top_k=4)


async def test_an_index_is_known_by_what_it_holds_behind_a_server_too(tmp_path):
    record, texts = tmp_path / "calls.db", ("a town", "a city")
    for text in texts:
        save_index(LocalIndex.build([Passage("Oslo", text)]), tmp_path / "index")  # in place of the other
        assert await found(record, "replay_or_record", index=str(tmp_path / "index")) == f"Oslo: {text}"
        server = RetrievalServer(load_index(tmp_path / "index"), content=content_of(tmp_path / "index"))
        await server.start()
        url = server.url
        assert await found(record, "replay_or_record", index=url) == f"Oslo: {text}"
        await server.stop()
        assert await found(record, "replay", index=url) == f"Oslo: {text}"
    unknown = RetrievalServer(LocalIndex.build([Passage("Oslo", "a village")]))  # does not say what it holds
    await unknown.start()
    async with serving(lambda request: says_ok()) as url:  # of another make
        assert await RemoteIndex(url).content() == ""
    assert await found(record, "replay_or_record", index=unknown.url) == "Oslo: a village"
    await unknown.stop()


async def says_ok() -> web.Response:
    return web.Response(text="OK")


def test_content(tmp_path):
    first = content_of(written(tmp_path / "a.jsonl", "a town"))
    assert content_of(written(tmp_path / "b.jsonl", "a town")) == first
    assert content_of(written(tmp_path / "b.jsonl", "a city")) != first
    dense = tmp_path / "dense"
    dense.mkdir()
    manifest = {"format": 1, "kind": "flat", "embedder": "m", "source": "abc", "settings": {"url": "http://a"}}
    (dense / "manifest.json").write_text(json.dumps(manifest))
    built = content_of(dense)
    (dense / "manifest.json").write_text(json.dumps({**manifest, "settings": {"url": "http://b"}}))
    assert content_of(dense) == built  # the embedder's address is no part of it
    (dense / "manifest.json").write_text(json.dumps({**manifest, "source": "abd"}))
    assert content_of(dense) != built
