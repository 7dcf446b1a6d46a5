"""Keep a folder to one run at a time, also if two machines share it.

The lock is the operating system's (flock), so a killed process leaves nothing that blocks. On a network disk it may
hold on one machine only, or not exist. There the owner renews the file's time, which tells whether the owner lives.
"""

import contextlib
import fcntl
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestra_jax.config.schema import ConfigError

FILE_NAME = "run.lock"
_BEAT_S = 5.0


@contextmanager
def alone_in(folder: Path, beat_s: float = _BEAT_S, setting: str = "name") -> Iterator[None]:
    """Hold the lock of an existing folder during the block; its file names the holder, and is renewed every `beat_s` s.

    Raises:
        ConfigError: another process holds it; the sentence says to choose another `setting`.
    """
    path, host = folder / FILE_NAME, socket.gethostname()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        locks = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(descriptor).st_nlink:  # another start, which was refused, has just removed it
                raise BlockingIOError
        except BlockingIOError:
            raise _in_use(folder, descriptor, setting) from None
        except OSError:
            locks = False  # the disk has no locks
        owner = re.match(r"host (.+), process \d+, ", _words(descriptor))
        if owner and not (locks and owner[1] == host):
            from orchestra_jax.processes.heartbeat import beats  # only now: the lock tells as much on one machine

            if beats(path, owner[1], beat_s):
                raise _in_use(folder, descriptor, setting)
        _write(descriptor, f"host {host}, process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        ended = threading.Event()
        beat = threading.Thread(target=_beat, args=(descriptor, ended, beat_s), name="lock", daemon=True)
        beat.start()
        try:
            yield
        finally:
            ended.set()
            beat.join()
            _write(descriptor, "")
    finally:
        os.close(descriptor)


def _beat(descriptor: int, ended: threading.Event, beat_s: float) -> None:
    while not ended.wait(beat_s):
        with contextlib.suppress(OSError):
            os.utime(descriptor)


def _words(descriptor: int) -> str:
    return os.pread(descriptor, 1000, 0).decode(errors="replace").strip()


def _write(descriptor: int, words: str) -> None:
    """Put the words into the file. A full disk keeps it empty, and the lock holds all the same."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, words.encode(), 0)


def _in_use(folder: Path, descriptor: int, setting: str) -> ConfigError:
    return ConfigError(
        f"Another run is at work in {str(folder)!r} ({_words(descriptor) or 'it has just begun'}): let it end or stop "
        f"it, or choose another {setting}=..."
    )
