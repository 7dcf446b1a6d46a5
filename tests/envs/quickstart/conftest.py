"""The quickstart world, its environment and some of its tasks, once for each file of tests."""

import asyncio
from collections.abc import Iterator

import pytest

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment, quickstart_chat
from orchestra_jax.envs.quickstart.world import QuickstartWorld
from orchestra_jax.money.prices import Price, PriceList
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.types import Task
from tests.envs.quickstart.posed import SAMPLE, SPLITS


@pytest.fixture(scope="module")
def world() -> QuickstartWorld:
    return QuickstartWorld(0)


@pytest.fixture(scope="module")
def environment(world: QuickstartWorld) -> Iterator[QuickstartEnvironment]:
    made = QuickstartEnvironment(RunConfig())
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def chat(world: QuickstartWorld) -> ChatFormat:
    return ChatFormat(quickstart_chat().tokenizer, compact_menu=True)


@pytest.fixture(scope="module")
def collector(environment: QuickstartEnvironment, chat: ChatFormat) -> Collector:
    prices = PriceList("test", "2026-11-20", "test", {"orchestrator": Price()})
    limits = RolloutLimits(max_turns=6, max_calls=5, max_length=200, max_new_tokens=40)
    return Collector(environment, chat, limits, prices, seconds_per_token=0.0)


@pytest.fixture(scope="module")
def tasks(world: QuickstartWorld) -> dict[str, list[Task]]:
    return {split: [world.task(split, index) for index in range(SAMPLE)] for split in SPLITS}
