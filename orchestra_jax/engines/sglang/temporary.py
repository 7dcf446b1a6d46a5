"""A temporary folder that does not outlast its owner by more than the next owner's beginning.

Beside `orchestra_jax-PID-RANDOM` lies a file of that name with `.lock`, which its owner holds locked: the operating
system lets go of it however the owner dies, and whoever makes a folder next removes what nobody holds.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "orchestra_jax-"


class TemporaryFolder:
    """A new folder in `parent`, removed with this object or at the end of the program.

    Attributes:
        path: of the folder.
    """

    def __init__(self, parent: Path) -> None:
        remove_abandoned(parent)
        while True:
            self.path = parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
            lock = _lock_of(self.path)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            if _held(lock, descriptor):
                break
            os.close(descriptor)  # another process took it for abandoned before it was locked
        self.path.mkdir(mode=0o700)
        self._remove = weakref.finalize(self, _remove, self.path, descriptor, os.getpid())


def remove_abandoned(parent: Path) -> None:
    """Remove the folders in `parent` whose owners are dead; those of other users are left."""
    for lock in parent.glob(f"{_PREFIX}*.lock"):
        with contextlib.suppress(OSError), _opened(lock) as descriptor:
            if _held(lock, descriptor):
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _held(lock: Path, descriptor: int) -> bool:
    """Lock the file; return whether that worked and nobody removed it meanwhile."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), lock.stat())
    except OSError:
        return False


def _remove(path: Path, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a child that was forked off
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            _lock_of(path).unlink()
        os.close(descriptor)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")
