"""The processes of a run as its parts see them; this one class serves a run of a single process."""

from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from orchestra_jax.processes.lifeline import Lifeline

T = TypeVar("T")


class Processes:
    """The processes that train one policy together. By default there is one, and nothing here costs anything.

    `several.SeveralProcesses` makes the exchanges of several. All of them make the same exchanges in the same order.

    Attributes:
        index: number of this process.
        count: number of processes.
        agreed: whether all of them have raised an error at the same place.
        beside: number of processes on this machine, this one included.
        lifeline: the connection between several processes.
    """

    def __init__(self, index: int = 0, count: int = 1) -> None:
        self.index, self.count, self.agreed, self.beside = index, count, False, 1
        self.lifeline: Lifeline | None = None

    @property
    def first(self) -> bool:
        """True in the one process that writes what a run leaves only once."""
        return self.index == 0

    def mine(self, items: Sequence[T]) -> list[T]:
        """Return this process's share of items that all processes have in the same order."""
        return list(items[self.index :: self.count])

    def share(self, limit: int) -> int:
        """Return this process's part of a limit on all of them; at least 1."""
        return max(1, limit // self.count + (self.index < limit % self.count))

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in their order. Values must be picklable."""
        return [value]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise an error of the block, which each process runs alone, in all of them once all have come here.

        If several fail, all raise the error of the first of them.
        """
        yield

    async def merged(self, work: Awaitable[Sequence[T]]) -> list[T]:
        """Return what all processes made of their shares (`mine`), in the order of the whole.

        Errors are raised as in `together`. The event loop goes on while this process waits for the others.
        """
        return list(await work)
