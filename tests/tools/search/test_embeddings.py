"""Embedders: the endpoint against a real HTTP server with faults, and the local model against TF-IDF by hand."""

import asyncio
import json
import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from orchestra_jax.tools.search.embeddings import INSTRUCTION, EndpointEmbedder, LsaEmbedder, load_embedder
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
    assert KEY not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text} {json.dumps(embedder.settings())}"


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
        embedder = EndpointEmbedder(url, "m", dim=1)
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


TEXTS = [
    "Oslo is the capital of Norway and a port in the south of Norway",
    "Rome is the capital of Italy and an old city",
    "A fjord is a long narrow inlet between cliffs; Norway has fjords",
    "Pasta is a dish of Italy, and pizza is one too",
    "The port of Bergen in Norway has ships",
]


def tf_idf(texts: list[str]) -> np.ndarray:
    """Cosine-ready TF-IDF as in the docstring, with a plain dictionary."""
    import re

    from bm25s.stopwords import STOPWORDS_EN

    counts = [Counter(w for w in re.findall(r"\w+", t.lower()) if w not in STOPWORDS_EN) for t in texts]
    words = sorted(set().union(*counts))
    idf = {w: np.log((1 + len(texts)) / (1 + sum(w in c for c in counts))) + 1 for w in words}
    rows = np.array([[(1 + np.log(c[w])) * idf[w] if c[w] else 0.0 for w in words] for c in counts])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_local_model_keeps_the_inner_products_of_tf_idf():
    expected = tf_idf(TEXTS) @ tf_idf(TEXTS).T
    complete = LsaEmbedder(dim=5, sketch=0)  # five texts span five dimensions: nothing is left out
    complete.fit(TEXTS)
    vectors = complete.embed_now(TEXTS)
    np.testing.assert_allclose(vectors @ vectors.T, expected, atol=1e-4)
    sketched = LsaEmbedder(dim=1, sketch=20_000)
    sketched.fit(TEXTS)
    vectors = sketched.embed_now(TEXTS)
    np.testing.assert_allclose(vectors @ vectors.T, expected, atol=0.05)


def test_sketch_keeps_words_that_the_singular_vectors_drop():
    texts = [f"river water boat wind {word}" for word in ("alpha", "beta", "gamma", "delta", "omega")] * 4
    plain, sketched = LsaEmbedder(dim=1, sketch=0), LsaEmbedder(dim=1, sketch=512)
    plain.fit(texts)
    sketched.fit(texts)
    query = ["boat gamma"]
    assert np.ptp(plain.embed_now(query) @ plain.embed_now(texts[:5]).T) < 1e-3
    scores = (sketched.embed_now(query) @ sketched.embed_now(texts[:5]).T)[0]
    assert scores.argmax() == 2
    assert scores[2] > np.delete(scores, 2).max() + 0.1
    unseen = sketched.embed_now(["zebra quagga", "zebra okapi"])
    assert unseen[0] @ unseen[1] > 0.3


async def test_local_model_is_deterministic_and_comes_back(tmp_path: Path):
    first, second, other = LsaEmbedder(dim=3, sketch=32), LsaEmbedder(dim=3, sketch=32), LsaEmbedder(dim=3, sketch=32)
    first.prepare(tmp_path, TEXTS)
    second.fit(TEXTS)
    other.fit(TEXTS[:4])
    loaded = load_embedder(json.loads(json.dumps(first.settings())), tmp_path)
    for embedder in (second, loaded):
        np.testing.assert_array_equal(await embedder.embed(TEXTS), await first.embed(TEXTS))
        assert embedder.identity == first.identity
    assert other.identity != first.identity
    assert other.recipe == first.recipe
    kept = LsaEmbedder(dim=3, sketch=32)
    kept.prepare(tmp_path, ["completely different texts"])  # reads what is there
    assert kept.identity == first.identity


async def test_local_model_without_words():
    embedder = LsaEmbedder(dim=2, sketch=8)
    with pytest.raises(ValueError, match="has learned nothing"):
        embedder.embed_now(["a"])
    with pytest.raises(ValueError, match="at least one passage with a word"):
        embedder.fit(["", "the of"])
    embedder.fit(["lonely"])
    np.testing.assert_array_equal(embedder.embed_now(["", "?!"]), np.zeros((2, 10), np.float32))
    assert embedder.embed_now([]).shape == (0, 10)
    assert np.linalg.norm(embedder.embed_now(["lonely"])) == pytest.approx(1, abs=1e-5)


def test_settings_errors(tmp_path: Path):
    with pytest.raises(ValueError, match="is no URL"):
        EndpointEmbedder("localhost:30000", "m")
    with pytest.raises(ValueError, match="at least 1"):
        LsaEmbedder(dim=0)
    with pytest.raises(ValueError, match="at least 1"):
        EndpointEmbedder("http://h", "m", batch=0)
    with pytest.raises(ValueError, match="embedded by 'mine'"):
        load_embedder({"type": "mine"}, tmp_path)
    with pytest.raises(FileNotFoundError, match="missing; build the index again"):
        load_embedder(LsaEmbedder().settings(), tmp_path)
