"""Read what earlier starts of a run spent, from the bills of all its processes."""

from pathlib import Path

from orchestra_jax.money.bill import read_bill
from orchestra_jax.money.budgets import bill_file
from orchestra_jax.money.journal import Journal
from orchestra_jax.money.sums import State, added
from orchestra_jax.processes import Processes


def bill(directory: Path) -> tuple[State, State]:
    """Read from the files of all processes what a run paid, and the worst cases of calls in flight at their end."""
    files = [bill_file(directory, 0), *_files_of_others(directory, 1)]
    paid, in_flight = zip(*(read_bill(file) for file in files), strict=True)
    return added(paid), added(in_flight)


def spent_before(journal: Journal, directory: Path, processes: Processes) -> State:
    """Return what this process of a run spent before a restart; the first also takes over the bills of lost ones."""
    left = _files_of_others(directory, processes.count) if processes.first else []
    taken = [part for file in left for part in read_bill(file)]
    if left:
        journal.take_over(added(taken))
        for file in left:
            file.unlink()
    return added([journal.paid, journal.in_flight, *taken])


def _files_of_others(directory: Path, count: int) -> list[Path]:
    """Return the files of processes that the run had before it was restarted with `count` of them."""
    found = {int(file.stem.removeprefix("spent-")): file for file in directory.glob("spent-[0-9]*.jsonl")}
    return [file for index, file in sorted(found.items()) if index >= count]
