"""Recorded calls: lookups per second, and eight processes that write one file.

    .venv/bin/python benchmarks/tools.py --only replay

A call has a prompt of 1 kB and an answer of 1 kB with one ledger row. `Replay.call` is what a tool awaits: it makes the
key, reads the row and decodes it. The file was just written, so it is in the page cache. A lookup is beside two things
it cannot be faster than: SQLite's own SELECT of the same rows, and the SHA-256 of the request's JSON. Writers are
processes of their own; each waits for a call to be on disk (fsync) before it makes the next 4 at a time.
"""

import asyncio
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from orchestra_jax.money.replay import Replay
from orchestra_jax.money.store import Recorded, key
from orchestra_jax.types import Usage

CALLS = 5_000
WRITERS, WRITES = 8, 250
TARGET = 20_000  # lookups per second


def request(number: int | str) -> dict[str, Any]:
    content = f"Question {number}: " + "which of these passages answers it? " * 28
    return {"model": "gpt-5", "messages": [{"role": "user", "content": content}], "max_tokens": 1000, "sample": 0}


async def answer() -> Recorded:
    usage = Usage("gpt-5", prompt_tokens=250, completion_tokens=200, cost_usd=0.0023125, seconds=3.25, price_list="p")
    return Recorded({"text": "It is the third one, because " * 35, "finish_reason": "stop"}, (usage,))


async def refuse() -> Recorded:
    raise AssertionError("A replayed call must not be made.")


async def lookups(file: Path) -> dict[str, float]:
    """Operations per second of one round over all recorded calls."""
    replay = Replay(file, "replay")
    requests = [request(number) for number in range(CALLS)]
    names = [key("chat", each) for each in requests]
    seconds = {}
    started = time.perf_counter()
    for each in requests:
        await replay.call("chat", each, refuse)
    seconds["Replay.call"] = time.perf_counter() - started
    started = time.perf_counter()
    for each in requests:
        key("chat", each)
    seconds["key of a request"] = time.perf_counter() - started
    replay.close()
    database = sqlite3.connect(file)
    started = time.perf_counter()
    for name in names:
        database.execute("SELECT recorded FROM calls WHERE key = ?", (name,)).fetchone()
    seconds["bare SELECT"] = time.perf_counter() - started
    database.close()
    return {name: CALLS / value for name, value in seconds.items()}


async def record(file: Path, numbers: list[str]) -> None:
    """Records calls, four at a time, each of them on disk before it returns."""
    replay = Replay(file, "record")
    for start in range(0, len(numbers), 4):
        await asyncio.gather(*(replay.call("chat", request(number), answer) for number in numbers[start : start + 4]))
    replay.close()


def writers(file: Path) -> tuple[float, int]:
    """(rows per second, rows lost) of eight processes that start at once on a file that is not there yet."""
    started = time.perf_counter()
    command = [sys.executable, __file__, str(file)]
    processes = [subprocess.Popen([*command, f"w{number}"]) for number in range(WRITERS)]
    for process in processes:
        if process.wait():
            raise RuntimeError("A writer failed; its output is above.")
    seconds = time.perf_counter() - started
    expected = {key("chat", request(f"w{number}-{call}")) for number in range(WRITERS) for call in range(WRITES)}
    database = sqlite3.connect(file)
    found = {name for (name,) in database.execute("SELECT key FROM calls")}
    database.close()
    return len(expected) / seconds, len(expected - found)


def measure(rounds: int) -> list[dict[str, Any]]:
    """One row per thing measured: {what, median, best, unit, note}."""
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "calls.db"
        asyncio.run(record_all(file))
        for number in range(rounds):
            for what, rate in asyncio.run(lookups(file)).items():
                rates.setdefault(what, []).append(rate)
            rate, lost = writers(Path(folder) / f"writers{number}.db")
            rates.setdefault(f"{WRITERS} writer processes", []).append(rate)
            if lost:
                raise RuntimeError(f"{lost} of {WRITERS * WRITES} rows were lost.")
    notes = {
        "Replay.call": f"target: more than {TARGET:,}/s",
        f"{WRITERS} writer processes": f"{WRITERS * WRITES} rows, none lost; the start of the processes included",
    }
    return [
        {
            "what": what,
            "median": statistics.median(values),
            "best": max(values),
            "unit": "/s",
            "note": notes.get(what, ""),
        }
        for what, values in rates.items()
    ]


async def record_all(file: Path) -> None:
    replay = Replay(file, "record")
    await asyncio.gather(*(replay.call("chat", request(number), answer) for number in range(CALLS)))
    replay.close()


if __name__ == "__main__":  # a writer's own process
    asyncio.run(record(Path(sys.argv[1]), [f"{sys.argv[2]}-{call}" for call in range(WRITES)]))
