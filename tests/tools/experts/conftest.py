"""A stub of OpenAI's API, and clients of it that are closed in the end."""

import asyncio

import pytest

from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.expert import Expert
from tests.tools.openai_stub import PRICES


@pytest.fixture
async def make(stub):
    """Makes clients of the stub and closes them."""
    made = []

    def client(name="small", *, replay=None, limiter=None, backoff_s=0.001, **fields):
        expert = Expert(**{"name": name, "model": name, "base_url": stub.url, "max_tokens": 50} | fields)
        made.append(ExpertClient(expert, PRICES, replay=replay, limiter=limiter, backoff_s=backoff_s))
        return made[-1]

    yield client
    stub.gate.set()
    await asyncio.gather(*(client.close() for client in made))
