"""Processes whose exchange is prepared: what one process does, without the others."""

from collections.abc import Sequence
from typing import Any

from orchestra_jax.processes.several import SeveralProcesses


class Prepared(SeveralProcesses):
    """One of several processes; `gather` puts this one's value among the `others`' (by process, without its own)."""

    def __init__(self, index: int, count: int, others: Sequence[Any] = ()) -> None:
        super().__init__(index, count)
        self.others = others

    def gather(self, value: Any) -> list[Any]:
        found = list(self.others)
        found.insert(self.index, value)
        return found
