"""Tell in a sentence what ended a run, such as a full disk or the user's wish; loaded when something does."""

import contextlib
import errno
import os
import re
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from orchestra_jax.config.errors import remove_empty, unwritable
from orchestra_jax.config.exit_status import DISK_FULL, HALTED, INTERRUPTED, USAGE_ERROR
from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.money.run_budget import Halted
from orchestra_jax.money.unsaved import kept_in
from orchestra_jax.processes import Processes
from orchestra_jax.processes.lock import FILE_NAME, alone_in
from orchestra_jax.training.stopping import Interrupted
from orchestra_jax.types import OutOfTime

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# The words of libraries that are not Python: Orbax' TensorStore, safetensors.
_FULL_TEXT = re.compile(
    rf"No space left on device|[Qq]uota exceeded|File too large|os error ({'|'.join(map(str, _FULL))})\b"
)
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def status_of(
    error: BaseException,
    processes: Processes | None,
    folder: str | None = None,
    calls: str | None = None,
    checkpoints: str | None = None,
) -> int | None:
    """Print the sentence for an error and return the status to exit with; None for a bug, which keeps its trace.

    Args:
        processes: of the run; only the first tells what ends all of them.
        folder, calls, checkpoints: of the run, its file of recorded calls, and its checkpoint.folder.
    """
    if isinstance(error, KeyboardInterrupt):
        print("Stopped at once; the same command continues from the last checkpoint.", file=sys.stderr, flush=True)
        return INTERRUPTED
    known = ((ConfigError, USAGE_ERROR), (Halted, HALTED), (Interrupted, INTERRUPTED))
    status = next((status for kind, status in known if isinstance(error, kind)), None)
    sentence = str(error)
    if status is None:
        if disk_full(error):
            sentence, status = disk_full_sentence(folder, checkpoints), DISK_FULL
        elif isinstance(error, OSError) and _refuses_writes(error, folder):
            sentence, status = unwritable(str(error.filename), str(error.strerror)), USAGE_ERROR
        elif isinstance(error, OSError) and _refuses_writes(error, checkpoints):
            where = str(error.filename), str(error.strerror)
            sentence, status = unwritable(*where, "checkpoint.folder"), USAGE_ERROR
        else:
            return None
    if calls and (kept := kept_in(Path(calls))) not in sentence:
        sentence += kept
    if folder and status == USAGE_ERROR:
        _remove_unused(folder)
    if processes is None or processes.first or not processes.agreed:
        print(sentence, file=sys.stderr, flush=True)
    return status


def _remove_unused(folder: str) -> None:
    """Remove the folder that Hydra made for a refused start, if it holds a lock at most that nobody has."""
    for place in (os.path.join(folder, "evaluation"), folder):
        with contextlib.suppress(OSError, ConfigError):
            if os.listdir(place) == [FILE_NAME]:
                with alone_in(Path(place)):
                    os.unlink(os.path.join(place, FILE_NAME))
        remove_empty(place)


def _refuses_writes(error: OSError, folder: str | None) -> bool:
    """Return whether something in the run's folder cannot be written: read-only, or a file in a folder's place."""
    if not folder or error.errno not in _UNWRITABLE or not isinstance(error.filename, str):
        return False
    return Path(error.filename).resolve().is_relative_to(Path(folder).resolve())


def stopped(error: Exception, where: str, usd: float) -> Halted | Interrupted | ConfigError:
    """Return how a run ends whose next step cannot be done.

    Args:
        error: a budget or a record that refused a call, the time that is over, or servers that are gone.
        where: the last finished step, which is saved.
        usd: dollars that were spent.
    """
    if isinstance(error, OutOfTime) and type(error) is not OutOfTime:  # no signal came: something has to be mended
        return ConfigError(f"{error} Stopped after {where}; with servers that answer the same command continues there.")
    if isinstance(error, OutOfTime):
        return Interrupted(f"Stopped after {where}: {error}; the same command continues from there.")
    scope = error.scope if isinstance(error, BudgetExceeded) else ""
    raised = f" with a higher budget.{scope}_*" if scope else ""
    return Halted(
        f"{error} Stopped after {where} with ${usd:.6g} spent; the same command{raised} continues from there."
    )


def disk_full(error: BaseException | None) -> bool:
    """Return whether the error, or its cause, is that a disk, a quota or the size of a file is used up."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if (error.errno in _FULL) if isinstance(error, OSError) and error.errno else _FULL_TEXT.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def explained(error: BaseException | None) -> bool:
    """Return whether a run that an error of a save ends tells the reason in a sentence, without a trace."""
    return disk_full(error) or (isinstance(error, OSError) and error.errno in _UNWRITABLE)


def disk_full_sentence(folder: str | None, checkpoints: str | None = None) -> str:
    """Return what to do about a full disk. `folder` is the run's, `checkpoints` its checkpoint.folder."""
    rooms = []
    for place in dict.fromkeys([folder, checkpoints, tempfile.gettempdir()]):
        if place and Path(place).is_dir():
            rooms.append(f"{place!r} has {shutil.disk_usage(place).free / 1e9:.2f} GB free")
    fix, (most, _) = "free some", resource.getrlimit(resource.RLIMIT_FSIZE)
    if most != resource.RLIM_INFINITY:
        rooms.append(f"a file may have {most / 1e9:.3g} GB")
        fix += ", or raise `ulimit -f`"
    return (
        f"No space, or quota, is left on a disk that the run writes to ({', '.join(rooms)}): {fix}, and the same "
        "command continues from the last checkpoint."
    )
