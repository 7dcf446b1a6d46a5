"""The budget of a run and of its steps, and what is kept of it across restarts."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import BudgetConfig
from orchestra_jax.money.budgets import Budget, Limits

FILE_NAME = "spent.json"


class Halted(Exception):  # noqa: N818  an event, no error
    """A budget or the record does not let the run go on; everything is saved."""


def limits(budget: BudgetConfig, level: str) -> Limits:
    """The limits of the level "run", "step" or "trajectory"."""
    return Limits(*(getattr(budget, f"{level}_{unit}") for unit in ("usd", "tokens", "calls")))


class RunBudget:
    """The budget of the run, kept in a file of its own: a run that goes back to a checkpoint has spent it all the same.

    Attributes:
        run: the budget of the whole run, what was spent before a restart included.
    """

    def __init__(self, budget: BudgetConfig, directory: Path) -> None:
        self._config, self._file = budget, directory / FILE_NAME
        self.run = Budget(limits(budget, "run"), name="run")
        if self._file.exists():
            self.run.set_state(json.loads(self._file.read_text()))

    def step(self) -> Budget:
        """The budget of a new step."""
        return Budget(limits(self._config, "step"), name="step", parent=self.run)

    def save(self) -> None:
        """Writes what was spent until now; calls in flight count with their worst case."""
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(self.run.get_state()) + "\n")
        os.replace(part, self._file)

    def summary(self) -> dict[str, Any]:
        """Dollars, tokens and calls, in all and by model or tool, dearest first."""
        names = sorted(self.run.by_name().items(), key=lambda item: -item[1].usd)
        return {**asdict(self.run.spent), "by_name": {name: asdict(spent) for name, spent in names}}
