"""Recorded calls that their file could not take: a full disk, a lock or damage must not lose what was paid for.

They wait in memory and in a file of JSON lines beside the record, in the format of `records.export`, until the record
takes them; another process or a later run finds them there. Where even that file cannot be written, it is in the
folder for temporary files and is merged by hand.
"""

import contextlib
import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from orchestra_jax.money.store import CANONICAL, key

Row = tuple[str, str, str, str]  # key, kind, request, recorded


class Unsaved:
    """The rows of one record that wait, those that earlier runs left included.

    Attributes:
        rows: by key.
        file: where they are on disk.
    """

    def __init__(self, record: Path) -> None:
        self.file = record.with_name(f"{record.name}.unsaved.jsonl")
        self.rows: dict[str, Row] = {}
        if self.file.is_file():
            with contextlib.suppress(OSError):
                self.rows = {row[0]: row for row in _read(self.file.read_bytes())}

    def add(self, row: Row) -> None:
        """Keeps a row; raises OSError: on no disk, in memory alone."""
        self.rows[row[0]] = row
        name, kind, request, recorded = row
        line = {"key": name, "kind": kind, "request": json.loads(request), "recorded": json.loads(recorded)}
        data = CANONICAL.encode(line).encode() + b"\n"
        try:
            _append(self.file, data)
        except OSError:
            elsewhere = Path(tempfile.gettempdir()) / f"{self.file.stem}.{os.getpid()}.jsonl"
            _append(elsewhere, data)
            self.file = elsewhere

    def saved(self) -> None:
        """The record holds all rows now: they need not wait any more. Rows of others that came since go on waiting."""
        with contextlib.suppress(OSError), _locked(self.file) as file:
            left = [row for row in _read(file.read()) if row[0] not in self.rows]
            if left:
                self.rows = {row[0]: row for row in left}
                return
            self.file.unlink()
        self.rows = {}


def _read(data: bytes) -> Iterator[Row]:
    """The rows of whole lines; a kill may have cut the last."""
    for line in data.splitlines():
        try:
            row = json.loads(line)
            name, kind, request, recorded = (row[part] for part in ("key", "kind", "request", "recorded"))
            if name == key(kind, request):
                yield name, kind, CANONICAL.encode(request), CANONICAL.encode(recorded)
        except (ValueError, LookupError, TypeError, RecursionError):
            continue


def _append(path: Path, data: bytes) -> None:
    with _locked(path) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            if os.write(file.fileno(), data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), size)
            if not size:
                path.unlink()
            raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """The file, from its start, for this process alone."""
    while True:
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Another process may have emptied and removed it while we waited.
            if not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                continue
            file.seek(0)
            yield file
            return
