"""One index for many trainers: a `/retrieve` HTTP server, and the client that searches through it.

    python -m orchestra_jax.tools.search.server --index DIR --port 8100

POST /retrieve {"queries": [...], "topk": 3} answers {"result": [[{"document": {"title", "text"}, "score"}, ...], ...]},
one list per query; GET /health answers {"status": "ok", ...}. There is no authentication: keep it on 127.0.0.1 or in a
private network.
"""

import argparse
import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestra_jax.io import hub
from orchestra_jax.io.fields import text_of
from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.http_json import JsonClient, ServerError, require_aiohttp
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.tools.search.bm25 import Hit, LocalIndex, Passage
from orchestra_jax.tools.search.dense import MANIFEST, DenseIndex
from orchestra_jax.tools.search.local import BatchIndex, content_of, load_index, pair_of
from orchestra_jax.types import InfrastructureError

MAX_TOPK = 1000
MAX_QUERIES = 1000
_MAX_BATCH = 256  # queries of different requests that are searched together
_MAX_BODY = 16 * 2**20
_PARALLEL = 2  # searches at a time, so that one can embed while another computes
_GRACE_S = 30.0  # for requests under way when the server is told to stop
_LOG = logging.getLogger(__name__)


def open_index(directory: str | Path, embedder_url: str | None = None) -> LocalIndex | DenseIndex:
    """Return the saved index (BM25 or dense) of a folder, a data set of the hub, or a pair of files (`local.pair_of`).

    Raises:
        FileNotFoundError: there is none.
        ValueError: it cannot be used, see `DenseIndex.load`.
    """
    directory = hub.local(directory, "dataset", ("*",))
    dense = (Path(directory) / MANIFEST).is_file() or not Path(directory).is_dir() or pair_of(directory) is not None
    return DenseIndex.load(directory, embedder_url=embedder_url) if dense else load_index(directory)


class RetrievalServer:
    """Serves one index. What arrives while a search runs is searched together in the next one.

    Args:
        index: BM25 or dense; a dense one is closed with the server.
        host, port: where to listen; port 0 takes a free one.
        content: what tells the collection from others, see `local.content_of`; clients record answers under it.

    Attributes:
        url: where it listens, once started.
    """

    def __init__(
        self,
        index: LocalIndex | DenseIndex,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        content: str = "",
    ) -> None:
        self.url, self._content = "", content
        self._index, self._host, self._port = index, host, port
        self._queue: asyncio.Queue[_Request] = asyncio.Queue()
        self._workers: list[asyncio.Task[None]] = []
        self._runner: Any = None

    async def start(self) -> None:
        """Begin to listen; raise OSError: the address is taken."""
        web = require_aiohttp("web")
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_post("/retrieve", self._retrieve)
        app.router.add_get("/health", self._health)
        # A request whose client has gone is cancelled, and so is not searched for.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_GRACE_S, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        port = self._runner.addresses[0][1]
        self.url = f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{port}"
        self._workers = [asyncio.create_task(self._work()) for _ in range(_PARALLEL)]

    async def stop(self) -> None:
        """Take no more requests, answer those under way, and close the index."""
        if self._runner is not None:
            await self._runner.cleanup()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        if isinstance(self._index, DenseIndex):
            await self._index.close()

    async def _health(self, request: Any) -> Any:
        kind = self._index.kind if isinstance(self._index, DenseIndex) else "bm25"
        body = {"status": "ok", "passages": len(self._index.passages), "kind": kind, "waiting": self._queue.qsize()}
        body |= {"content": self._content}
        return require_aiohttp("web").json_response(body)

    async def _retrieve(self, request: Any) -> Any:
        web = require_aiohttp("web")
        try:
            queries, topk = _parse(read_json(await request.read()))
        except ValueError as error:  # `Unreadable` is one too
            return web.json_response({"error": f"Bad request: {error}"}, status=400)
        if not queries:
            return web.json_response({"result": []})
        job = _Request(queries, topk, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(job)
        try:
            found = await job.answer
        except InfrastructureError as error:
            return web.json_response({"error": str(error)}, status=503)
        except Exception as error:
            _LOG.exception("A search failed.")
            return web.json_response({"error": f"The search failed: {error}"}, status=500)
        rows = [[{"document": asdict(hit.passage), "score": hit.score} for hit in hits] for hits in found]
        return web.json_response({"result": rows})

    async def _work(self) -> None:
        while True:
            jobs = [await self._queue.get()]
            while not self._queue.empty() and sum(len(job.queries) for job in jobs) < _MAX_BATCH:
                jobs.append(self._queue.get_nowait())
            jobs = [job for job in jobs if not job.answer.done()]  # the client has gone
            queries = [query for job in jobs for query in job.queries]
            try:
                found = await self._search(queries, max((job.topk for job in jobs), default=1))
            except Exception as error:
                for job in jobs:
                    if not job.answer.done():
                        job.answer.set_exception(error)
                continue
            for job in jobs:
                mine, found = found[: len(job.queries)], found[len(job.queries) :]
                if not job.answer.done():
                    job.answer.set_result([hits[: job.topk] for hits in mine])

    async def _search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        index = self._index
        if isinstance(index, DenseIndex):
            return await index.search_batch(queries, topk)
        return await asyncio.to_thread(lambda: [index.search(query, topk) for query in queries])


class RemoteIndex(BatchIndex):
    """An index behind a `/retrieve` server.

    Args:
        url: of the server, such as "http://10.0.0.7:8100".
        timeout_s, retries, backoff_s: see `JsonClient`; the last failure is raised as InfrastructureError.
    """

    def __init__(self, url: str, *, timeout_s: float = 60.0, retries: int = 5, backoff_s: float = 0.5) -> None:
        self._client = JsonClient(url, timeout_s=timeout_s, retries=retries, backoff_s=backoff_s)

    async def search_batch(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """See `BatchIndex`: one request.

        Raises:
            ValueError: k < 1.
            InfrastructureError: no usable answer after the last retry.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}.")
        answer = await self._client.post("/retrieve", {"queries": list(queries), "topk": k})
        try:
            found = [[_hit(row) for row in hits[:k]] for hits in answer["result"]]
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise InfrastructureError(f"{self._client.url} gave no list of documents ({str(error)[:80]!r}).") from None
        if len(found) != len(queries):
            raise InfrastructureError(f"{self._client.url} gave {len(found)} results for {len(queries)} queries.")
        return found

    async def content(self) -> str:
        """Return the digest of the server's collection, see `RetrievalServer`; "" if it has none.

        Raises:
            InfrastructureError: it does not answer.
        """
        try:
            return text_of((await self._client.get("/health")).get("content"))
        except ServerError as error:
            if error.kind == "protocol" or error.status in (404, 405, 501):  # a server of another make
                return ""
            raise
        except Unreadable:
            return ""

    async def close(self) -> None:
        await self._client.close()


@dataclass(frozen=True, slots=True)
class _Request:
    queries: list[str]
    topk: int
    answer: "asyncio.Future[list[list[Hit]]]"


def _parse(body: Any) -> tuple[list[str], int]:
    """(queries, topk); raises ValueError with one sentence."""
    if not isinstance(body, dict) or not isinstance(body.get("queries"), list):
        raise ValueError('send {"queries": ["..."], "topk": 3}.')
    queries, topk = body["queries"], body.get("topk", 3)
    if not all(isinstance(query, str) for query in queries) or len(queries) > MAX_QUERIES:
        raise ValueError(f"queries must be at most {MAX_QUERIES} texts.")
    if not isinstance(topk, int) or isinstance(topk, bool) or not 1 <= topk <= MAX_TOPK:
        raise ValueError(f"topk must be a whole number from 1 to {MAX_TOPK}.")
    return queries, topk


def _hit(row: Mapping[str, Any]) -> Hit:
    document = row["document"]
    score = row["score"]
    if not isinstance(document["text"], str) or isinstance(score, bool) or not isinstance(score, int | float):
        raise TypeError("a hit has a text and a score")
    return Hit(Passage(text_of(document.get("title")), document["text"]), float(score))


async def _serve(options: argparse.Namespace) -> None:
    content = content_of(hub.local(options.index, "dataset", ("*",)))
    index = open_index(options.index, options.embedder_url)
    server = RetrievalServer(index, options.host, options.port, content=content)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.start()
    print(f"Serving {options.index} on {server.url}", flush=True)
    await stop.wait()
    await server.stop()


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description="Serves a search index over HTTP, see docs/search.md.")
    parser.add_argument("--index", required=True, help="folder that experiments/index.py wrote")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100, help="0 takes a free one")
    parser.add_argument("--embedder-url", help="where the embedding server is now; default: where it was at the build")
    try:
        asyncio.run(_serve(parser.parse_args()))
    except (OSError, ValueError, ImportError) as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
