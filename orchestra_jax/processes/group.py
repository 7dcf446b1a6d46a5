"""The processes of a run: which one this is, what belongs to it, and what all of them agree on."""

import asyncio
import pickle
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from orchestra_jax.processes.lifeline import Lifeline

T = TypeVar("T")

_SMALLEST = 1024  # bytes of an exchange; sizes are powers of two, so that few programs are compiled


class Processes:
    """The processes that train one policy together; by default a single one, for which nothing here costs anything.

    All make the same exchanges in the same order, one at a time.

    Attributes:
        index, count: this process among all.
        agreed: whether an error was raised in all of them at the same place.
        beside: those on this one's machine, itself included.
        lifeline: what connects them, where there are several.
    """

    def __init__(self, index: int = 0, count: int = 1) -> None:
        self.index, self.count, self.agreed, self.beside = index, count, False, 1
        self.lifeline: Lifeline | None = None

    @classmethod
    def of_run(cls) -> "Processes":
        """This process among those of its run, for parts that are made without being told; does not start JAX."""
        if not jax.distributed.is_initialized():
            return cls()
        return cls(jax.process_index(), jax.process_count())

    @property
    def first(self) -> bool:
        """Whether this is the process that writes what a run leaves once."""
        return self.index == 0

    def mine(self, items: Sequence[T]) -> list[T]:
        """This process's share of what all of them have in the same order."""
        return list(items[self.index :: self.count])

    def share(self, limit: int) -> int:
        """This process's part of a limit on all of them, at least 1: with more processes than that, all have 1."""
        return max(1, limit // self.count + (self.index < limit % self.count))

    def gather(self, value: T) -> list[T]:
        """Every process's value, by process; they must be picklable."""
        if self.count == 1:
            return [value]
        own = np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)
        with jax.transfer_guard("allow"):  # explicit, but JAX does not count it as such
            sizes = multihost_utils.process_allgather(np.int64(own.size)).reshape(-1)
            padded = np.zeros(max(_SMALLEST, 1 << (int(sizes.max()) - 1).bit_length()), np.uint8)
            padded[: own.size] = own
            everyone = multihost_utils.process_allgather(padded)
        return [pickle.loads(row[:size].tobytes()) for row, size in zip(everyone, sizes, strict=True)]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what each process does alone: an error in one of them is raised in all, once all have come here.

        Where several fail, all raise the error of the first of them.
        """
        if self.count == 1:
            yield
            return
        own: Exception | None = None
        try:
            yield
        except Exception as error:
            own = error
        self._settle(own, None)

    async def merged(self, work: Awaitable[Sequence[T]]) -> list[T]:
        """What all processes made of their shares (`mine`), in the order of the whole; errors as in `together`.

        The event loop goes on while this process waits for the others.
        """
        if self.count == 1:
            return list(await work)
        own: Exception | None = None
        made: Sequence[T] = ()
        try:
            made = await work
        except Exception as error:
            own = error
        shares = await asyncio.to_thread(self._settle, own, list(made))
        return [shares[n % self.count][n // self.count] for n in range(sum(map(len, shares)))]

    def _settle(self, own: Exception | None, value: T) -> list[T]:
        """Every process's value, unless one of them has an error instead."""
        found = self.gather((_portable(own), value))
        for index, (error, _) in enumerate(found):
            if error is not None:
                self.agreed = True
                if own is not None and index == self.index:
                    raise own
                raise error from own
        return [theirs for _, theirs in found]


def _portable(error: Exception | None) -> Any:
    """The error as other processes can raise it: itself where that survives the way, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
