"""Stubs of an SGLang server, and engines over them."""

import asyncio

import pytest


@pytest.fixture
async def servers():
    """Two stubs of a server that listen."""
    from tests.engines.sglang.stub import StubServer

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
    from orchestra_jax.engines.sglang.engine import SGLangEngine
    from tests.engines.sglang.stub import SECONDS, VOCAB, StubWeightSync

    engines = []

    def build(count=1, **options):
        settings = {
            "max_length": 64,
            "vocab_size": VOCAB,
            "weight_sync": StubWeightSync(),
            "backoff_s": 0.01,
            "probe_s": 0.02,
        }
        engine = SGLangEngine([server.url for server in servers[:count]], **(settings | options))
        engines.append(engine)
        return engine

    yield build
    for engine in engines:
        async with asyncio.timeout(SECONDS):
            await engine.close()
