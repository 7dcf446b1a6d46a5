"""Folders for snippets that nothing isolates."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_NAMES = "orchestra-python-"


class Workspaces:
    """A temporary folder, locked as long as its owner lives: a killed one's is removed by the next owner.

    Attributes:
        path: of the folder.
    """

    def __init__(self) -> None:
        for path in Path(tempfile.gettempdir()).glob(f"{_NAMES}*"):
            if (lock := _lock(path)) is not None:
                _remove_folder(str(path))
                os.close(lock)
        while True:
            self.path = tempfile.mkdtemp(prefix=_NAMES)
            if (lock := _lock(Path(self.path))) is not None:  # else another process already takes it for a dead one's
                break
        self._lock = lock

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        _remove_folder(self.path)
        os.close(self._lock)


def _lock(folder: Path) -> int | None:
    """Return the descriptor that holds a folder's lock; None if the folder is gone, another user's, or locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except OSError:
        os.close(descriptor)
        return None


def _remove_folder(folder: str) -> None:
    # Without isolation a snippet may have taken rights away; only root could remove such a folder as it is.
    for path, names, _ in os.walk(folder):
        for child in (os.path.join(path, name) for name in names):
            if not os.path.islink(child):
                with contextlib.suppress(OSError):
                    os.chmod(child, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
