"""Worlds whose tools run in the sandbox: milliseconds of a call in a warm worker, beside a call in this process.

    .venv/bin/python benchmarks/sandboxed_worlds.py
    ORCHESTRA_DATA=... .venv/bin/python benchmarks/sandboxed_worlds.py --repo CLONE    # ToolScale's domains too

here     a call in this process
worker   one in a warm worker, with 3 changed entries that go in and what it changed that comes out (goal: below 5 ms)
CPU      what this process spends on a call in a worker
start    a worker of its own for each call: what a warm one saves

The synthetic database is that of `database.py`, 5 MB. A domain's calls are all its tools that take one id, on five ids
of each table; the slowest tool that an id makes succeed is named, whatever it has to walk through. A missed goal ends
the run with status 1. Every figure is a median.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from database import look, mark, synthetic
from rich.console import Console
from short import parse, table_of

from orchestra_jax.envs.database.remote import RemoteWorld
from orchestra_jax.envs.database.session import LocalWorld, Session
from orchestra_jax.envs.database.state import Database
from orchestra_jax.envs.toolscale import domains
from orchestra_jax.tools.python.isolation import why_not
from orchestra_jax.types import ToolCall

GOAL = 5.0  # milliseconds
CHANGES = 3
NOW = datetime(2025, 1, 1, tzinfo=UTC)
SOURCE = '''
from typing import Any
from orchestra_jax.envs.database.session import Desk, Kind, database_tool

@database_tool(Kind.READ)
def look(desk: Desk, table: str, name: str) -> Any:
    """Shows an entry."""
    return desk.get(table, name)

@database_tool(Kind.WRITE)
def mark(desk: Desk, table: str, name: str) -> str:
    """Changes an entry."""
    desk.edit(table, name)["marked"] = True
    return "Done."
'''


def timed(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Milliseconds."""
    start = clock()
    work()
    return 1000 * (clock() - start)


def measure_synthetic(rounds: int, isolation: str) -> dict[str, Any]:
    """A world of ours, in both ways."""
    tables = synthetic()
    here = LocalWorld("synthetic", Database(tables), [look, mark], NOW).session()
    world = RemoteWorld.of_source("synthetic", SOURCE, tables, NOW, isolation=isolation)
    session, calls = world.session(), [ToolCall("mark", {"table": "table1", "name": f"E1-{n}"}) for n in range(CHANGES)]
    for each in calls:
        here.call(each)
        session.call(each)

    def alone() -> None:
        other = RemoteWorld.of_source("synthetic", SOURCE, tables, NOW, isolation=isolation)
        other.session().call(calls[0])
        other.close()

    call = calls[0]
    row = {
        "world": "synthetic, 5 MB",
        "calls": rounds,
        "here": statistics.median(timed(lambda: here.call(call)) for _ in range(rounds)),
        "worker": statistics.median(timed(lambda: session.call(call)) for _ in range(rounds)),
        "CPU": timed(lambda: [session.call(call) for _ in range(rounds)], time.process_time) / rounds,
        "start": statistics.median(timed(alone) for _ in range(3)),
        "slowest tool": "",
    }
    world.close()
    return row


def measure_domain(name: str, code: Path, data: list[Path], isolation: str) -> dict[str, Any]:
    """One of ToolScale's domains: the tools of one id."""
    start = timed(lambda: domains.world(name, code, data, isolation=isolation).close())
    world = domains.world(name, code, data, isolation=isolation)
    ids = [entry for rows in world.database.tables.values() for entry in list(rows)[:5]]
    tools = {tool: spec.parameters["required"] for tool, spec in world.specs.items()}
    took, cpu, by_tool = list[float](), list[float](), dict[str, list[float]]()
    for tool, required in tools.items():
        if len(required) != 1 or tool == "calculate":
            continue
        for entry in ids:
            session = _session(world)
            call = ToolCall(tool, {required[0]: entry})
            began = time.process_time()
            milliseconds = timed(lambda session=session, call=call: session.call(call))  # type: ignore[misc]
            cpu.append(1000 * (time.process_time() - began))
            took.append(milliseconds)
            if session.done:
                by_tool.setdefault(tool, []).append(milliseconds)
    world.close()
    medians = {tool: statistics.median(each) for tool, each in by_tool.items()}
    slowest = max(medians, key=lambda tool: medians[tool])
    return {
        "world": name,
        "calls": len(took),
        "here": float("nan"),
        "worker": statistics.median(took),
        "CPU": statistics.median(cpu),
        "start": start,
        "slowest tool": f"{slowest} {medians[slowest]:.3g}",
    }


def _session(world: RemoteWorld) -> Session:
    """One that changed a few entries."""
    session = world.session()
    rows = next(iter(world.database.tables.items()))
    session.state.apply({rows[0]: {name: dict(entry) for name, entry in list(rows[1].items())[:CHANGES]}})
    return session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repo", type=Path, help="a clone of the authors' repository")
    options = parse(parser, "--rounds", "5")
    isolation = "auto" if None in map(why_not, ("bubblewrap", "namespaces")) else "none"
    rows = [measure_synthetic(options.rounds, isolation)]
    if options.repo:
        code, data = domains.code_folder(options.repo), domains.data_folders(None, options.repo)
        rows += [measure_domain(name, code, data, isolation) for name in domains.DOMAINS]
    Console().print(table_of("milliseconds of a call", rows))
    here, worker, start = (rows[0][name] for name in ("here", "worker", "start"))
    print(f"A call in a warm worker takes {worker / here:.0f} x one here, and 1/{start / worker:.0f} of a start.")
    missed = [f"{row['world']}: {row['worker']:.3g} ms" for row in rows if row["worker"] >= GOAL]
    print("Goals missed: " + "; ".join(missed) if missed else f"Goal held: below {GOAL} ms.")
    return bool(missed) and not options.smoke


if __name__ == "__main__":
    sys.exit(main())
