"""The embedding endpoint against a real HTTP server with faults."""

import asyncio
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
        assert embedder.prompt_tokens == 11
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


@pytest.mark.parametrize("fault", ["503", "429", "drop", "garbage", "slow"])
async def test_transient_faults_are_tried_again(fault: str):
    stub, calls = EmbeddingStub(), []

    async def flaky(request: web.Request) -> web.StreamResponse:
        calls.append(request)
        if len(calls) > 2:
            return await stub(request)
        if fault == "drop":
            request.transport.close()
        if fault == "slow":
            await asyncio.sleep(5)
        if fault == "garbage":
            return web.Response(text="<html>")
        return web.Response(status=int(fault) if fault.isdigit() else 500, headers={"Retry-After": "0"})

    async with serving(flaky) as url:
        embedder = EndpointEmbedder(url, "m", timeout_s=0.5, retries=2, backoff_s=0.01)
        assert (await embedder.embed(["a"])).shape == (1, 16)
        assert len(calls) == 3
        await embedder.close()
        calls.clear()
        embedder = EndpointEmbedder(url, "m", timeout_s=0.5, retries=1, backoff_s=0.01, batch=1)
        with pytest.raises(InfrastructureError, match="The server http"):
            await embedder.embed(["a"])
        await embedder.close()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"data": []}, "0 vectors for 2 texts"),
        ({"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}, "2 vectors for 2 texts"),
        ({"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [0.0]}]}, "zero or not finite"),
        ({"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [float("nan")]}]}, "not finite"),
        ({"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]}, "cannot be used"),
        ({"error": "no"}, "cannot be used"),
        ([], "cannot be used"),
    ],
)
async def test_answers_that_are_no_embeddings(answer, problem: str):
    async def wrong(request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(answer))

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


def test_settings_errors():
    with pytest.raises(ValueError, match="is no URL"):
        EndpointEmbedder("localhost:30000", "m")
    with pytest.raises(ValueError, match="at least 1"):
        EndpointEmbedder("http://h", "m", batch=0)
