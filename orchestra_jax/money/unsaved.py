"""Paid answers that a file of recorded calls did not take: they wait in another file until it does.

Each line of that file is a row as JSON, with a checksum.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from orchestra_jax.money.store import CANONICAL, Row, line_of, read_line

_MEMORY = Path("/dev/shm")


class Unsaved:
    """Rows that the record could not take: a full disk, a lock or damage must not lose what was paid for.

    They wait in memory and in the first of the `places` that can be written. A later run on this machine, or another
    process, finds them there.

    Attributes:
        rows: waiting rows by key, those that earlier runs left included.
        file: the file that the last of them is in; None: it is in memory alone.
    """

    def __init__(self, record: Path) -> None:
        self._record = record
        self.file: Path | None = None
        self.rows = dict[str, Row]()
        for place in waiting(record):
            self.file = place
            with contextlib.suppress(OSError):
                self.rows |= _rows(place.read_bytes())[0]

    def add(self, row: Row) -> None:
        """Keep a row; raise OSError if it is in memory alone, on no disk."""
        self.rows[row[0]] = row
        text = line_of(row)
        data = f'{text[:-1]},"sum":"{_sum(text)}"}}\n'.encode()
        self.file, error = None, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for place in places(self._record):
            try:
                _append(place, data)
            except OSError as failed:
                error = failed
            else:
                self.file = place
                return
        raise error

    def saved(self, taken: frozenset[Row]) -> None:
        """Drop rows that the record holds now. Those that were added since, here or elsewhere, go on waiting.

        A file with damaged lines is put aside with a sentence.
        """
        left = {name: row for name, row in self.rows.items() if row not in taken}
        for place in waiting(self._record):
            with contextlib.suppress(OSError), _locked(place) as file:
                found, damaged = _rows(file.read())
                new = {name: row for name, row in found.items() if row not in taken}
                left |= new
                if not new and damaged:
                    _put_aside(place, damaged)
                elif not new:
                    place.unlink()
        self.rows = left


def places(record: Path) -> list[Path]:
    """Return the files in which rows of a record may wait: beside it, else among temporary files, else in memory."""
    own = hashlib.sha256(str(record.resolve()).encode(errors="surrogateescape")).hexdigest()[:12]
    beside = record.with_name(f"{record.name}.unsaved.jsonl")
    return [beside, *(folder / f"{record.name}.unsaved.{own}.jsonl" for folder in _shared_folders())]


def waiting(record: Path) -> list[Path]:
    """Return the files in which rows of a record wait; in folders that all users may write, only this user's."""
    beside, *elsewhere = places(record)
    found = [beside] if beside.is_file() else []
    return found + [file for file in elsewhere if file.is_file() and _is_own(file.lstat())]


def kept_in(record: Path) -> str:
    """Return a sentence, after a space, that names the files in which rows of a record wait; "" if there are none."""
    files = " and ".join(repr(str(file)) for file in waiting(record))
    return f" Answers that were paid for are kept in {files}: the same command takes them up." if files else ""


def _shared_folders() -> list[Path]:
    """Return folders that all users may write, and that need no room on the record's disk."""
    return [folder for folder in dict.fromkeys([Path(tempfile.gettempdir()), _MEMORY]) if folder.is_dir()]


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()


def _sum(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()[:16]


def _rows(data: bytes) -> tuple[dict[str, Row], int]:
    """Return the rows of the whole lines, and how many lines were changed or cut."""
    rows, damaged = dict[str, Row](), 0
    for line in filter(None, data.split(b"\n")):
        try:
            found = json.loads(line)
            total, text = found.pop("sum"), CANONICAL.encode(found)
            if total != _sum(text):
                raise ValueError("has another sum")
            row = read_line(text)
            rows[row[0]] = row
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            damaged += 1
    return rows, damaged


def _put_aside(place: Path, damaged: int) -> None:
    """Rename a file whose whole rows are in the record, and say so."""
    aside = place.with_name(f"{place.name}.damaged")
    place.replace(aside)
    said = (
        f"{damaged} damaged line(s) of {str(place)!r} are put aside in {aside.name!r}; the calls that they held are "
        "paid again."
    )
    print(said, file=sys.stderr, flush=True)


def _append(path: Path, data: bytes) -> None:
    with _locked(path, os.O_CREAT) as file:
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":  # a kill cut the last line
            data = b"\n" + data
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
def _locked(path: Path, create: int = 0) -> Iterator[BinaryIO]:
    """Open the file, at its start, for this process alone."""
    private = path.parent in _shared_folders()
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | create, 0o600 if private else 0o666)
        with open(descriptor, "rb") as file:
            if private and not _is_own(os.fstat(descriptor)):
                raise PermissionError(errno.EPERM, "it belongs to somebody else", str(path))
            fcntl.flock(file, fcntl.LOCK_EX)
            # Another process may have emptied and removed it while we waited.
            if not path.exists() or path.stat().st_ino != os.fstat(descriptor).st_ino:
                continue
            yield file
            return
