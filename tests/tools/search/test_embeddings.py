"""The embedding endpoint against a real HTTP server with faults."""

import json
import logging

import numpy as np
import pytest
from aiohttp import web

from orchestra_jax.tools.search.embeddings import INSTRUCTION, EndpointEmbedder
from orchestra_jax.types import InfrastructureError
from tests.tools.http_stub import EmbeddingStub, serving, word_vector

KEY = "sk-very-secret-0123"


def unit(rows: list[list[float]]) -> np.ndarray:
    matrix = np.asarray(rows, np.float32)
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


async def test_endpoint_batches_keep_their_order_and_queries_get_the_instruction():
    stub = EmbeddingStub()
    async with serving(stub) as url:
        embedder = EndpointEmbedder(f"{url}/v1", "qwen", batch=4, concurrency=3)
        texts = [f"passage number {i}" for i in range(10)] + [""]
        vectors = await embedder.embed(texts)
        np.testing.assert_allclose(vectors[:10], unit([word_vector(text) for text in texts[:10]]), rtol=1e-5)
        assert vectors.dtype == np.float32
        assert sorted(len(body["input"]) for body in stub.bodies) == [3, 4, 4]
        (query,) = await embedder.embed(["who?"], "query")
        assert stub.bodies[-1]["input"] == [f"Instruct: {INSTRUCTION}\nQuery:who?"]
        assert stub.bodies[-1]["model"] == "qwen"
        assert np.linalg.norm(query) == pytest.approx(1)
        assert (await embedder.embed([])).shape[0] == 0
        await embedder.close()


async def test_endpoint_cuts_dimensions_and_long_texts():
    stub = EmbeddingStub()
    async with serving(stub) as url:
        embedder = EndpointEmbedder(url, "qwen", dim=4, max_chars=6, instruction="")
        vectors = await embedder.embed(["one two three"], "query")
        assert stub.bodies[0]["input"] == ["one tw"]
        np.testing.assert_allclose(vectors, unit([word_vector("one tw")[:4]]), rtol=1e-5)
        await embedder.close()


async def test_key_comes_from_the_environment_and_stays_out_of_errors(monkeypatch, caplog):
    stub = EmbeddingStub()
    with pytest.raises(ValueError, match=r"\$EMBED_KEY, which is not set"):
        EndpointEmbedder("http://127.0.0.1:1", "m", key_env="EMBED_KEY")
    monkeypatch.setenv("EMBED_KEY", KEY)

    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=401, text=f"bad key {request.headers['Authorization']}")

    with caplog.at_level(logging.DEBUG):
        async with serving(stub) as url:
            embedder = EndpointEmbedder(url, "m", key_env="EMBED_KEY")
            await embedder.embed(["a"])
            await embedder.close()
        assert stub.headers[0]["Authorization"] == f"Bearer {KEY}"
        async with serving(refuse) as url:
            embedder = EndpointEmbedder(url, "m", key_env="EMBED_KEY")
            with pytest.raises(InfrastructureError, match="status 401") as caught:
                await embedder.embed(["a"])
            await embedder.close()
    assert KEY not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text} {json.dumps(embedder.settings)}"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"data": []}', "0 vectors for 2 texts"),
        (b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}', "2 vectors for 2 texts"),
        (b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [0]}]}', "zero or not finite"),
        (b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1e300]}]}', "zero or not finite"),
        (b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [NaN]}]}', "not finite"),
        (b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]}', "cannot be used"),
        (b'{"data": [{"index": 0, "embedding": ["a"]}, {"index": 1, "embedding": ["a"]}]}', "cannot be used"),
        (b'{"data": [{"index": 0, "embedding": [[1]]}, {"index": 1, "embedding": [[1]]}]}', "cannot be used"),
        (b'{"data": [{"index": 0, "embedding": {}}, {"index": 1, "embedding": {}}]}', "cannot be used"),
        *((body, "cannot be used") for body in (b'{"data": [7]}', b'{"data": {"a": 1}}', b'{"data": 7}', b"7", b"[]")),
        (b'{"error": "no"}', "cannot be used"),
        (b"[" * 50_000 + b"]" * 50_000, "cannot be read"),
    ],
    ids=range(16),
)
async def test_answers_that_are_no_embeddings(body: bytes, problem: str):
    async def wrong(request: web.Request) -> web.Response:
        return web.Response(body=body)

    async with serving(wrong) as url:
        embedder = EndpointEmbedder(url, "m", dim=1, backoff_s=0.01)
        with pytest.raises(InfrastructureError, match=problem):
            await embedder.embed(["a", "b"])
        await embedder.close()


async def test_one_failed_batch_fails_all_as_infrastructure():
    stub = EmbeddingStub()

    async def half(request: web.Request) -> web.StreamResponse:
        return web.Response(status=400) if "7" in (await request.json())["input"] else await stub(request)

    async with serving(half) as url:
        embedder = EndpointEmbedder(url, "m", batch=1)
        with pytest.raises(InfrastructureError, match="status 400"):
            await embedder.embed([str(i) for i in range(10)])
        await embedder.close()


async def test_batches_with_vectors_of_two_lengths_are_an_infrastructure_failure():
    async def two_models(request: web.Request) -> web.Response:
        size = 2 if (await request.json())["input"] == ["b"] else 3
        return web.json_response({"data": [{"index": 0, "embedding": [1.0] * size}]})

    async with serving(two_models) as url:
        embedder = EndpointEmbedder(url, "m", batch=1)
        with pytest.raises(InfrastructureError, match="gave vectors of 2 and of 3 numbers"):
            await embedder.embed(["a", "b"])
        await embedder.close()


def test_settings_errors():
    with pytest.raises(ValueError, match="is no URL"):
        EndpointEmbedder("localhost:30000", "m")
    with pytest.raises(ValueError, match="at least 1"):
        EndpointEmbedder("http://h", "m", batch=0)
