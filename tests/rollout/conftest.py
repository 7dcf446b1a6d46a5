"""Tokenizers that what is said is encoded with: this world's words, and Qwen3's where its files are. Stub servers."""

import asyncio

import pytest

from orchestra_jax.models import tokenizer as tok
from tests.rollout.scripted import word_tokenizer


@pytest.fixture(scope="session")
def words():
    return word_tokenizer()


@pytest.fixture(scope="session")
def real(data_dir):
    return tok.load(data_dir / "qwen3-tokenizer")


@pytest.fixture(params=["words", "real"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
async def servers():
    """Two stubs of a server that listen."""
    from tests.rollout.sglang_stub import StubServer  # needs aiohttp

    found = [StubServer(), StubServer()]
    for server in found:
        await server.start()
    yield found
    for server in found:
        server.gate.set()
        await server.kill()


@pytest.fixture
async def make(servers):
    """SGLang engines over the first `count` stubs, quick to retry, closed at the end."""
    from orchestra_jax.rollout.sglang import SGLangEngine
    from tests.rollout.sglang_stub import SECONDS, VOCAB, StubPush

    engines = []

    def build(count=1, **options):
        settings = {"max_length": 64, "vocab_size": VOCAB, "push": StubPush(), "backoff_s": 0.01, "probe_s": 0.02}
        engine = SGLangEngine([server.url for server in servers[:count]], **(settings | options))
        engines.append(engine)
        return engine

    yield build
    for engine in engines:
        async with asyncio.timeout(SECONDS):
            await engine.close()
