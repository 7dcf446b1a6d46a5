"""Real HTTP servers on 127.0.0.1 for tests, in the test's own event loop or a thread."""

import functools
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import numpy as np
from aiohttp import web

from orchestra_jax.io.event_loop import LoopThread

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def hosting(app: web.Application) -> AsyncIterator[str]:
    """The URL of a server of this application."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def serving(handler: Handler) -> AbstractAsyncContextManager[str]:
    """The URL of a server that gives every request to `handler`."""
    app = web.Application(client_max_size=2**26)

    async def route(request: web.Request) -> web.StreamResponse:  # aiohttp wants a function
        return await handler(request)

    app.router.add_route("*", "/{path:.*}", route)
    return hosting(app)


@contextmanager
def in_thread(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Start a server in an event loop of its own."""
    with LoopThread() as loop:
        started = loop.run(server.__aenter__())
        try:
            yield started
        finally:
            loop.run(server.__aexit__(None, None, None))


@functools.cache
def _one_word(word: str, dim: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
    rare = any(character.isdigit() for character in word)  # as names are in a real collection
    return np.random.default_rng(seed).standard_normal(dim) * (4 if rare else 1)


def word_vector(text: str, dim: int = 16) -> list[float]:
    """A vector that depends on the words of a text only: texts that share words are near."""
    words = re.findall(r"\w+", text.lower())
    total = sum((_one_word(word, dim) for word in words), np.zeros(dim)) if words else np.ones(dim)
    return (total * 3).tolist()  # not normalised: the client has to


class WordEmbedder:
    """An embedder in this process, by `word_vector`. Another `seed` is another embedder."""

    def __init__(self, dim: int = 128, seed: int = 0) -> None:
        self.dim, self.seed = dim, seed
        self.identity = f"words ({dim}, {seed})"
        self.settings = {"type": "words", "dim": dim, "seed": seed}

    async def embed(self, texts: Sequence[str], kind: str = "passage") -> np.ndarray:
        return self.embed_now(texts)

    def embed_now(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.asarray([word_vector(text, self.dim) for text in texts], np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    async def close(self) -> None:
        pass


class EmbeddingStub:
    """OpenAI's /embeddings by `word_vector`; rows come in reverse order, which their index allows."""

    def __init__(self, dim: int = 16) -> None:
        self.dim = dim
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        rows = [{"index": i, "embedding": word_vector(text, self.dim)} for i, text in enumerate(body["input"])]
        return web.json_response({"data": rows[::-1]})
