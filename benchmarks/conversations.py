"""Database worlds at once: golden conversations through the collector, in this process and in the sandbox.

    .venv/bin/python benchmarks/conversations.py
    .venv/bin/python benchmarks/conversations.py --episodes 200 --workers 1 --json out.json

All episodes of a row are open at the same time, and every one must end solved: a state that leaks into another is seen
there. Reported are episodes and calls per second, KiB an open episode (traced), and the database's digest before and
after. The ratio is what the sandbox costs. Exit status 1: an episode was not solved, or the database changed.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from short import keep, parse, table_of

from orchestra_jax.config.compose import compose
from orchestra_jax.envs.database.environment import SHIPPED, DatabaseEnvironment
from orchestra_jax.envs.database.folder import load
from orchestra_jax.envs.database.frozen import digest
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.price_book import price_book
from orchestra_jax.rollout.collector import Collector


def measure(where: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row; `where` is "here" or "sandbox"."""
    cfg = compose("+experiment=database", f"tools.sandbox.workers={options.workers}")
    environment = DatabaseEnvironment(cfg)
    if where == "sandbox":
        for world in environment._worlds:
            world.close()
        opened = {
            folder.name: load(folder, trusted=False, workers=options.workers).world
            for folder in sorted(SHIPPED.iterdir())
            if (folder / "world.json").is_file()
        }
        environment._golden = {
            name: replace(task, world=opened[task.world.name]) for name, task in environment._golden.items()
        }
        environment._worlds = list(opened.values())
    tasks = next(environment.train_tasks(options.episodes))
    collector = Collector(environment, None, cfg.rollout.limits, price_book(cfg).base)
    script, budget = environment.baselines()["golden"], Budget(None, name="run")
    databases = {world.name: world.database for world in environment._worlds}
    before = {key: digest(json.dumps(each.tables, sort_keys=True)) for key, each in databases.items()}

    async def play() -> Any:
        return await collector.play(script, tasks, budget=budget, silent=True)

    seconds = []
    for _ in range(options.rounds):
        start = time.perf_counter()
        played = asyncio.run(play())
        seconds.append(time.perf_counter() - start)
    tracemalloc.start()
    episodes = [environment.reset(task, budget) for task in tasks]
    held = tracemalloc.get_traced_memory()[0] / len(episodes) / 1024
    tracemalloc.stop()
    median = statistics.median(seconds)
    after = {key: digest(json.dumps(each.tables, sort_keys=True)) for key, each in databases.items()}
    asyncio.run(environment.close())
    return {
        "where": where,
        "episodes": len(played),
        "solved": sum(t.solved for t in played),
        "unchanged": before == after,
        "seconds": median,
        "episodes/s": len(played) / median,
        "calls/s": sum(len(t.calls) for t in played) / median,
        "KiB an open one": held,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000, help="open at the same time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes of the sandbox for each world")
    parser.add_argument("--json", type=Path, help="keeps everything that was measured")
    options = parse(parser, "--episodes", "20", "--rounds", "1", "--workers", "1")
    rows = [measure(where, options) for where in ("here", "sandbox")]
    Console().print(table_of(f"golden conversations at once, median of {options.rounds} rounds", rows))
    print(f"The sandbox takes {rows[1]['seconds'] / rows[0]['seconds']:.1f} times as long.")
    keep(options.json, rows)
    return int(not all(row["solved"] == row["episodes"] and row["unchanged"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
