"""Tell in a sentence what ended a run, where the user can mend or wanted it; loaded when something does."""

import sys

from orchestra_jax.config.exit_status import DISK_FULL, INTERRUPTED, USAGE_ERROR
from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.money.run_budget import Halted
from orchestra_jax.processes import Processes
from orchestra_jax.training.full_disk import disk_full, disk_full_sentence
from orchestra_jax.training.stopping import Interrupted
from orchestra_jax.types import OutOfTime

_HALTED = 3


def status_of(error: BaseException, processes: Processes | None, folder: str | None) -> int | None:
    """Print the sentence for an error and return the status to exit with; None for a bug, which keeps its trace.

    Args:
        processes: of the run; only the first tells what ends all of them.
        folder: of the run.
    """
    if isinstance(error, KeyboardInterrupt):
        print("Stopped at once; the same command continues from the last checkpoint.", file=sys.stderr, flush=True)
        return INTERRUPTED
    known = ((ConfigError, USAGE_ERROR), (Halted, _HALTED), (Interrupted, INTERRUPTED))
    status = next((status for kind, status in known if isinstance(error, kind)), None)
    sentence = str(error)
    if status is None:
        if not disk_full(error):
            return None
        sentence, status = disk_full_sentence(folder), DISK_FULL
    if processes is None or processes.first or not processes.agreed:
        print(sentence, file=sys.stderr, flush=True)
    return status


def stopped(error: Exception, where: str, usd: float) -> Halted | Interrupted:
    """Return how a run ends whose next step cannot be done.

    Args:
        error: a budget or a record that refused a call, or the time that is over.
        where: the last finished step, which is saved.
        usd: dollars that were spent.
    """
    if isinstance(error, OutOfTime):
        return Interrupted(f"Stopped after {where}: {error}; the same command continues from there.")
    scope = error.scope if isinstance(error, BudgetExceeded) else ""
    raised = f" with a higher budget.{scope}_*" if scope else ""
    return Halted(
        f"{error} Stopped after {where} with ${usd:.6g} spent; the same command{raised} continues from there."
    )
