"""Exchange values, errors and whole weights between the processes of a run."""

import asyncio
import functools
import pickle
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.tree_util import KeyPath

from orchestra_jax.processes.group import Processes

T = TypeVar("T")

_SMALLEST = 1024  # bytes of an exchange; sizes are powers of two, so that few programs are compiled


def processes_of_run() -> Processes:
    """Return this process among those of its run, for parts that are made without being told; starts no JAX."""
    several = jax.distributed.is_initialized()
    return Processes(jax.process_index(), jax.process_count()) if several else Processes()


class SeveralProcesses(Processes):
    """One of several processes of a run."""

    def gather(self, value: T) -> list[T]:
        own = np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)
        with jax.transfer_guard("allow"):  # explicit, but JAX does not count it as such
            sizes = multihost_utils.process_allgather(np.int64(own.size)).reshape(-1)
            padded = np.zeros(max(_SMALLEST, 1 << (int(sizes.max()) - 1).bit_length()), np.uint8)
            padded[: own.size] = own
            everyone = multihost_utils.process_allgather(padded)
        return [pickle.loads(row[:size].tobytes()) for row, size in zip(everyone, sizes, strict=True)]

    @contextmanager
    def together(self) -> Iterator[None]:
        own: Exception | None = None
        try:
            yield
        except Exception as error:
            own = error
        self._settle(own, None)

    async def merged(self, work: Awaitable[Sequence[T]]) -> list[T]:
        own: Exception | None = None
        made: Sequence[T] = ()
        try:
            made = await work
        except Exception as error:
            own = error
        shares = await asyncio.to_thread(self._settle, own, list(made))
        return [shares[n % self.count][n // self.count] for n in range(sum(map(len, shares)))]

    def _settle(self, own: Exception | None, value: T) -> list[T]:
        """Return every process's value, or raise the first error of any process."""
        found = self.gather((_portable(own), value))
        for index, (error, _) in enumerate(found):
            if error is not None:
                self.agreed = True
                if own is not None and index == self.index:
                    raise own
                raise error from own
        return [theirs for _, theirs in found]


def _portable(error: Exception | None) -> Any:
    """Return the error as other processes can raise it: itself if it can be pickled, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def on_host(params: Any, dtype: str | None, by_column: Callable[[KeyPath], bool] = lambda path: False) -> Any:
    """Return whole parameters in this process's host memory, gathered one layer's tensor after the other.

    Args:
        dtype: dtype to cast to on the devices, before they travel; None: they keep their own.
        by_column: whether the matrix at a path lies in memory column by column: its transpose is then written without
            a copy. The devices turn their shards, which takes a processor core minutes for a whole policy.
    """

    def gathered(leaf: jax.Array) -> np.ndarray:
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    def whole(path: KeyPath, leaf: jax.Array) -> np.ndarray:
        kept, turned = jnp.dtype(dtype or leaf.dtype), by_column(path)
        if leaf.ndim < 3:
            out = gathered(_cut(leaf, None, kept, turned))
        else:
            *outer, rows, columns = leaf.shape
            out = np.empty((*outer, columns, rows) if turned else leaf.shape, kept)
            for layer in range(len(out)):  # stacked layers
                out[layer] = gathered(_cut(leaf, layer, kept, turned))
        return out.swapaxes(-1, -2) if turned else out

    with jax.transfer_guard("allow"):  # explicit, but JAX does not count it as such
        return jax.tree_util.tree_map_with_path(whole, params)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _cut(param: jax.Array, layer: int | None, dtype: jnp.dtype, turned: bool) -> jax.Array:
    part = (param if layer is None else jax.lax.dynamic_index_in_dim(param, layer, keepdims=False)).astype(dtype)
    return part.swapaxes(-1, -2) if turned else part
