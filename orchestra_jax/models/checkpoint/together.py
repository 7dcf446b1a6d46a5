"""Write the files of a checkpoint by all processes of a run, each its share; the run's folder is on a shared disk."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils


@contextmanager
def written_together(place: AbstractContextManager[Path], folder: Path, write: Callable[..., None]) -> Iterator[Path]:
    """Write the files, and give the folder that they are in, where the first process writes the rest.

    All processes call this together. An error in one is raised there, and an OSError that names it in all others.

    Args:
        place: `whole_folder` of the folder, for the first process.
        folder: where this process sees it. One that does not see it writes no file.
        write: gets the folder to write into, and `own`, which tells the numbers of this process's files.
    """
    index, folder = jax.process_index(), folder.with_name(f".{folder.name}.partial")  # as `whole_folder` has it
    with ExitStack() as parts:
        with _all_or_none(folder):
            if index == 0:
                folder = parts.enter_context(place)
        writers = np.flatnonzero(_gathered(folder.is_dir()))
        with _all_or_none(folder):
            write(folder, own=lambda number: writers[number % len(writers)] == index)
        with _all_or_none(folder):
            yield folder
        with _all_or_none(folder):
            parts.close()


@contextmanager
def _all_or_none(folder: Path) -> Iterator[None]:
    """Raise the error of one process in all of them, once all have come here."""
    own: Exception | None = None
    try:
        yield
    except Exception as error:
        own = error
    failed = np.flatnonzero(_gathered(own is not None))
    if own is not None:
        raise own
    if len(failed):
        raise OSError(f"Process {failed[0]} could not write its part of {str(folder)!r}: its own error says why.")


def _gathered(value: bool) -> np.ndarray:
    """Return the values of all processes, in their order."""
    with jax.transfer_guard("allow"):  # explicit, but JAX does not count it as such
        return np.asarray(multihost_utils.process_allgather(np.int32(value))).reshape(-1)
