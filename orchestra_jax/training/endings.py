"""Tell in a sentence what ended a run, where the user can mend or wanted it; loaded when something does."""

import errno
import sys
from pathlib import Path

from orchestra_jax.config.errors import unwritable
from orchestra_jax.config.exit_status import DISK_FULL, HALTED, INTERRUPTED, USAGE_ERROR
from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.money.run_budget import Halted
from orchestra_jax.money.unsaved import kept_in
from orchestra_jax.processes import Processes
from orchestra_jax.training.full_disk import disk_full, disk_full_sentence
from orchestra_jax.training.stopping import Interrupted
from orchestra_jax.types import OutOfTime

_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def status_of(
    error: BaseException, processes: Processes | None, folder: str | None = None, calls: str | None = None
) -> int | None:
    """Print the sentence for an error and return the status to exit with; None for a bug, which keeps its trace.

    Args:
        processes: of the run; only the first tells what ends all of them.
        folder, calls: of the run, and its file of recorded calls.
    """
    if isinstance(error, KeyboardInterrupt):
        print("Stopped at once; the same command continues from the last checkpoint.", file=sys.stderr, flush=True)
        return INTERRUPTED
    known = ((ConfigError, USAGE_ERROR), (Halted, HALTED), (Interrupted, INTERRUPTED))
    status = next((status for kind, status in known if isinstance(error, kind)), None)
    sentence = str(error)
    if status is None:
        if disk_full(error):
            sentence, status = disk_full_sentence(folder), DISK_FULL
        elif isinstance(error, OSError) and _refuses_writes(error, folder):
            sentence, status = unwritable(str(error.filename), str(error.strerror)), USAGE_ERROR
        else:
            return None
    if calls and (kept := kept_in(Path(calls))) not in sentence:
        sentence += kept
    if processes is None or processes.first or not processes.agreed:
        print(sentence, file=sys.stderr, flush=True)
    return status


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
