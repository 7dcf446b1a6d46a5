"""A real server that releases its memory and resumes it: nothing is freed on a CPU, but its scheduler does its part."""

import asyncio
from typing import Any

import pytest

from orchestra_jax.engines.sglang.process import reviver
from tests.engines.contract import Subject, prompt_of
from tests.engines.sglang.stub import one
from tests.sglang.conftest import CONFIG, LENGTH, PARAMS, START_SECONDS, engine_on

pytestmark = pytest.mark.sglang

NO_ENGINE: Any = None
LEARNER = Subject(NO_ENGINE, CONFIG, PARAMS[0], PARAMS[1], LENGTH)


@pytest.fixture
async def engine(victim, tmp_path):
    found = engine_on([victim], tmp_path, revive=reviver([victim]))
    await found.update_weights(PARAMS[0], 0)
    yield found
    await found.close()


async def expect_weights(engine, number):
    """What it samples has the log-probs of `PARAMS[number]`, and nothing of an older cache."""
    prompts = [prompt_of(i, 4 + i, CONFIG.vocab_size) for i in range(6)]
    found = await asyncio.gather(*(one(engine, prompt, 8) for prompt in prompts))
    assert {generation.cached_tokens for generation in found} == {0}
    LEARNER.expect_learner(prompts, found, params=PARAMS[number])


async def test_after_a_release_and_an_update_it_samples_with_the_new_weights(engine):
    async with asyncio.timeout(START_SECONDS):
        await expect_weights(engine, 0)
        for version, number in enumerate((0, 1, 0), 1):
            await engine.release_memory()
            await engine.release_memory()
            with pytest.raises(RuntimeError, match="released their memory"):
                await one(engine)
            await engine.update_weights(PARAMS[number], version)
            assert engine.servers_up
            await expect_weights(engine, number)


async def test_a_server_killed_while_the_trainer_has_its_memory_returns_with_the_new_weights(engine, victim):
    async with asyncio.timeout(START_SECONDS):
        await engine.release_memory()
        await victim.stop(grace_s=0.0)
        await engine.update_weights(PARAMS[1], 7)
        await expect_weights(engine, 1)
        await engine.release_memory()
        await engine.update_weights(PARAMS[0], 8)
        await expect_weights(engine, 0)
