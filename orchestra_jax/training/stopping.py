"""How a run stops before its end: Ctrl-C, a budget that is used up, a call that was never recorded."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.replay import ReplayMiss
from orchestra_jax.money.run import Halted


class Interrupted(Exception):  # noqa: N818  an event, no error
    """The user stopped the run; everything is saved."""


class CleanInterrupt:
    """The first Ctrl-C asks the run to end after the step under way; a second one ends it at once.

    A context manager. Outside the main thread (a notebook's or sweep's worker) it changes nothing.

    Attributes:
        asked: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.asked = False
        self._previous: Any = None

    def __enter__(self) -> Self:
        try:
            self._previous = signal.signal(signal.SIGINT, self._note)
        except ValueError:  # not in the main thread
            self._previous = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def interrupted(phase: str, step: int) -> Interrupted:
    """Says where the run stopped."""
    return Interrupted(f"Stopped after step {step} of {phase}; the same command continues from there.")


def halted(error: BudgetExceeded | ReplayMiss, budget: Budget, phase: str, step: int) -> Halted:
    """Says why and where the run stopped, and what makes it go on.

    Args:
        budget: of the whole run.
    """
    raised = f" with a higher budget.{error.scope}_*" if isinstance(error, BudgetExceeded) else ""
    return Halted(
        f"{error} Stopped after step {step} of {phase} with ${budget.spent.usd:.6g} spent; the same command{raised} "
        "continues from there."
    )
