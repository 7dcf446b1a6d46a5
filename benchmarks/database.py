"""Database worlds: milliseconds to reset an episode, to hash it, and of a call, for a database of 5 MB.

    .venv/bin/python benchmarks/database.py
    ORCHESTRA_DATA=... .venv/bin/python benchmarks/database.py --rounds 20 --json out.json    # the released ones too

load     reading the JSON and freezing it: once a process
reset    a fresh episode (goal: below 1 ms), beside `copy.deepcopy` of the database
hash     the state after an episode that changed 10 entries (goal: below 5 ms), beside SHA-256 of the whole as JSON;
         the hash keeps nothing from a hash before
call     one that reads an entry, and one that changes one
episode  kB that each of 1,000 open episodes holds, with 10 changed entries

The synthetic database has 5,000 entries of 1 kB in five tables. With ORCHESTRA_DATA those of ToolScale and τ²-Bench
follow. A goal that is missed ends the run with status 1. The median is that of the rounds.
"""

import argparse
import copy
import hashlib
import json
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from short import keep, parse, table_of

from orchestra_jax.envs.database.session import Desk, Kind, LocalWorld, Session, database_tool
from orchestra_jax.envs.database.state import Database
from orchestra_jax.types import ToolCall

GOALS = {"reset": 1.0, "hash": 5.0}  # milliseconds
CHANGES, OPEN = 10, 1000


@database_tool(Kind.READ)
def look(desk: Desk, table: str, name: str) -> Any:
    """Shows an entry."""
    return desk.get(table, name)


@database_tool(Kind.WRITE)
def mark(desk: Desk, table: str, name: str) -> str:
    """Changes an entry."""
    desk.edit(table, name)["marked"] = True
    return "Done."


def synthetic() -> dict[str, Any]:
    """5,000 entries of about 1 kB."""
    items = [{"sku": f"S{n}", "price": n + 0.25, "note": "as it was ordered " * 3} for n in range(10)]
    return {
        f"table{t}": {f"E{t}-{n}": {"id": f"E{t}-{n}", "number": n, "items": copy.deepcopy(items)} for n in range(1000)}
        for t in range(5)
    }


def databases() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and tables: the synthetic one, then what ORCHESTRA_DATA holds."""
    yield "synthetic", synthetic()
    for path in sorted(Path(os.environ.get("ORCHESTRA_DATA", "/nonexistent")).glob("t*/*/db.json")):
        tables = json.loads(path.read_text())
        if sum(map(len, tables.values())) >= CHANGES:
            yield f"{path.parent.parent.name}/{path.parent.name}", tables


def milliseconds(rounds: int, work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds)


def measure(name: str, tables: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """One row: what each took, in milliseconds."""
    start = time.perf_counter()
    database = Database(tables)
    load = 1000 * (time.perf_counter() - start)
    world = LocalWorld(name, database, [look, mark], datetime(2025, 1, 1, tzinfo=UTC))
    keys = [(table, entry) for table, rows in tables.items() for entry in rows]
    some = keys[:: max(1, len(keys) // CHANGES)][:CHANGES]

    def episode() -> Session:
        session = Session(world)
        for table, entry in some:
            if session.call(ToolCall("mark", {"table": table, "name": entry})).is_error:
                raise RuntimeError(f"{table} {entry} could not be changed.")
        return session

    def hash_of_ten(sessions: Iterator[Session]) -> str:
        database._digests.clear()  # as if no episode had changed these entries before
        return next(sessions).state.hash()

    ready = iter([episode() for _ in range(rounds)])
    session, first = Session(world), dict(zip(("table", "name"), some[0], strict=True))
    few = max(1, rounds // 5)
    tracemalloc.start()
    kept = [episode() for _ in range(OPEN)]
    held = tracemalloc.get_traced_memory()[0] / len(kept) / 1000
    tracemalloc.stop()
    return {
        "database": name,
        "MB": len(json.dumps(tables)) / 1e6,
        "load": load,
        "reset": milliseconds(rounds, lambda: Session(world)),
        "deepcopy": milliseconds(few, lambda: copy.deepcopy(tables)),
        "hash": milliseconds(rounds, lambda: hash_of_ten(ready)),
        "whole JSON": milliseconds(few, lambda: hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).digest()),
        "read call": milliseconds(rounds, lambda: session.call(ToolCall("look", first))),
        "write call": milliseconds(rounds, lambda: session.call(ToolCall("mark", first))),
        "episode kB": held,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", type=Path, help="keeps everything that was measured")
    options = parse(parser, "--rounds", "2")
    rows = [measure(name, tables, options.rounds) for name, tables in databases()]
    Console().print(table_of(f"milliseconds, median of {options.rounds} rounds", rows))
    keep(options.json, rows)
    missed = [
        f"{row['database']}: {what} {row[what]:.3g} ms" for row in rows for what in GOALS if row[what] >= GOALS[what]
    ]
    print("Goals missed: " + "; ".join(missed) if missed else f"Goals held: {GOALS} ms.")
    return bool(missed) and not options.smoke


if __name__ == "__main__":
    sys.exit(main())
