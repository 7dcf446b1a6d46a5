"""Scripts that play environments, at the prices of a run or without any."""

import asyncio

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.money import price_files
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.price_book import price_book
from orchestra_jax.rollout.collector import Collector

ENTRIES = {"orchestrator": {"input": 0.0, "output": 0.0}}
FREE = price_files.from_config({"id": "free", "date": "2025-01-01", "source": "made up", "entries": ENTRIES})


def collector(environment, cfg, chat=None):
    """Return the collector of a run's episodes, at its limits and prices."""
    return Collector(environment, chat, cfg.rollout.limits, price_book(cfg).base)


def play(environment, script, tasks, chat=None):
    free = Collector(environment, chat, RolloutLimits(max_calls=200), FREE)
    return asyncio.run(free.play(script, tasks, budget=Budget()))


def plan(*actions):
    """Return a script of these actions, which repeats the last one until the end."""
    return lambda task, seen: actions[min(len(seen), len(actions) - 1)]


def task_of(environment, name):
    return next(task for task in environment.held_out(9999) if task.id == name)
