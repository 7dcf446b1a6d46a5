"""The budget of a run and of its steps, kept across restarts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import BudgetConfig
from orchestra_jax.money.budgets import Budget, Limits, Spending, total
from orchestra_jax.money.journal import Journal
from orchestra_jax.money.sums import State, added
from orchestra_jax.processes import Processes

FILE_NAME = "spent.jsonl"


class Halted(Exception):  # noqa: N818  an event, no error
    """A budget or the record does not let the run go on; everything is saved."""


def limits(budget: BudgetConfig, level: str) -> Limits:
    """Return the limits of the level "run", "step" or "trajectory"."""
    return Limits(*(getattr(budget, f"{level}_{unit}") for unit in ("usd", "tokens", "calls")))


class RunBudget:
    """The budget of the run, kept in a file of its own: a run that goes back to a checkpoint has spent it all the same.

    Of several processes each has a file, and a share of what is left, which `share` deals out anew.

    Attributes:
        run: this process's budget of the whole run, what was spent before a restart included.

    Raises:
        ConfigError: a file is broken.
    """

    def __init__(self, budget: BudgetConfig, directory: Path, processes: Processes | None = None) -> None:
        self._config, self._processes = budget, processes or Processes()
        left = _files_of_others(directory, self._processes.count) if self._processes.first else []
        self._journal = Journal(_file(directory, self._processes.index))
        self.run = Budget(limits(budget, "run"), name="run", journal=self._journal)
        taken = list[State]()
        if left:
            from orchestra_jax.money.bill import read_bill

            taken = [part for file in left for part in read_bill(file)]
            self._journal.take_over(added(taken))
            for file in left:
                file.unlink()
        self.run.set_state(added([self._journal.paid, self._journal.in_flight, *taken]))
        self._others = Budget()

    @property
    def spent(self) -> Spending:
        """Sum of what all processes spent, the others until the last `share`."""
        return total([self.run.spent, self._others.spent])

    def share(self, states: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Deal out what is left of the run's budget among the processes; all of them call this.

        Args:
            states: `run.get_state()` of every process; None: the processes exchange them.
        """
        processes = self._processes
        if processes.count == 1:
            return
        states = states or processes.gather(self.run.get_state())
        whole, own = Budget(), Budget()
        whole.set_state(added(states))
        own.set_state(states[processes.index])
        self._others.set_state(added([*states[: processes.index], *states[processes.index + 1 :]]))
        self.run.limits = _share(limits(self._config, "run"), processes, whole.spent, own.spent)

    def step(self) -> Budget:
        """Return the budget of a new step, or this process's share of it."""
        share = _share(limits(self._config, "step"), self._processes, Spending(), Spending())
        return Budget(share, name="step", parent=self.run)

    def close(self) -> None:
        """Close the bill; every call has ended."""
        self._journal.close()

    def summary(self) -> dict[str, Any]:
        """Return dollars, tokens and calls of all processes, in all and by model or tool, dearest first."""
        whole = self.run
        if self._processes.count > 1:
            whole = Budget()
            whole.set_state(added(self._processes.gather(self.run.get_state())))
        names = sorted(whole.by_name().items(), key=lambda item: -item[1].usd)
        return {**asdict(whole.spent), "by_name": {name: asdict(spent) for name, spent in names}}


def bill(directory: Path) -> tuple[State, State]:
    """Read from the files of all processes what a run paid, and the worst cases of calls in flight at their end."""
    from orchestra_jax.money.bill import read_bill

    files = [_file(directory, 0), *_files_of_others(directory, 1)]
    paid, in_flight = zip(*(read_bill(file) for file in files), strict=True)
    return added(paid), added(in_flight)


def _file(directory: Path, index: int) -> Path:
    return directory / (FILE_NAME if index == 0 else f"spent-{index}.jsonl")


def _files_of_others(directory: Path, count: int) -> list[Path]:
    """Return the files of processes that the run had before it was restarted with `count` of them."""
    found = {int(file.stem.removeprefix("spent-")): file for file in directory.glob("spent-[0-9]*.jsonl")}
    return [file for index, file in sorted(found.items()) if index >= count]


def _share(whole: Limits, processes: Processes, spent: Spending, own: Spending) -> Limits:
    """Return the limits of one process: what it spent and its share of what is left."""
    if processes.count == 1:
        return whole

    def part(limit: int | None, spent: int, own: int) -> int | None:
        return None if limit is None else own + len(processes.mine(range(max(0, limit - spent))))

    usd = None if whole.usd is None else own.usd + max(0.0, whole.usd - spent.usd) / processes.count
    return Limits(usd, part(whole.tokens, spent.tokens, own.tokens), part(whole.calls, spent.calls, own.calls))
