"""The /retrieve server as a process of its own, and its client against servers with faults."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

pytest.importorskip("faiss")

from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.search import dense_build
from orchestra_jax.tools.search.bm25 import NO_RESULTS, Hit, LocalIndex, Passage
from orchestra_jax.tools.search.dense import DenseIndex
from orchestra_jax.tools.search.embeddings import EndpointEmbedder
from orchestra_jax.tools.search.local import save_index, search_handler
from orchestra_jax.tools.search.server import MAX_TOPK, RemoteIndex, RetrievalServer, main, open_index
from orchestra_jax.types import InfrastructureError
from tests.tools.http_stub import EmbeddingStub, in_thread, serving

WORDS = "oslo rome bergen paris lima quito cairo tunis delhi hanoi".split()
PASSAGES = [Passage(f"City {i}", f"{WORDS[i % 10]} street{i} é") for i in range(200)]
WAIT_S = 300.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "passages.jsonl"
    path.write_text("".join(json.dumps({"title": p.title, "text": p.text}) + "\n" for p in PASSAGES))
    return path


@pytest.fixture(scope="module")
def dense(source: Path) -> Iterator[Path]:
    """A dense index, whose embedding server runs in a thread of its own as long as the tests do."""

    async def build(url: str) -> None:
        index = await dense_build.build(source, source.parent / "dense", EndpointEmbedder(url, "m"))
        await index.close()

    with in_thread(serving(EmbeddingStub(128))) as url:
        asyncio.run(build(url))
        yield source.parent / "dense"


@asynccontextmanager
async def here(index: Path, port: int = 0) -> AsyncIterator[str]:
    """The URL of a server in this process."""
    server = RetrievalServer(open_index(index), port=port)
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()


@asynccontextmanager
async def process(index: Path, *options: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """(URL, process) of a server on `index`; ended with SIGTERM, which must be clean."""
    command = [sys.executable, "-m", "orchestra_jax.tools.search.server", "--index", str(index), "--port", "0"]
    server = await asyncio.create_subprocess_exec(*command, *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        line = (await asyncio.wait_for(server.stdout.readline(), WAIT_S)).decode()
        assert line.startswith("Serving "), (await server.stderr.read()).decode()
        yield line.split()[-1], server
        if server.returncode is None:
            server.terminate()
        _, errors = await asyncio.wait_for(server.communicate(), WAIT_S)
        assert (server.returncode, errors.decode()) == (0, "")
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()


def same(found: list[list[Hit]], wanted: list[list[Hit]]) -> bool:
    """Whether results agree. Sums of another batch are added in another order, so near ties may swap."""
    for ours, theirs in zip(found, wanted, strict=True):
        assert [hit.passage for hit in ours[:1]] == [hit.passage for hit in theirs[:1]]
        assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in theirs], abs=1e-5)
    return True


@pytest.mark.parametrize("kind", ["dense", "bm25"])
async def test_many_clients_get_what_the_index_gives(kind: str, dense: Path, tmp_path: Path):
    folder = dense
    if kind == "bm25":
        save_index(LocalIndex.build(PASSAGES), tmp_path / "bm25")
        folder = tmp_path / "bm25"
    index = open_index(folder)
    queries = [f"{WORDS[i % 10]} street{i}" for i in range(60)] + ["", "nothing-known"]

    async def expected(query: str, k: int):
        found = index.search(query, k)
        return found if isinstance(found, list) else await found

    async with here(folder) as url:
        clients = [RemoteIndex(url), RemoteIndex(url)]
        for k in (1, 4):
            wanted = [await expected(query, k) for query in queries]
            jobs = [client.search(query, k) for client in clients for query in queries]
            assert same(await asyncio.gather(*jobs), wanted * 2)
        batches = await asyncio.gather(*(client.search_batch(queries, 4) for client in clients))
        assert same(batches[0], wanted)
        assert same(batches[1], wanted)
        assert await clients[0].search_batch([]) == []
        assert await clients[0].answer("") == NO_RESULTS
        assert (
            await search_handler(clients[0], 1)({"query": "rome street1"}, Budget())
        ).text == "City 1: rome street1 é"
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as response:
            body = await response.json()
            assert body == {
                "status": "ok",
                "passages": 200,
                "kind": "flat" if kind == "dense" else "bm25",
                "waiting": 0,
                "content": "",
            }
        for client in clients:
            await client.close()
    if isinstance(index, DenseIndex):
        await index.close()


async def test_bad_requests_are_refused_with_a_sentence_and_not_repeated(dense: Path):
    async with here(dense) as url, aiohttp.ClientSession() as session:
        for body, said in [
            (b"not json", "Bad request"),
            (b"[" * 50_000 + b"]" * 50_000, "Bad request"),
            (b"\xff", "Bad request"),
            (b'{"queries": ["a"], "topk": 1e999}', "Bad request"),
            (b'{"queries": ["a"], "topk": 9' + b"9" * 5000 + b"}", "Bad request"),
            (b"[1]", 'send {"queries"'),
            (b'{"queries": "oslo"}', 'send {"queries"'),
            (b'{"queries": [1]}', "texts"),
            (b'{"queries": ["a"], "topk": 0}', "topk must be"),
            (b'{"queries": ["a"], "topk": true}', "topk must be"),
            (f'{{"queries": ["a"], "topk": {MAX_TOPK + 1}}}'.encode(), "topk must be"),
            (json.dumps({"queries": ["a"] * 2000}).encode(), "at most 1000"),
        ]:
            async with session.post(f"{url}/retrieve", data=body) as response:
                assert response.status == 400
                assert said in (await response.json())["error"]
        async with session.post(f"{url}/retrieve", json={"queries": [], "topk": 3}) as response:
            assert await response.json() == {"result": []}
        async with session.post(f"{url}/retrieve", json={"queries": ["oslo"], "return_scores": True}) as response:
            (row, _, _) = (await response.json())["result"][0]
            assert row.keys() == {"document", "score"}
            assert row["document"].keys() == {"title", "text"}
        async with session.post(f"{url}/retrieve", data=b'{"queries": ["oslo \\ud83d"], "topk": 1}') as response:
            assert (response.status, len((await response.json())["result"][0])) == (200, 1)
        client = RemoteIndex(url)
        with pytest.raises(InfrastructureError, match="status 400"):
            await client.search("a", MAX_TOPK + 1)
        with pytest.raises(ValueError, match="at least 1"):
            await client.search("a", 0)
        await client.close()


async def test_sigterm_answers_what_is_under_way(source: Path, tmp_path: Path):
    stub, arrived, go = EmbeddingStub(), asyncio.Event(), asyncio.Event()

    async def held(request: web.Request) -> web.StreamResponse:
        if "Query" in (await request.json())["input"][0]:
            arrived.set()
            await go.wait()
        return await stub(request)

    async with serving(held) as endpoint:
        embedder = EndpointEmbedder(endpoint, "m")
        await dense_build.build(source, tmp_path / "index", embedder)
        await embedder.close()
        async with process(tmp_path / "index") as (url, server):
            client = RemoteIndex(url, retries=0)
            search = asyncio.create_task(client.search("oslo", 2))
            await asyncio.wait_for(arrived.wait(), WAIT_S)
            server.terminate()
            while True:  # until it listens no more
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
                except OSError:
                    break
                writer.close()
                await asyncio.sleep(0.02)
            go.set()
            assert len(await asyncio.wait_for(search, WAIT_S)) == 2
            assert await asyncio.wait_for(server.wait(), WAIT_S) == 0
            with pytest.raises(InfrastructureError, match="cannot be reached"):
                await client.search("oslo")
            await client.close()


async def test_a_server_that_is_started_again_is_found(dense: Path):
    async with here(dense) as url:
        client = RemoteIndex(url, retries=8, backoff_s=0.05)
        expected = await client.search("rome", 2)
    search = asyncio.create_task(client.search("rome", 2))
    await asyncio.sleep(0.1)
    assert not search.done()
    async with here(dense, int(url.rpartition(":")[2])):
        assert same([await asyncio.wait_for(search, WAIT_S)], [expected])
        await client.close()


async def test_an_embedder_that_fails_is_infrastructure_and_the_server_goes_on(source: Path, tmp_path: Path):
    stub = EmbeddingStub()
    broken = False

    async def flaky(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401) if broken else await stub(request)

    async with serving(flaky) as endpoint:
        index = await dense_build.build(source, tmp_path / "index", EndpointEmbedder(endpoint, "m"))
        server = RetrievalServer(index)
        await server.start()
        client = RemoteIndex(server.url, retries=1, backoff_s=0.01)
        broken = True
        with pytest.raises(InfrastructureError, match=r"status 503: .*status 401"):
            await client.search("oslo")
        broken = False
        assert len(await client.search("oslo", 2)) == 2
        await client.close()
        await server.stop()


async def test_what_nobody_waits_for_any_more_is_not_searched(monkeypatch):
    server, gate, seen = RetrievalServer(LocalIndex.build([Passage("", "oslo")])), asyncio.Event(), list[str]()
    begun = asyncio.Queue[None]()

    async def search(queries: list[str], topk: int) -> list[list[Hit]]:
        seen.extend(queries)
        begun.put_nowait(None)
        await gate.wait()
        return [[] for _ in queries]

    monkeypatch.setattr(server, "_search", search)
    await server.start()
    patient, hasty = RemoteIndex(server.url), RemoteIndex(server.url, timeout_s=1.0, retries=0)
    first = list[asyncio.Task[list[Hit]]]()
    for query in ("a", "b"):  # one after the other, so that both of its searches are under way
        first.append(asyncio.create_task(patient.search(query)))
        await begun.get()
    with pytest.raises(InfrastructureError, match="no whole answer"):
        await hasty.search("c")
    await hasty.close()
    (waiting,) = server._queue._queue
    await asyncio.wait([waiting.answer], timeout=WAIT_S)
    assert waiting.answer.cancelled()  # the server has seen that its client is gone
    gate.set()
    await asyncio.gather(*first, patient.search("d"))
    assert sorted(seen) == ["a", "b", "d"]
    await patient.close()
    await server.stop()


async def test_concurrent_queries_are_searched_together(source: Path, tmp_path: Path):
    stub = EmbeddingStub()
    async with serving(stub) as endpoint:
        index = await dense_build.build(source, tmp_path / "index", EndpointEmbedder(endpoint, "m"))
        server = RetrievalServer(index)
        await server.start()
        client = RemoteIndex(server.url)
        asked = len(stub.bodies)
        found = await asyncio.gather(*(client.search(f"{WORDS[i % 10]}", 1 + i % 3) for i in range(200)))
        assert [len(hits) for hits in found] == [1 + i % 3 for i in range(200)]
        assert same(found[:1], found[30:31])
        assert sum(len(body["input"]) for body in stub.bodies[asked:]) == 200
        assert len(stub.bodies) - asked < 100
        await client.close()
        await server.stop()


def test_start_errors_are_one_sentence(tmp_path: Path, dense: Path, monkeypatch, capsys):
    def run(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["server", *options])
        with pytest.raises(SystemExit) as caught:
            main()
        errors = capsys.readouterr().err
        assert (caught.value.code, len(errors.splitlines())) == (2, 1)
        return errors

    assert "No dense index in" in run("--index", str(tmp_path / "none"))
    assert "No local index in" in run("--index", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "address already in use" in run("--index", str(dense), "--port", str(taken.getsockname()[1]))


async def test_ctrl_c_is_clean_too(dense: Path):
    async with process(dense) as (url, server):
        client = RemoteIndex(url)
        await client.search("oslo")
        server.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(server.wait(), WAIT_S) == 0
        await client.close()
