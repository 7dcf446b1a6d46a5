"""The budget of a run and of its steps, kept across restarts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import BudgetConfig
from orchestra_jax.money.budgets import Budget, Limits, Spending, bill_file, total
from orchestra_jax.processes import Processes


class Halted(Exception):  # noqa: N818  an event, no error
    """A budget or the record does not let the run go on; everything is saved."""


def limits(budget: BudgetConfig, level: str) -> Limits:
    """Return the limits of the level "run", "step" or "trajectory"."""
    return Limits(*(getattr(budget, f"{level}_{unit}") for unit in ("usd", "tokens", "calls")))


class RunBudget:
    """The budget of the run, kept in a file of its own: a run that goes back to a checkpoint has spent it all the same.

    Of several processes each has a file, and a share of what is left (`money.shares`), which `share` deals out anew.

    Attributes:
        run: this process's budget of the whole run, what was spent before a restart included.

    Raises:
        ConfigError: a file is broken.
    """

    def __init__(self, budget: BudgetConfig, directory: Path, processes: Processes | None = None) -> None:
        self._config, self._processes, self._others = budget, processes or Processes(), Spending()
        self.run = Budget(limits(budget, "run"), name="run", bill=bill_file(directory, self._processes.index))
        if any(directory.glob("spent*.jsonl")):
            from orchestra_jax.money.bill import bills_of_others
            from orchestra_jax.money.journal import Journal

            journal = self.run.journal
            assert isinstance(journal, Journal)
            lost = bills_of_others(directory, self._processes.count) if self._processes.first else []
            self.run.set_state(journal.spent_before(lost))

    @property
    def spent(self) -> Spending:
        """Sum of what all processes spent, the others until the last `share`."""
        return total([self.run.spent, self._others])

    def share(self, states: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Deal out what is left of the run's budget among the processes; all of them call this.

        Args:
            states: `run.get_state()` of every process; None: the processes exchange them.
        """
        if self._processes.count > 1:
            from orchestra_jax.money.shares import dealt

            states = states or self._processes.gather(self.run.get_state())
            self._others, self.run.limits = dealt(limits(self._config, "run"), self._processes, states)

    def step(self) -> Budget:
        """Return the budget of a new step, or this process's share of it."""
        whole = limits(self._config, "step")
        if self._processes.count > 1:
            from orchestra_jax.money.shares import share_of

            whole = share_of(whole, self._processes, Spending(), Spending())
        return Budget(whole, name="step", parent=self.run)

    def close(self) -> None:
        """Close the bill; every call has ended."""
        self.run.close()

    def summary(self) -> dict[str, Any]:
        """Return dollars, tokens and calls of all processes, in all and by model or tool, dearest first."""
        whole = self.run
        if self._processes.count > 1:
            from orchestra_jax.money.shares import together

            whole = together(self._processes.gather(self.run.get_state()))
        names = sorted(whole.by_name().items(), key=lambda item: -item[1].usd)
        return {**asdict(whole.spent), "by_name": {name: asdict(spent) for name, spent in names}}
