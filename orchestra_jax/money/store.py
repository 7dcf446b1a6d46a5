"""The files of recorded calls: rows, the database that keeps them, and its writing thread.

The database is SQLite in WAL mode: many processes may read and write it at once, on one machine (SQLite has no safe
locks on network file systems). Rows also exist as lines of JSON: exported ones, and those in `unsaved.Unsaved`.
"""

import hashlib
import json
import math
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from orchestra_jax.config.ranges import shown
from orchestra_jax.types import Usage

BUSY_S = 60.0  # how long a write waits for those of other processes
BATCH = 256  # rows of one commit

_VERSION = 1
_TABLE = "CREATE TABLE calls (key TEXT PRIMARY KEY, kind TEXT NOT NULL, request TEXT NOT NULL, recorded TEXT NOT NULL)"
_DEFAULTS = {field.name: field.default for field in fields(Usage) if field.default is not MISSING}
_FIGURES = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd", "seconds")
# ASCII, as a text that a model wrote may hold half of a surrogate pair, which is no UTF-8.
CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
Row = tuple[str, str, str, str]  # key, kind, request, recorded


@dataclass(frozen=True, slots=True)
class Recorded:
    """The result of a call.

    Attributes:
        value: anything JSON can hold.
        usage: ledger rows of the call, those of billed retries included.
        is_error: True if the value is the tool's own error text.
    """

    value: Any
    usage: tuple[Usage, ...] = ()
    is_error: bool = False


def key(kind: str, request: Mapping[str, Any]) -> str:
    """Return the key of a call: SHA-256 of the canonical JSON of kind and request.

    Raises:
        TypeError: the request is no JSON.
        ValueError: it holds a number that is not finite.
    """
    return hashlib.sha256(f"{kind}\n{CANONICAL.encode(request)}".encode()).hexdigest()


def encode(recorded: Recorded) -> str:
    """Return the result of a call as JSON, without fields that have their default."""
    usage = [
        {name: value for name in Usage.__slots__ if (value := getattr(row, name)) != _DEFAULTS.get(name, MISSING)}
        for row in recorded.usage
    ]
    return CANONICAL.encode({"value": recorded.value, "usage": usage, "is_error": recorded.is_error})


def decode(text: str) -> Recorded:
    """Read what `encode` wrote; raise ValueError, a clause, for any other text."""
    try:
        row = json.loads(text)
        usage = tuple(Usage(**usage) for usage in row["usage"])
        if not all(math.isfinite(getattr(one, field)) for one in usage for field in _FIGURES):
            raise ValueError("a figure of its usage is not finite")
        return Recorded(row["value"], usage, bool(row["is_error"]))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"a recorded call in it is damaged or foreign ({shown(str(error)[:80])})") from None


def row_of(kind: str, request: Mapping[str, Any], recorded: str) -> Row:
    """Return the row of a call, whose result is given as `encode` writes it."""
    return key(kind, request), kind, CANONICAL.encode(request), recorded


def line_of(row: Row) -> str:
    """Return a row as a line of JSON."""
    name, kind, request, recorded = row
    return CANONICAL.encode(
        {"key": name, "kind": kind, "request": json.loads(request), "recorded": json.loads(recorded)}
    )


def read_line(line: str | bytes) -> Row:
    """Read what `line_of` wrote; raise ValueError, a clause, for any other line."""
    try:
        found = json.loads(line)
        name, kind, request, recorded = (found[part] for part in ("key", "kind", "request", "recorded"))
        row = row_of(kind, request, CANONICAL.encode(recorded))
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError("is no exported call") from None
    if name != row[0]:
        raise ValueError("has another key than its request; export it again")
    return row


class Writer(threading.Thread):
    """Commits rows in the background, all that wait at once."""

    def __init__(self, file: Path, overwrite: bool) -> None:
        super().__init__(name="replay writer", daemon=True)
        self._file = file
        self._rows: queue.SimpleQueue[tuple[Row, Future[None]] | None] = queue.SimpleQueue()
        self._insert = f"INSERT OR {'REPLACE' if overwrite else 'IGNORE'} INTO calls VALUES (?, ?, ?, ?)"
        self._database = create(file)
        self._closed = False
        self.start()

    def put(self, row: Row) -> "Future[None]":
        """Return a future that is done when the row is on disk."""
        if self._closed:
            raise RuntimeError(f"Replay file {str(self._file)!r} is closed; close it after the last call.")
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # so that it cannot be cancelled from here on
        self._rows.put((row, done))
        return done

    def close(self) -> None:
        """Write what waits and close the file; more than once is harmless."""
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
            except Exception as error:  # whatever it is, none may wait for an answer that never comes
                failure = OSError(f"Replay file {str(self._file)!r} cannot be written: {error}")
                for _, done in batch:
                    done.set_exception(failure)
            else:
                for _, done in batch:
                    done.set_result(None)


def _insert_all(database: sqlite3.Connection, insert: str, rows: Sequence[Row]) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        database.executemany(insert, rows)
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def connect(file: Path, options: str = "") -> sqlite3.Connection:
    """Open a database that is there; its transactions are begun by hand."""
    # isolation_level=None: transactions are where we say. Statements of one connection are guarded by their owner.
    return sqlite3.connect(
        f"{file.absolute().as_uri()}{options}", uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )


def open_to_read(file: Path) -> sqlite3.Connection:
    """Open the database to read; raise FileNotFoundError or ValueError as `Replay` says."""
    if not file.is_file():
        raise FileNotFoundError(f"No replay file at {str(file)!r}; record one with mode record or replay_or_record.")
    # WAL needs a file beside the database even to read, which a read-only folder does not allow.
    options = "?mode=ro" if os.access(file.parent, os.W_OK) else "?immutable=1"
    database = connect(file, options)
    _check_version(database, file)
    return database


def create(file: Path) -> sqlite3.Connection:
    """Open the database to write, and make it if it is not there or empty."""
    file.parent.mkdir(parents=True, exist_ok=True)
    database = connect(file)
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
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of what SQLite says about a damaged file
        database.close()
        raise ValueError(f"Replay file {str(file)!r} cannot be opened: {shown(error)}.") from None
    return database


def _check_version(database: sqlite3.Connection, file: Path) -> None:
    try:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        found = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'calls'").fetchone()
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        version = found = None
    if version != _VERSION or found is None:
        database.close()
        raise ValueError(f"{str(file)!r} is no replay file of this version; record to another path.")
