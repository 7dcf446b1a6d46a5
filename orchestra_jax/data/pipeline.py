"""The stream of training tasks on grain: shuffled again each epoch, resumed exactly."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from orchestra_jax.types import Task


class TaskIterator(Protocol):
    """An endless stream of batches; its state is JSON-able and replays exactly. Grain's CheckpointSave takes it."""

    def __next__(self) -> list[Task]: ...

    def __iter__(self) -> "TaskIterator": ...

    def get_state(self) -> dict[str, Any]:
        """Return the position in the stream."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a position that `get_state` returned."""


def task_iterator(
    *sources: Sequence[Any],
    seed: int,
    batch_size: int,
    build: Callable[[Any, np.random.Generator], Task | list[Task]] | None = None,
    weights: Sequence[float] | None = None,
) -> TaskIterator:
    """Return an endless stream of batches of tasks, across epochs without a remainder.

    Each epoch has another order, which depends on the seed alone. Processes share a batch (`rollout.sharing`).

    Args:
        sources: tasks, or items that `build` makes tasks of; several are mixed by weight, each shuffled in itself.
        seed: seed of the order and of the generators.
        batch_size: tasks per batch.
        build: makes a task of an item, or a list of tasks, with a generator of its own for each position of the
            stream, so that the same question gets another menu and preference in another epoch.
        weights: share of each source in the stream, up to a factor; None: equal shares.

    Raises:
        ValueError: an empty source or batch, or weights that are not one positive number a source.
    """
    if not sources or any(len(source) == 0 for source in sources):
        raise ValueError("The task source is empty; give it at least one task.")
    if weights is not None and (len(weights) != len(sources) or min(weights) <= 0):
        raise ValueError(f"weights={list(weights)} must be one positive number for each of {len(sources)} source(s).")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be positive.")
    import grain  # only here: it brings Orbax with it, which takes a second

    # Practically endless; grain's own endless repeat overflows in batches of one.
    shuffled = [
        grain.MapDataset.source(source).seed(seed + n).shuffle().repeat((1 << 40) // len(source) + 1)
        for n, source in enumerate(sources)
    ]
    dataset = shuffled[0] if len(shuffled) == 1 else grain.MapDataset.mix(shuffled, weights).seed(seed)
    if build is not None:
        dataset = dataset.random_map(build)
    dataset = dataset.batch(batch_size, batch_fn=_flat)
    # Tasks are in memory: reading ahead in threads would cost more than it hides.
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return iter(dataset.to_iter_dataset(options))


def _flat(items: Sequence[Task | list[Task]]) -> list[Task]:
    return [task for item in items for task in (item if isinstance(item, list) else [item])]
