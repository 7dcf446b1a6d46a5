"""Know the errors of a full disk, and tell what to do about it; loaded when a run fails."""

import errno
import re
import shutil
import tempfile
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
# The words of libraries that are not Python: Orbax' TensorStore, safetensors.
_FULL_TEXT = re.compile(rf"No space left on device|[Qq]uota exceeded|os error ({'|'.join(map(str, _FULL))})\b")


def disk_full(error: BaseException | None) -> bool:
    """Return whether the error, or its cause, is that a disk or a quota is used up."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if (error.errno in _FULL) if isinstance(error, OSError) and error.errno else _FULL_TEXT.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def disk_full_sentence(folder: str | None) -> str:
    """Return what to do about a full disk. `folder` is the run's."""
    rooms = []
    for place in dict.fromkeys([folder, tempfile.gettempdir()]):
        if place and Path(place).is_dir():
            rooms.append(f"{place!r} has {shutil.disk_usage(place).free / 1e9:.2f} GB free")
    return (
        f"No space, or quota, is left on a disk that the run writes to ({', '.join(rooms)}): free some, and the same "
        "command continues from the last checkpoint."
    )
