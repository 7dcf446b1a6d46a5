"""The package: one that is made for the tests, and the real one where it is installed."""

import asyncio
import importlib
import sys
from dataclasses import replace

import pytest

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import EnvConfig, RunConfig
from orchestra_jax.config.tools import MenuRule, ToolsConfig
from orchestra_jax.envs.tau2.environment import Tau2Environment
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.episode import OrchestratorPrice
from tests.envs.tau2 import made

FREE = OrchestratorPrice(PriceList.from_config({"id": "free", "date": "2025-01-01", "source": "made up", "entries": {
    "orchestrator": {"input": 0.0, "output": 0.0}}}))  # fmt: skip


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Makes the made package the one that is found."""
    root = str(made.write(tmp_path_factory.mktemp("package")))
    sys.path.insert(0, root)
    importlib.invalidate_caches()
    yield
    sys.path.remove(root)
    importlib.invalidate_caches()


def cfg(**options):
    env = EnvConfig(name="tau2", options={"domains": ["airline"], **options})
    return replace(RunConfig(), env=env, tools=ToolsConfig(menu=MenuRule(form="none")))


@pytest.fixture(scope="module")
def environment(package):
    """Both made domains, all tasks."""
    return Tau2Environment(cfg(domains=["airline", "telecom"], evaluate="all"))


def play(environment, script, tasks, limits=None):
    collector = Collector(environment, None, limits or RolloutLimits(max_calls=200), FREE)
    return asyncio.run(collector.play(script, tasks, budget=Budget()))


def plan(*actions):
    """A script of these actions, the last of them until the end."""
    return lambda task, seen: actions[min(len(seen), len(actions) - 1)]


def task_of(environment, name):
    return next(task for task in environment.held_out(9999) if task.id == name)
