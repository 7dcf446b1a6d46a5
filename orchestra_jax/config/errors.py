"""Tell the errors of users from bugs, and say in a sentence what a user did wrong; loaded when something fails."""

import contextlib
import errno
import os
import sys
import threading
import time
import traceback

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from orchestra_jax.config.exit_status import DISK_FULL, INTERRUPTED, USAGE_ERROR
from orchestra_jax.config.messages import explain
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.config.sweep import JobEnded

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEFT_S = 5.0  # for threads to end


def told(error: BaseException, *, traced: bool = False) -> int | None:
    """Print the sentence for an error that a user made or that a full disk is, and return the status to exit with.

    None for any other error, such as a bug, which keeps its trace; with `traced`, for a user's error too.
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED  # nothing has begun: a run has a sentence for it
    if isinstance(error, JobEnded):
        return error.status
    if isinstance(error, OSError) and error.errno in _FULL:
        print(f"No space, or quota, is left on the disk of {error.filename or os.getcwd()!r}.", file=sys.stderr)
        return DISK_FULL
    if traced or not isinstance(error, Exception) or not is_users_error(error):
        return None
    print(explain_error(error), file=sys.stderr)
    return USAGE_ERROR


def explain_error(error: BaseException, folder: str | None = None) -> str:
    """Return what a user did wrong, in one sentence (one per problem for a `ConfigError`).

    Args:
        folder: what could not be written, if the error does not name it.
    """
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return (
            "A job of this sweep would get a folder with a longer name than the file system allows: number the "
            "folders with hydra.sweep.subdir='${hydra.job.num}', or put what all jobs share into a file of "
            "conf/experiment."
        )
    if isinstance(error, OSError) and not _reads_config(error):
        return unwritable(folder or str(error.filename), str(error.strerror))
    return explain(error)


def is_users_error(error: Exception) -> bool:
    """Return whether a user made the error: it is ours or Hydra's, or Hydra met it with files and arguments."""
    if isinstance(error, ConfigError | HydraException | OmegaConfBaseException):
        return True
    if isinstance(error, OSError):
        modules = [str(frame.f_globals["__name__"]) for frame, _ in traceback.walk_tb(error.__traceback__)]
        callers = [module for module in modules if module.partition(".")[0] not in ("os", "pathlib")]
        return error.errno == errno.ENAMETOOLONG or callers[-1].startswith("hydra.")  # it makes output_dir
    return _reads_config(error)


def _reads_config(error: BaseException) -> bool:
    """Return whether Hydra was reading a file of conf/."""
    return any(frame.f_code.co_name == "load_configuration" for frame, _ in traceback.walk_tb(error.__traceback__))


def remove_empty(folder: str) -> None:
    """Remove the folder of a refused start, and `outputs` if that was made for it, unless they hold something."""
    around = os.path.dirname(folder)
    with contextlib.suppress(OSError):
        os.rmdir(folder)
        if os.path.basename(around) == "outputs":
            os.rmdir(around)


def leave(status: int) -> None:
    """End the process with this status, if threads are left that do not end soon.

    Where the folder of a checkpoint cannot be made, Orbax' threads wait for it for five minutes, and Python for them.
    """
    until = time.monotonic() + _LEFT_S
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            threading.Thread.join(thread, max(0.0, until - time.monotonic()))  # Orbax' own raises
            if thread.is_alive():
                sys.stderr.flush()
                os._exit(status)


def unwritable(path: str, reason: str, setting: str = "output_dir") -> str:
    """Return the sentence for a folder, or something in it, that cannot be written."""
    fix = "free some, or set" if reason in map(os.strerror, _FULL) else "set"
    return f"The folder {path!r} cannot be written ({reason}): {fix} {setting} to one that can."
