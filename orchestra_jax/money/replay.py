"""Record and replay of outside calls: an answer that was paid for is kept, and the same request gets it for nothing.

A replayed call gives the recorded value and usage, so cost, latency and reward are those of the recorded run. A row is
on disk when `call` returns; killing the process loses none. `records` reads and merges the files.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.config.ranges import shown
from orchestra_jax.io.stopwatch import queued
from orchestra_jax.money.store import (
    CANONICAL,
    Recorded,
    Row,
    Writer,
    connect,
    decode,
    encode,
    key,
    open_to_read,
    row_of,
)
from orchestra_jax.money.unsaved import Unsaved, kept_in
from orchestra_jax.types import ReplayMiss

_log = logging.getLogger(__name__)

CLOSE_S = 60.0  # how long the end waits for what is under way


class ReplayBroken(ReplayMiss):
    """The record can no longer be read or written: the run would pay for answers that it could not keep."""


class Replay:
    """One file of recorded calls, opened once per process and used from one event loop.

    Modes: "off" runs every call; "record" runs every call and keeps it in place of an older one; "replay" runs none;
    "replay_or_record" runs and keeps what is not there yet. Identical calls at the same time are run once in the two
    modes that record; calls that are samples of the same request must say so in it ({"sample": 3}).

    An answer that the file does not take is given all the same and kept in another (`unsaved.Unsaved`); from then on no
    call is run before the file has taken it.

    Attributes:
        mode: see above.
        replayed: calls answered from the file so far.
    """

    def __init__(self, path: str | Path | None, mode: str = "off") -> None:
        """Open the file, or make it where it will be recorded.

        Raises:
            ValueError: an unknown mode, no path, or a file that is none of ours.
            FileNotFoundError: nothing to replay.
        """
        if mode not in ReplayMode.__members__:
            raise ValueError(f"The replay mode is one of {', '.join(ReplayMode)}, not {mode!r}.")
        if mode != "off" and path is None:
            raise ValueError(f"Replay mode {mode!r} needs the path of a file.")
        self.mode, self.replayed = mode, 0
        self._flights: dict[str, asyncio.Task[Recorded]] = {}  # calls under way by key
        self._reader: sqlite3.Connection | None = None
        self._writer: Writer | None = None
        if path is None or mode == "off":
            return
        self._path, self._unsaved = Path(path), Unsaved(Path(path))
        if mode == "replay":
            self._reader = open_to_read(Path(path))
        else:
            self._writer = Writer(Path(path), overwrite=mode == "record")
            self._reader = connect(Path(path))
            with contextlib.suppress(OSError):  # still no room: the first call that has to be paid says so
                for row in (waiting := frozenset(self._unsaved.rows.values())):
                    self._writer.put(row).result()
                self._unsaved.saved(waiting)

    async def call(
        self, kind: str, request: Mapping[str, Any], run: Callable[[], Coroutine[Any, Any, Recorded]]
    ) -> Recorded:
        """Return the recorded answer of a request, else run the call and record its answer.

        A run that has begun is paid for: where it is recorded, it goes on and is kept although its caller is cancelled.
        A run that raises is not recorded, and of the calls that waited for it the next one runs for itself, while the
        others wait again.

        Args:
            kind: what is called ("chat", "web_search"), a part of the key.
            request: all that the answer depends on, as JSON, and nothing secret: it is written to the file.
            run: makes the call.

        Raises:
            ReplayMiss: mode "replay", and it was never recorded; or ReplayBroken: the file cannot be read, or could not
                take what was paid before.
            Exception: whatever `run` raises.
        """
        if self.mode == "off":
            return await run()
        name = key(kind, request)
        if self.mode != "record":
            if (found := self._find(name)) is not None:
                self.replayed += 1
                return found
            if self.mode == "replay":
                short = CANONICAL.encode(request)
                short = short if len(short) <= 200 else f"{short[:200]}..."
                raise ReplayMiss(f"No {kind!r} call {short} was recorded; record it with mode replay_or_record.")
        while (under_way := self._flights.get(name)) is not None:
            await queued(asyncio.wait([under_way]))  # the work is that of the caller who began it
            if not under_way.cancelled() and under_way.exception() is None:
                return under_way.result()
            self._landed(name, under_way)
        task = asyncio.create_task(self._run(name, kind, request, run))
        self._flights[name] = task
        task.add_done_callback(lambda done: self._landed(name, done))
        return await asyncio.shield(task)

    async def keep(self, kind: str, request: Mapping[str, Any], recorded: Recorded) -> None:
        """Record an answer that was paid for and came too late, where there is none; a caller may have seen another."""
        if self._writer is not None and (self.mode != "record" or self._find(key(kind, request)) is None):
            await self._save(row_of(kind, request, encode(recorded)))

    def recorded_answer(self, kind: str, request: Mapping[str, Any]) -> Recorded | None:
        """Return the recorded answer, or None; run nothing. Raise ReplayBroken: the record cannot be read."""
        return self._find(key(kind, request)) if self.mode != "off" else None

    def keep_now(self, kind: str, request: Mapping[str, Any], recorded: Recorded) -> None:
        """Record an answer that cost nothing before the run has an event loop; raise OSError: it cannot be kept."""
        if self._writer is not None:
            self._writer.put(row_of(kind, request, encode(recorded))).result()

    async def drain(self, patience_s: float = CLOSE_S) -> None:
        """Wait until the calls under way are kept whose callers have left; nothing may make calls any more."""
        if self._flights:
            await asyncio.wait(tuple(self._flights.values()), timeout=patience_s)

    def close(self) -> None:
        """Write what waits and close the file; more than once is harmless."""
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    async def _run(
        self, name: str, kind: str, request: Mapping[str, Any], run: Callable[[], Awaitable[Recorded]]
    ) -> Recorded:
        await self._catch_up()
        text = encode(await run())
        await self._save((name, kind, CANONICAL.encode(request), text))
        # Read back, so that a caller sees the same recorded and replayed, also where another answer came first.
        return self._find(name) or decode(text)

    def _find(self, name: str) -> Recorded | None:
        """Return what is recorded under a key. It takes some ten microseconds, so it runs in the event loop.

        Raises:
            ReplayBroken: it cannot be read.
        """
        query = "SELECT recorded FROM calls WHERE key = ?"
        try:
            if (waiting := self._unsaved.rows.get(name)) is not None:
                return decode(waiting[3])
            row = self._reader.execute(query, (name,)).fetchone() if self._reader is not None else None
            return decode(row[0]) if row else None
        except (sqlite3.Error, ValueError) as error:
            raise ReplayBroken(
                f"Replay file {str(self._path)!r} cannot be used: {shown(error)}; put a copy in its place, or record "
                "to another replay.path."
            ) from None

    async def _save(self, row: Row) -> None:
        """Write a row, or keep it beside the file if that does not take it."""
        assert self._writer is not None
        try:
            await asyncio.wrap_future(self._writer.put(row))
        except OSError as error:
            with contextlib.suppress(OSError):  # in memory at least
                self._unsaved.add(row)
            _log.warning("%s: what was paid is kept in %s.", error, self._unsaved.file or "memory")

    async def _catch_up(self) -> None:
        """Write what waits; raise ReplayBroken: the file still does not take it."""
        waiting = frozenset(self._unsaved.rows.values())
        if not waiting:
            return
        assert self._writer is not None
        try:
            await asyncio.gather(*(asyncio.wrap_future(self._writer.put(row)) for row in waiting))
        except OSError as error:
            raise ReplayBroken(f"{error}: make room, or end what locks the file.{kept_in(self._path)}") from None
        self._unsaved.saved(waiting)

    def _landed(self, name: str, task: "asyncio.Task[Recorded]") -> None:
        if self._flights.get(name) is task:
            del self._flights[name]
        if not task.cancelled():
            task.exception()  # seen, or asyncio would report that of a call whose caller has given up
