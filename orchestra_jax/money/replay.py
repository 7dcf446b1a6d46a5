"""Record and replay of outside calls: what was paid for once is kept by content and answered at no cost later.

A replayed call gives the recorded value and usage, so cost, latency and reward are those of the recorded run. A row is
on disk when `call` returns; killing the process loses none. `records` reads and merges the files.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.money.store import CANONICAL, Recorded, Writer, connect, decode, encode, key, open_to_read
from orchestra_jax.stopwatch import queued


class ReplayMiss(Exception):  # noqa: N818  named like the fact it states
    """A call that has to be replayed was never recorded: the run cannot go on without the network."""


class Replay:
    """One file of recorded calls, opened once per process and used from one event loop.

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
        if mode not in ReplayMode.__members__:
            raise ValueError(f"The replay mode is one of {', '.join(ReplayMode)}, not {mode!r}.")
        if mode != "off" and path is None:
            raise ValueError(f"Replay mode {mode!r} needs the path of a file.")
        self.mode = mode
        self.replayed = self.recorded = 0
        self._flights: dict[str, asyncio.Task[Recorded]] = {}  # calls under way by key
        self._reader: sqlite3.Connection | None = None
        self._writer: Writer | None = None
        if path is None or mode == "off":
            return
        if mode == "replay":
            self._reader = open_to_read(Path(path))
        else:
            self._writer = Writer(Path(path), overwrite=mode == "record")
            self._reader = connect(Path(path))

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
            # Some ten microseconds, so it runs here.
            query = "SELECT recorded FROM calls WHERE key = ?"
            if self._reader is not None and (row := self._reader.execute(query, (name,)).fetchone()):
                self.replayed += 1
                return decode(row[0])
            if self.mode == "replay":
                short = CANONICAL.encode(request)
                short = short if len(short) <= 200 else f"{short[:200]}..."
                raise ReplayMiss(f"No {kind!r} call {short} was recorded; record it with mode replay_or_record.")
        under_way = self._flights.get(name)
        if under_way is not None:
            await queued(asyncio.wait([under_way]))  # the work is that of the caller who began it
            if not under_way.cancelled() and under_way.exception() is None:
                return under_way.result()
        task = asyncio.create_task(self._run(name, kind, request, run))
        self._flights[name] = task
        task.add_done_callback(lambda done: self._landed(name, done))
        return await asyncio.shield(task)

    def close(self) -> None:
        """Writes what is waiting and closes the file; more than once is harmless."""
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    async def _run(
        self, name: str, kind: str, request: Mapping[str, Any], run: Callable[[], Awaitable[Recorded]]
    ) -> Recorded:
        text = encode(await run())
        assert self._writer is not None
        await asyncio.wrap_future(self._writer.put((name, kind, CANONICAL.encode(request), text)))
        self.recorded += 1
        # Read back, so that a caller sees the same value (a tuple is a list now) recorded and replayed.
        return decode(text)

    def _landed(self, name: str, task: "asyncio.Task[Recorded]") -> None:
        if self._flights.get(name) is task:
            del self._flights[name]
        if not task.cancelled():
            task.exception()  # seen, or asyncio would report that of a call whose caller has given up
