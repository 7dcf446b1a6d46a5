"""Temporary folders that do not outlast their owner by more than the next owner's beginning.

An owner holds its folder locked: the operating system lets go of it however the owner dies, and whoever makes a folder
next removes what nobody holds.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path


class TemporaryFolder:
    """A new folder, removed by `remove`, with this object or at the end of the program.

    Attributes:
        remove: removes it; more than once is harmless.

    Args:
        parent: folder on a disk of this machine, where locks hold.
        prefix: beginning of the names of all folders of this kind.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        remove_abandoned(parent, prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            if (descriptor := _locked(self.path)) is not None:
                break  # else another process took it for abandoned before it was locked
        self.remove = weakref.finalize(self, _remove, self.path, descriptor, os.getpid())


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders in `parent` whose owners are dead; those of other users are left."""
    for path in parent.glob(f"{prefix}*"):
        if (descriptor := _locked(path)) is not None:
            _remove(path, descriptor, os.getpid())


def _locked(folder: Path) -> int | None:
    """Return the descriptor that holds a folder's lock; None if the folder is gone, another user's, or locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), folder.stat()):  # nobody removed it meanwhile
            return descriptor
    os.close(descriptor)
    return None


def _remove(path: Path, descriptor: int, owner: int) -> None:
    if os.getpid() != owner:  # in a child that was forked off
        return
    # Code of others may have taken rights away; only root could remove such a folder as it is.
    for above, names, _ in os.walk(path):
        for child in (os.path.join(above, name) for name in names):
            if not os.path.islink(child):
                with contextlib.suppress(OSError):
                    os.chmod(child, 0o700)
    shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)
