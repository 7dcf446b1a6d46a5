"""A sweep goes on with its other jobs when one of them is refused or used its budget up; loaded by sweeps."""

import functools
from collections.abc import Callable
from typing import Any

from orchestra_jax.config.exit_status import HALTED, USAGE_ERROR


class JobEnded(Exception):  # noqa: N818  an event, no error
    """A job has told why it ended. Hydra goes on with the others, and raises this after the last one.

    Attributes:
        status: the job's exit status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def each_job(main: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return `main`, whose refusals end its job alone. A signal or a full disk ends the sweep."""

    @functools.wraps(main)
    def job(config: Any) -> None:
        try:
            main(config)
        except SystemExit as stop:
            if stop.code not in (USAGE_ERROR, HALTED):
                raise
            raise JobEnded(int(stop.code)) from None

    return job
