"""Scripts that play environments without prices, for the tests of τ²-Bench and BFCL."""

import asyncio

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.money import price_files
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.collector import Collector

ENTRIES = {"orchestrator": {"input": 0.0, "output": 0.0}}
FREE = price_files.from_config({"id": "free", "date": "2025-01-01", "source": "made up", "entries": ENTRIES})


def play(environment, script, tasks, chat=None):
    collector = Collector(environment, chat, RolloutLimits(max_calls=200), FREE)
    return asyncio.run(collector.play(script, tasks, budget=Budget()))


def plan(*actions):
    """Return a script of these actions, which repeats the last one until the end."""
    return lambda task, seen: actions[min(len(seen), len(actions) - 1)]


def task_of(environment, name):
    return next(task for task in environment.held_out(9999) if task.id == name)
