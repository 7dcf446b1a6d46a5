"""Tokenizers that what is said is encoded with, of this world's words and Qwen3's; a clock that jumps."""

import asyncio

import pytest

from orchestra_jax.models import saved_tokenizer
from orchestra_jax.rollout import watchdog
from tests.rollout.jumping import JumpingLoop
from tests.rollout.scripted import word_tokenizer


@pytest.fixture(scope="session")
def words():
    return word_tokenizer()


@pytest.fixture(scope="session")
def qwen3(data_dir):
    return saved_tokenizer.load(data_dir / "qwen3-tokenizer")


@pytest.fixture(params=["words", "qwen3"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def run(monkeypatch):
    """Runs a coroutine function on a fresh jumping clock; the watchdog reads the same clock."""
    loops = []
    monkeypatch.setattr(watchdog, "monotonic", lambda: loops[-1].time())

    def run(main):
        loops.append(JumpingLoop())
        with asyncio.Runner(loop_factory=lambda: loops[-1]) as runner:
            return runner.run(main())

    return run
