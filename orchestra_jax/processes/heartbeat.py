"""Tell whether the owner of a lock lives, where the operating system cannot: on a disk that machines share."""

import os
import sys
import time
from pathlib import Path

_WATCHED_BEATS = 4


def beats(path: Path, host: str, beat_s: float) -> bool:
    """Return whether somebody renews the time of a lock's file, which names its owner's host."""
    print(f"Looking whether the run of host {host} in {str(path.parent)!r} lives ...", file=sys.stderr, flush=True)
    first = _time(path)
    for _ in range(2 * _WATCHED_BEATS):
        time.sleep(beat_s / 2)
        if _time(path) != first:
            return True
    return False


def _time(path: Path) -> int:
    with path.open() as file:  # opening it makes a network disk ask its server
        return os.fstat(file.fileno()).st_mtime_ns
