"""Checkpoints of everything a run needs to continue: arrays through Orbax, the rest as JSON beside them.

A resumed run ends bit for bit like one that was not stopped (on a CPU, with the embedded engine), because:

- Arrays in a checkpoint: parameters, optimizer state with its step count, the KL's reference. LoRA's base is read anew.
- JSON in it: phase, step, version of the engine's weights, figures for the summary, seconds, config, position in the
  tasks: grain's cursor and, if groups run ahead, the groups that were used. Those under way are sampled again.
- No random state is saved: every key and seed is derived from the config's seed and the number of the phase, step,
  group and member.
- Spent money is in the run's bill (`money.journal`). Trajectories of evaluations are in files, by the fingerprint of
  the weights. Later steps' files are removed at the start, and a config that would change the run is refused.
"""

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orbax.checkpoint as ocp

from orchestra_jax.config.ranges import Settings
from orchestra_jax.processes import Processes
from orchestra_jax.rl.learner import TrainState
from orchestra_jax.training import checksums
from orchestra_jax.training.checkpoint_names import FIRST, Names, in_bucket


@dataclass
class RunState:
    """The state that the loop changes."""

    trained: TrainState
    reference: Any = None  # frozen start of what is trained, for a KL; None without, and where the base is it
    phase: str = "warm_start"  # then "policy"
    step: int = 0  # number of finished steps of this phase
    version: int = 0  # of the engine's weights
    notes: dict[str, Any] = field(default_factory=dict)  # figures for the summary: "before", "after", "copy_accuracy"
    seconds: float = 0.0  # that earlier processes spent on the run


JSON_FIELDS = ("phase", "step", "version", "notes", "seconds")  # fields of a RunState that are no arrays


class Checkpoints:
    """The newest `keep` checkpoints of a run.

    A save is visible only once it is complete, so a process that is killed while saving leaves the previous
    checkpoint in force. A damaged one is moved into the folder `damaged` beside `directory`.

    Args:
        directory: a path, or Etils' path of a bucket (`checkpoint_names.checkpoint_folder`).
        processes: processes of the run; all construct this together.

    Attributes:
        manager: Orbax' manager of the folder.

    Raises:
        ConfigError: there are checkpoints, but all of them are damaged.
    """

    def __init__(self, directory: Any, keep: int, processes: Processes | None = None) -> None:
        for library in ("absl", "asyncio"):  # Orbax' messages, and those about its tasks that nobody waited for
            logging.getLogger(library).addFilter(_not_of_refusing_disks)
        if sys.unraisablehook is sys.__unraisablehook__:
            sys.unraisablehook = _but_of_closed_loops
        if any((processes or Processes()).gather(directory.exists())):
            from orchestra_jax.training.damaged import put_damaged_aside

            put_damaged_aside(directory, processes or Processes())
        handlers: Any = ocp.handlers.DefaultCheckpointHandlerRegistry()
        self._arrays = arrays = checksums.SummedArrays()
        meta = checksums.SummedJson()
        for item, kind, handler in (
            ("arrays", ocp.args.StandardSave, arrays),
            ("arrays", ocp.args.StandardRestore, arrays),
            ("meta", ocp.args.JsonSave, meta),
            ("meta", ocp.args.JsonRestore, meta),
        ):
            handlers.add(item, kind, handler)
        background = ocp.AsyncOptions(timeout_secs=12 * 3600)  # Orbax' 20 minutes end a run that saves 98 GB at 80 MB/s
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, async_options=background, step_name_format=Names())
        place = directory if in_bucket(directory) else directory.resolve()
        self.manager = ocp.CheckpointManager(place, options=options, handler_registry=handlers)

    def save(self, step: int, arrays: Any, meta: Mapping[str, Any]) -> None:
        """Save in the background. `arrays` may be donated once this returns.

        A `step` (see `Names`) is above those of all earlier checkpoints; the same again saves nothing.
        """
        if step in self.manager.all_steps():
            return
        self.manager.save(
            step, args=ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), meta=ocp.args.JsonSave(dict(meta)))
        )

    def peek(self) -> dict[str, Any] | None:
        """Return the newest checkpoint's meta, or None if there is none."""
        if (step := self.manager.latest_step()) is None:
            return None
        return dict(self.manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"])

    def save_run(self, cfg: Settings, state: RunState, position: Mapping[str, Any], seconds: float) -> None:
        """Save a run whose stream of tasks is at `position`, after `seconds` in all."""
        arrays: dict[str, Any] = {"state": state.trained}
        if state.reference is not None:
            arrays["reference"] = state.reference
        meta = {name: getattr(state, name) for name in JSON_FIELDS} | {"seconds": seconds}
        self.save(FIRST[f"{state.phase}-"] + state.step, arrays, meta | {"data": position, "config": cfg.as_dict()})

    def check(self) -> None:
        """Raise the error of a save under way, if it has failed."""
        if self._arrays.failure is not None:
            raise self._arrays.failure

    def close(self) -> None:
        """Wait for saves under way, and raise their error."""
        try:
            self.manager.wait_until_finished()
        finally:
            self.manager.close()


def _not_of_refusing_disks(record: logging.LogRecord) -> bool:
    """Return whether to log a record: not the trace of a save that a disk refused, which the run's end explains."""
    if not record.exc_info:
        return True
    from orchestra_jax.training.endings import explained

    return not explained(record.exc_info[1])


def _but_of_closed_loops(raised: Any) -> None:
    """Drop TensorStore's message that nobody waits for a write, as it prints for each failing one but the first."""
    if not (isinstance(raised.exc_value, RuntimeError) and str(raised.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(raised)
