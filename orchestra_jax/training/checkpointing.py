"""Checkpoints of everything a run needs to continue: arrays through Orbax, the rest as JSON beside them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp


class Checkpoints:
    """The newest `keep` checkpoints of a run, saved together and restored together.

    A save is visible only once it is complete, so a process that is killed while saving leaves the previous
    checkpoint in force.

    Args:
        directory: made if missing.
        keep: how many are kept.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=True)
        self._manager = ocp.CheckpointManager(directory.resolve(), options=options)

    def save(self, step: int, arrays: Any, meta: Mapping[str, Any]) -> None:
        """Saves in the background; `arrays` may be donated once this returns.

        Args:
            step: larger than that of every earlier checkpoint; saving the same step again does nothing.
            arrays: any pytree of arrays.
            meta: JSON-able: phase, data cursor, weight version, best metric, seconds.
        """
        if step in self._manager.all_steps():
            return
        self._manager.save(
            step, args=ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), meta=ocp.args.JsonSave(dict(meta)))
        )

    def peek(self) -> dict[str, Any] | None:
        """The newest checkpoint's meta, or None when there is none."""
        step = self._manager.latest_step()
        if step is None:
            return None
        return dict(self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"])

    def restore(self, like: Any) -> Any:
        """The newest checkpoint's arrays.

        Args:
            like: a tree of arrays or shape structs with the structure, shapes, dtypes and shardings to restore.
        """
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        step = self._manager.latest_step()
        restored = self._manager.restore(step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(abstract)))
        return restored["arrays"]

    def close(self) -> None:
        """Waits for saves under way."""
        self._manager.wait_until_finished()
        self._manager.close()
