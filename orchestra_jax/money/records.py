"""Commands for files of recorded calls: figures, rows as text, and several files made into one.

python -m orchestra_jax.money.records stats CALLS.db
python -m orchestra_jax.money.records export CALLS.db CALLS.jsonl
python -m orchestra_jax.money.records merge INTO.db OTHER.db OTHER.jsonl ...
"""

import argparse
import glob
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra_jax.io.whole import replacing
from orchestra_jax.money.store import Recorded, Row, create, decode, line_of, open_to_read, read_line
from orchestra_jax.processes import Processes


@dataclass(frozen=True, slots=True)
class Merged:
    """Rows that `merge` added, found there already, and found under the key of another answer (the first is kept)."""

    added: int = 0
    same: int = 0
    conflicts: int = 0


def export(path: str | Path, jsonl: str | Path) -> int:
    """Write all rows, sorted by key, one JSON object per line; equal sets give equal files. Return their number.

    A file that is there already stays if something fails.
    """
    count = 0
    with replacing(Path(jsonl)) as part, part.open("w", encoding="ascii") as out:
        for row in _rows(Path(path)):
            out.write(line_of(row) + "\n")
            count += 1
    return count


def merge(into: str | Path, *others: str | Path) -> Merged:
    """Add the rows of other files, or of exported `.jsonl` files, to `into`, which is made if it is not there.

    Raises:
        FileNotFoundError: one of the others is not there.
        ValueError: one is no file of ours, or a line's key is not that of its request.
    """
    database = create(Path(into))
    added = same = conflicts = 0
    try:
        for other in others:
            database.execute("BEGIN IMMEDIATE")
            for row in _rows(Path(other)):
                kept = database.execute("SELECT recorded FROM calls WHERE key = ?", row[:1]).fetchone()
                if kept is None:
                    database.execute("INSERT INTO calls VALUES (?, ?, ?, ?)", row)
                    added += 1
                elif kept[0] == row[3]:
                    same += 1
                else:
                    conflicts += 1
            database.execute("COMMIT")
    finally:
        database.close()  # with nothing of a file that is not whole
    return Merged(added, same, conflicts)


def deal(shared: Path, own: Path, processes: Processes) -> None:
    """Give this process's file `own` the calls that earlier starts recorded, if they had other processes or machines.

    A start on one machine records in `shared`, one on several in `shared`.INDEX. Only one process at a time has a file
    open, as SQLite has no safe locks on a network disk. No file is removed: another run may use it.

    Raises:
        ValueError, OSError: a file cannot be used.
    """
    alone = own == shared
    used = set() if alone else {f"{shared.name}.{index}" for index in range(processes.count)}
    left = [file for file in shared.parent.glob(f"{glob.escape(shared.name)}.*") if file.suffix[1:].isdecimal()]
    changed = processes.gather({file.name for file in left} != used)[0]
    for turn in range(processes.count if changed else 0):
        with processes.together():
            if turn == 0 == processes.index and left:
                merge(shared, *sorted(left))
            if turn == processes.index and shared.is_file() and not alone:
                merge(own, shared)


def stats(path: str | Path) -> dict[str, tuple[int, float]]:
    """Return the number of calls and their recorded dollars by kind."""
    table: dict[str, tuple[int, float]] = {}
    for _, kind, _, recorded in _rows(Path(path)):
        calls, dollars = table.get(kind, (0, 0.0))
        table[kind] = (calls + 1, dollars + sum(row.cost_usd for row in decode(recorded).usage))
    return table


def calls_of(path: str | Path) -> Iterator[tuple[dict[str, Any], Recorded]]:
    """Yield request and result of every call, in the order of the keys."""
    for _, _, request, recorded in _rows(Path(path)):
        yield json.loads(request), decode(recorded)


def _rows(file: Path) -> Iterator[Row]:
    """Yield the rows of a database, sorted by key, or of an exported file."""
    if file.suffix != ".jsonl":
        database = open_to_read(file)
        try:
            for row in database.execute("SELECT key, kind, request, recorded FROM calls ORDER BY key"):
                decode(row[3])
                yield row
        except (sqlite3.Error, ValueError) as error:
            raise ValueError(f"{str(file)!r} cannot be read: {error}.") from None
        finally:
            database.close()
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield read_line(line)
            except ValueError as error:
                raise ValueError(f"Line {number} of {file.name!r} {error}.") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command of the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m orchestra_jax.money.records", description="Recorded calls.")
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
