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
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.io.untrusted import read_json
from orchestra_jax.types import Usage

State = dict[
    str, list[Any]
]  # by name: dollars as the text of a fraction, tokens, calls; as `Budget.get_state` gives it
_Amounts = tuple[str, Any, int, int]  # name, dollars, tokens, calls
_FRACTION = re.compile(r"\d{1,1000}(/0*[1-9]\d{0,999})?", re.ASCII)


def read_bill(file: Path) -> tuple[State, State]:
    """Read what was paid, and the worst cases of the calls that were in flight at the end of the file.

    Raises:
        ConfigError: a line is broken that is not the last.
    """
    paid, in_flight = _read(file)
    return _sums(paid), _sums(in_flight.values())


class Journal:
    """Adds lines to the bill in `file`, which is made if it is not there.

    Attributes:
        paid, in_flight: the two sums that `read_bill` found. Calls that were in flight are noted as paid from now on.

    Raises:
        ConfigError: a line of the file is broken.
    """

    def __init__(self, file: Path) -> None:
        paid, in_flight = _read(file)
        self.paid, self.in_flight = _sums(paid), _sums(in_flight.values())
        whole = file.read_bytes().rfind(b"\n") + 1 if file.exists() else 0
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = self._calls = self._written = self._durable = 0
        self._cut(whole)
        self._syncing: asyncio.Task[None] | None = None
        for call, (name, usd, tokens, _) in in_flight.items():
            self._write({"call": call, "name": name, "paid": [usd, tokens]})

    def reserve(self, worst: Usage) -> int:
        """Note the worst case of a call and return its number; raise OSError: the call must not be made."""
        self._calls += 1
        self._write({"call": self._calls, "name": worst.name, "worst": _amount(worst)})
        return self._calls

    def end(self, call: int, billed: Usage | None) -> None:
        """Note what the call cost, or None if nothing was billed; raise OSError: its worst case stands."""
        self._write({"call": call} if billed is None else {"call": call, "name": billed.name, "paid": _amount(billed)})

    def take_over(self, spent: Mapping[str, Sequence[Any]]) -> None:
        """Note for good what another process spent."""
        self._write({"spent": spent})
        os.fsync(self._file)

    async def durable(self) -> None:
        """Wait until all notes would survive a loss of power; callers at the same time share one sync."""
        wanted = self._written
        while self._durable < wanted:
            if self._syncing is None:
                self._syncing = asyncio.create_task(self._sync())
            await asyncio.shield(self._syncing)

    def close(self) -> None:
        """Close the file."""
        os.fsync(self._file)
        os.close(self._file)

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


def _read(file: Path) -> tuple[list[_Amounts], dict[int, _Amounts]]:
    """Return what was paid, line by line, and every call that was in flight, by its number."""
    paid, in_flight = list[_Amounts](), dict[int, _Amounts]()
    *lines, _ = file.read_bytes().split(b"\n") if file.exists() else [b""]
    for number, text in enumerate(lines, 1):
        try:
            line = read_json(text)
            if "spent" in line:
                paid += [_checked(name, *amounts) for name, amounts in line["spent"].items()]
            elif "worst" in line:
                if line["call"] in in_flight:
                    raise ValueError("the call is under way already")
                usd, tokens = line["worst"]
                in_flight[line["call"]] = _checked(line["name"], usd, tokens, 1)
            else:
                del in_flight[line["call"]]
                if "paid" in line:
                    usd, tokens = line["paid"]
                    paid.append(_checked(line["name"], usd, tokens, 1))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{str(file)!r}, line {number}, is no line of the run's bill: restore the file, or delete it if what "
                "was spent until now need not count in budget.run_*."
            ) from error
    return paid, in_flight


def _checked(name: Any, usd: Any, tokens: Any, calls: Any) -> _Amounts:
    """Return the amounts of a line, checked; dollars are a number, or a text as in `State`.

    Raises:
        ValueError, TypeError: it has not.
    """
    for count in (tokens, calls):
        if type(count) is not int or count < 0:
            raise ValueError(f"a count is {count!r}")
    # Not what else a Fraction takes: "1e999999999" would fill the memory with its digits.
    number = _FRACTION.fullmatch(usd) is not None if isinstance(usd, str) else type(usd) in (int, float) and usd >= 0
    if not isinstance(name, str) or not number:
        raise TypeError(f"{name!r} cost {usd!r}")
    return name, usd, tokens, calls


def added(states: Iterable[Mapping[str, Sequence[Any]]]) -> State:
    """Add up what several budgets spent, by name."""
    found: dict[str, tuple[Fraction, int, int]] = {}
    for state in states:
        for name, (usd, tokens, calls) in state.items():
            before = found.get(name, (Fraction(0), 0, 0))
            found[name] = before[0] + Fraction(usd), before[1] + int(tokens), before[2] + int(calls)
    return {name: [str(usd), tokens, calls] for name, (usd, tokens, calls) in found.items()}


def _sums(amounts: Iterable[_Amounts]) -> State:
    return added({name: amount} for name, *amount in amounts)


def _amount(row: Usage) -> list[Any]:
    return [row.cost_usd, row.prompt_tokens + row.completion_tokens]
