"""The bill of a run on disk: every paid call's worst case before its request leaves, and what it cost after.

Lines are only ever added, so that whatever ends the process leaves the file whole but for a torn last line, whose
request never left. A call that was in flight at the end may have been billed: it counts with its worst case.

    {"call": 7, "name": "gpt-5", "worst": [dollars, tokens]}
    {"call": 7, "name": "gpt-5", "paid": [dollars, tokens]}
    {"call": 8}                                                nothing was billed
    {"spent": {name: [dollars, tokens, calls]}}                by a process that is no more
"""

import asyncio
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from orchestra_jax.money.bill import State, added, read_bill, read_lines
from orchestra_jax.types import Usage


class CallJournal(Protocol):
    """Notes of calls: what `money.reservations` asks of the bill of a run and of the database of a server."""

    def reserve(self, worst: Usage) -> int:
        """Note the worst case of a call and return its number; raise OSError: the call must not be made."""

    async def durable(self, call: int, worst: Usage) -> None:
        """Wait until the note of a call is safe; raise BudgetExceeded: the call must not be made."""

    def end(self, call: int, billed: Usage | None) -> None:
        """Note what the call cost, or None if nothing was billed."""


class Journal:
    """Adds lines to the bill in `file`, which is made if it is not there.

    Attributes:
        paid, in_flight: the two sums that `read_bill` found. Calls that were in flight are noted as paid from now on.

    Raises:
        ConfigError: a line of the file is broken.
    """

    def __init__(self, file: Path) -> None:
        paid, calls = read_lines(file)
        self.paid, self.in_flight = added(paid), added(calls.values())
        whole = file.read_bytes().rfind(b"\n") + 1 if file.exists() else 0
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = self._calls = self._written = self._durable = 0
        self._cut(whole)
        self._syncing: asyncio.Task[None] | None = None
        for call, worst in calls.items():
            for name, (usd, tokens, _) in worst.items():
                self._write({"call": call, "name": name, "paid": [usd, tokens]})

    def reserve(self, worst: Usage) -> int:
        """Note the worst case of a call and return its number; raise OSError: the call must not be made."""
        self._calls += 1
        self._write({"call": self._calls, "name": worst.name, "worst": _amount(worst)})
        return self._calls

    def end(self, call: int, billed: Usage | None) -> None:
        """Note what the call cost, or None if nothing was billed; raise OSError: its worst case stands."""
        self._write({"call": call} if billed is None else {"call": call, "name": billed.name, "paid": _amount(billed)})

    def spent_before(self, lost: Sequence[Path]) -> State:
        """Return what was spent before a restart. The bills of lost processes are noted here for good and removed."""
        taken = [part for file in lost for part in read_bill(file)]
        if lost:
            self._write({"spent": added(taken)})
            os.fsync(self._file)
        for file in lost:
            file.unlink()
        return added([self.paid, self.in_flight, *taken])

    async def durable(self, call: int, worst: Usage) -> None:
        """Wait until the note of a call that may cost money would survive a loss of power; callers share one sync."""
        wanted = self._written if worst.cost_usd else 0
        while self._durable < wanted:
            if self._syncing is None:
                self._syncing = asyncio.create_task(self._sync())
            await asyncio.shield(self._syncing)

    def close(self) -> None:
        """Close the file."""
        os.fsync(self._file)
        os.close(self._file)
        self._file = -1  # the number is soon that of another file, which a late call must not write to

    async def _sync(self) -> None:
        reached = self._written
        try:
            await asyncio.to_thread(os.fsync, self._file)
            self._durable = reached
        finally:
            self._syncing = None

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line).encode() + b"\n"
        try:
            if os.write(self._file, text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._cut(self._size)  # what comes next must not follow half a line
            raise
        self._size += len(text)
        self._written += 1

    def _cut(self, size: int) -> None:
        os.ftruncate(self._file, size)
        self._size = os.lseek(self._file, 0, os.SEEK_END)


def _amount(row: Usage) -> list[Any]:
    return [row.cost_usd, row.prompt_tokens + row.completion_tokens]
