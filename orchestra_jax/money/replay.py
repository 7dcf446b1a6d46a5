"""Record and replay of outside calls: what was paid for once is kept by content and answered for nothing later.

    python -m orchestra_jax.money.replay stats CALLS.db
    python -m orchestra_jax.money.replay export CALLS.db CALLS.jsonl
    python -m orchestra_jax.money.replay merge INTO.db OTHER.db OTHER.jsonl ...

A replayed call gives the recorded value and usage, so cost, latency and reward are those of the recorded run. The file
is SQLite in WAL mode: many processes may read and write it at once, on one machine (SQLite has no safe locks on network
file systems). A row is on disk when `call` returns; killing the process loses none.
"""

import argparse
import asyncio
import hashlib
import json
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from orchestra_jax.types import Usage

MODES = ("off", "record", "replay", "replay_or_record")
BUSY_S = 60.0  # how long a write waits for those of other processes
BATCH = 256  # rows of one commit

_VERSION = 1
_TABLE = "CREATE TABLE calls (key TEXT PRIMARY KEY, kind TEXT NOT NULL, request TEXT NOT NULL, recorded TEXT NOT NULL)"
_DEFAULTS = {field.name: field.default for field in fields(Usage) if field.default is not MISSING}
# ASCII, as a text that a model wrote may hold half of a surrogate pair, which is no UTF-8.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


class ReplayMiss(Exception):  # noqa: N818  named like the fact it states
    """A call that has to be replayed was never recorded: the run cannot go on without the network."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a call came to.

    Attributes:
        value: anything JSON can hold.
        usage: the ledger rows of the call, those of billed retries included.
        is_error: the value is the tool's own error text.
    """

    value: Any
    usage: tuple[Usage, ...] = ()
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Merged:
    """What `merge` did: rows added, rows there already, rows with the key of another answer (the first is kept)."""

    added: int = 0
    same: int = 0
    conflicts: int = 0


def key(kind: str, request: Mapping[str, Any]) -> str:
    """The name of a call: SHA-256 of the canonical JSON of kind and request.

    Raises:
        TypeError: the request is no JSON.
        ValueError: it holds a number that is not finite.
    """
    return hashlib.sha256(f"{kind}\n{_CANONICAL.encode(request)}".encode()).hexdigest()


class Replay:
    """One file of recorded calls, opened once per process.

    Modes: "off" runs every call; "record" runs every call and keeps it in place of an older one; "replay" runs none;
    "replay_or_record" runs and keeps what is not there yet. Identical calls at the same time are run once in the two
    modes that record; calls that are samples of the same request must say so in it ({"sample": 3}).

    Attributes:
        mode: see above.
        replayed, recorded: calls answered from the file, and calls kept, so far.
    """

    def __init__(self, path: str | Path | None, mode: str = "off") -> None:
        """Opens the file, or makes it where it will be recorded.

        Raises:
            ValueError: an unknown mode, no path, or a file that is none of ours.
            FileNotFoundError: nothing to replay.
        """
        if mode not in MODES:
            raise ValueError(f"The replay mode is one of {', '.join(MODES)}, not {mode!r}.")
        if mode != "off" and path is None:
            raise ValueError(f"Replay mode {mode!r} needs the path of a file.")
        self.mode = mode
        self.replayed = self.recorded = 0
        self._flights: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[Recorded]] = {}
        self._reader: sqlite3.Connection | None = None
        self._writer: _Writer | None = None
        self._lock = threading.Lock()  # one connection may not run two statements at once
        if path is not None and mode != "off":
            file = Path(path)
            if mode == "replay":
                self._reader = _open_to_read(file)
            else:
                self._writer = _Writer(file, overwrite=mode == "record")
                self._reader = _connect(file)

    async def call(
        self, kind: str, request: Mapping[str, Any], run: Callable[[], Coroutine[Any, Any, Recorded]]
    ) -> Recorded:
        """The recorded answer of a request, or that of `run`, recorded.

        A run that has begun is paid for: where it is recorded, it goes on and is kept although its caller is cancelled.
        A run that raises is not recorded, and the calls that waited for it run for themselves.

        Args:
            kind: what is called ("chat", "web_search"), a part of the key.
            request: all that the answer depends on, as JSON, and nothing secret: it is written to the file.
            run: makes the call.

        Raises:
            ReplayMiss: mode "replay", and it was never recorded.
            OSError: it could not be written.
            Exception: whatever `run` raises.
        """
        if self.mode == "off":
            return await run()
        name = key(kind, request)
        if self.mode != "record":
            found = self.lookup(name)
            if found is not None:
                return found
            if self.mode == "replay":
                short = _CANONICAL.encode(request)
                short = short if len(short) <= 200 else f"{short[:200]}..."
                raise ReplayMiss(f"No {kind!r} call {short} was recorded; record it with mode replay_or_record.")
        flight = (asyncio.get_running_loop(), name)  # a task can be awaited in its own loop only
        under_way = self._flights.get(flight)
        if under_way is not None:
            await asyncio.wait([under_way])
            if not under_way.cancelled() and under_way.exception() is None:
                return under_way.result()
        task = asyncio.create_task(self._run(name, kind, request, run))
        self._flights[flight] = task
        task.add_done_callback(lambda done: self._landed(flight, done))
        return await asyncio.shield(task)

    def lookup(self, name: str) -> Recorded | None:
        """The recorded answer of a key, None without one; some ten microseconds, so it runs where it is called."""
        if self._reader is None:
            return None
        with self._lock:
            row = self._reader.execute("SELECT recorded FROM calls WHERE key = ?", (name,)).fetchone()
        if row is None:
            return None
        self.replayed += 1
        return _decode(row[0])

    async def drain(self) -> None:
        """Waits for the runs whose callers have given up, so that they are kept."""
        loop = asyncio.get_running_loop()
        tasks = [task for (where, _), task in self._flights.items() if where is loop]
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Writes what is waiting and closes the file; more than once is harmless."""
        if self._writer is not None:
            self._writer.close()
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader = None

    async def _run(
        self, name: str, kind: str, request: Mapping[str, Any], run: Callable[[], Awaitable[Recorded]]
    ) -> Recorded:
        text = _encode(await run())
        assert self._writer is not None
        await asyncio.wrap_future(self._writer.put((name, kind, _CANONICAL.encode(request), text)))
        self.recorded += 1
        # Read back, so that a caller sees the same value (a tuple is a list now) recorded and replayed.
        return _decode(text)

    def _landed(self, flight: tuple[asyncio.AbstractEventLoop, str], task: "asyncio.Task[Recorded]") -> None:
        if self._flights.get(flight) is task:
            del self._flights[flight]
        if not task.cancelled():
            task.exception()  # seen, or asyncio would report that of a call whose caller has given up


class _Writer(threading.Thread):
    """Commits rows in the background, all that wait at once; each row's future is done when it is on disk."""

    def __init__(self, file: Path, overwrite: bool) -> None:
        super().__init__(name="replay writer", daemon=True)
        self._file = file
        self._rows: queue.SimpleQueue[tuple[tuple[str, ...], Future[None]] | None] = queue.SimpleQueue()
        self._insert = f"INSERT OR {'REPLACE' if overwrite else 'IGNORE'} INTO calls VALUES (?, ?, ?, ?)"
        self._database = _create(file)
        self._closed = False
        self.start()

    def put(self, row: tuple[str, ...]) -> "Future[None]":
        if self._closed:
            raise RuntimeError(f"Replay file {str(self._file)!r} is closed; close it after the last call.")
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # from here on nobody can cancel it
        self._rows.put((row, done))
        return done

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._rows.put(None)
            self.join()
            self._database.close()

    def run(self) -> None:
        open_ = True
        while open_:
            waiting = [self._rows.get()]
            while len(waiting) < BATCH and not self._rows.empty():
                waiting.append(self._rows.get())
            open_ = None not in waiting
            batch = [item for item in waiting if item is not None]
            try:
                _insert_all(self._database, self._insert, [row for row, _ in batch])
            except sqlite3.Error as error:
                failure = OSError(f"Replay file {str(self._file)!r} cannot be written: {error}.")
                for _, done in batch:
                    done.set_exception(failure)
            else:
                for _, done in batch:
                    done.set_result(None)


def export(path: str | Path, jsonl: str | Path) -> int:
    """Writes all rows, sorted by key, one JSON object per line; equal sets give equal files. Returns their number."""
    count = 0
    with Path(jsonl).open("w", encoding="ascii") as out:
        for name, kind, request, recorded in _rows(Path(path)):
            row = {"key": name, "kind": kind, "request": json.loads(request), "recorded": json.loads(recorded)}
            out.write(_CANONICAL.encode(row) + "\n")
            count += 1
    return count


def merge(into: str | Path, *others: str | Path) -> Merged:
    """Adds the rows of other files, or of exported `.jsonl` files, to `into`, which is made if it is not there.

    Raises:
        FileNotFoundError: one of the others is not there.
        ValueError: one is no file of ours, or a line's key is not that of its request.
    """
    database = _create(Path(into))
    added = same = conflicts = 0
    try:
        for other in others:
            database.execute("BEGIN IMMEDIATE")
            try:
                for row in _rows(Path(other)):
                    kept = database.execute("SELECT recorded FROM calls WHERE key = ?", row[:1]).fetchone()
                    if kept is None:
                        database.execute("INSERT INTO calls VALUES (?, ?, ?, ?)", row)
                        added += 1
                    elif kept[0] == row[3]:
                        same += 1
                    else:
                        conflicts += 1
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
    finally:
        database.close()
    return Merged(added, same, conflicts)


def stats(path: str | Path) -> dict[str, tuple[int, float]]:
    """Number of calls and recorded dollars by kind."""
    table: dict[str, tuple[int, float]] = {}
    for _, kind, _, recorded in _rows(Path(path)):
        calls, dollars = table.get(kind, (0, 0.0))
        table[kind] = (calls + 1, dollars + sum(row.cost_usd for row in _decode(recorded).usage))
    return table


def _encode(recorded: Recorded) -> str:
    usage = [
        {name: value for name in Usage.__slots__ if (value := getattr(row, name)) != _DEFAULTS.get(name, MISSING)}
        for row in recorded.usage
    ]
    return _CANONICAL.encode({"value": recorded.value, "usage": usage, "is_error": recorded.is_error})


def _decode(text: str) -> Recorded:
    row = json.loads(text)
    return Recorded(row["value"], tuple(Usage(**usage) for usage in row["usage"]), row["is_error"])


def _rows(file: Path) -> Iterator[tuple[str, str, str, str]]:
    """(key, kind, request, recorded) of a database, sorted by key, or of an exported file."""
    if file.suffix != ".jsonl":
        database = _open_to_read(file)
        try:
            yield from database.execute("SELECT key, kind, request, recorded FROM calls ORDER BY key")
        finally:
            database.close()
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                name, kind, request, recorded = (row[part] for part in ("key", "kind", "request", "recorded"))
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"Line {number} of {file.name!r} is no exported call.") from None
            if name != key(kind, request):
                raise ValueError(f"Line {number} of {file.name!r} has another key than its request; export it anew.")
            yield name, kind, _CANONICAL.encode(request), _CANONICAL.encode(recorded)


def _insert_all(database: sqlite3.Connection, insert: str, rows: Sequence[tuple[str, ...]]) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        database.executemany(insert, rows)
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _connect(file: Path, options: str = "") -> sqlite3.Connection:
    # isolation_level=None: transactions are where we say. Statements of one connection are guarded by their owner.
    return sqlite3.connect(
        f"{file.absolute().as_uri()}{options}", uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )


def _open_to_read(file: Path) -> sqlite3.Connection:
    """Raises FileNotFoundError or ValueError as `Replay` says."""
    if not file.is_file():
        raise FileNotFoundError(f"No replay file at {str(file)!r}; record one with mode record or replay_or_record.")
    # WAL needs a file beside the database even to read, which a read-only folder does not allow.
    options = "?mode=ro" if os.access(file.parent, os.W_OK) else "?immutable=1"
    database = _connect(file, options)
    _check_version(database, file)
    return database


def _create(file: Path) -> sqlite3.Connection:
    """Opens the file to write, and makes it if it is not there or empty."""
    file.parent.mkdir(parents=True, exist_ok=True)
    database = _connect(file)
    try:
        database.execute("BEGIN IMMEDIATE")
        if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            database.execute(_TABLE)
            database.execute(f"PRAGMA user_version={_VERSION}")
        database.execute("COMMIT")
        _check_version(database, file)
        deadline = time.monotonic() + BUSY_S
        # SQLite does not wait for other processes when several turn WAL on at once.
        while database.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                database.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        database.execute("PRAGMA synchronous=FULL")  # a commit outlives a power cut, not only the process
    except sqlite3.Error as error:
        database.close()
        raise ValueError(f"Replay file {str(file)!r} cannot be opened: {error}.") from None
    return database


def _check_version(database: sqlite3.Connection, file: Path) -> None:
    try:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        found = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'calls'").fetchone()
    except sqlite3.DatabaseError:
        version = found = None
    if version != _VERSION or found is None:
        database.close()
        raise ValueError(f"{str(file)!r} is no replay file of this version; record to another path.")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of the module's first lines."""
    parser = argparse.ArgumentParser(prog="python -m orchestra_jax.money.replay", description="Recorded calls.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command, operands, text in (
        ("stats", ["path"], "calls and dollars by kind"),
        ("export", ["path", "jsonl"], "all rows as JSON lines"),
        ("merge", ["path", "others"], "add the rows of other files"),
    ):
        part = commands.add_parser(command, help=text)
        for operand in operands:
            part.add_argument(operand, nargs="+" if operand == "others" else None)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "stats":
            for kind, (calls, dollars) in sorted(stats(chosen.path).items()):
                print(f"{kind:24} {calls:8} calls  ${dollars:.6f}")
        elif chosen.command == "export":
            print(f"{export(chosen.path, chosen.jsonl)} calls written to {chosen.jsonl}")
        else:
            merged = merge(chosen.path, *chosen.others)
            print(
                f"{merged.added} added, {merged.same} there already, {merged.conflicts} conflicts (the first is kept)"
            )
    except (OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
