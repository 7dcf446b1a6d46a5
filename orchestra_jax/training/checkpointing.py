"""Checkpoints of everything a run needs to continue: arrays through Orbax, the rest as JSON beside them.

A resumed run ends bit for bit like one that was not stopped (on a CPU, with the embedded engine). This rests on the
following. A checkpoint holds the parameters, the optimizer state with its step count, and the reference of the KL
(arrays; the frozen base of LoRA is read again), and the phase, the step, the version of the engine's weights, the
figures for the summary, the seconds, the config and the position in the tasks (JSON). The position is grain's cursor
or, if groups run ahead, also the groups that were used: what was under way is sampled again. No random state is saved:
every key and seed is derived from the config's seed and the number of the phase, step, group and member. The money that
was spent is in a journal of its own (`money.run_budget`), trajectories of evaluations are kept in files by the
fingerprint of the weights, and files of steps after the checkpoint are removed at the start. A config that would change
the run is refused.
"""

import logging
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from orchestra_jax.config.checks import resume_conflicts
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.processes import Processes
from orchestra_jax.rl.learner import TrainState
from orchestra_jax.training import checksums
from orchestra_jax.training.stopping import disk_full


@dataclass
class RunState:
    """The state that the loop changes.

    Attributes:
        trained: parameters and optimizer state.
        reference: frozen starting policy for the KL; None without a KL, and with LoRA, whose base is the reference.
        phase: "warm_start", then "policy".
        step: number of finished steps of this phase.
        version: version of the engine's weights.
        notes: figures for the summary: "before", "after", "copy_accuracy".
        seconds: seconds that earlier processes spent on the run.
    """

    trained: TrainState
    reference: Any = None
    phase: str = "warm_start"
    step: int = 0
    version: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


_NAME = re.compile(r"(?P<phase>warm_start-|policy-)(?P<step>\d{6,})|0|[1-9]\d*")
_PARTIAL = re.compile(rf"({_NAME.pattern})\.orbax-checkpoint-tmp")
# Orbax numbers checkpoints: each phase has a range of its own. Numbers below belong to no run, or to one of an older
# version, which counted on from the warm start. All fit 32 bits, in which Orbax tells processes of them.
_FIRST = {"": 0, "warm_start-": 1_000_000_000, "policy-": 2_000_000_000}
_JSON = ("phase", "step", "version", "notes", "seconds")  # fields of a RunState that are no arrays


class Names:
    """Orbax' names of checkpoints: phase and step, such as `policy-000050`; digits for a number below all phases."""

    def build_name(self, step: int) -> str:
        """Return the name of a number."""
        phase = max((name for name, first in _FIRST.items() if step >= first), key=_FIRST.__getitem__)
        return f"{phase}{step - _FIRST[phase]:0{6 if phase else 1}d}"

    def find_all(self, base_path: Any) -> Iterator[ocp.step.Metadata]:
        """Yield the checkpoints in a folder, oldest first."""
        return (ocp.step.Metadata(number, path) for number, path in _found(base_path) if path.is_dir())

    def find_step(self, base_path: Any, step: int) -> ocp.step.Metadata:
        """Return the checkpoint with a number."""
        for found in self.find_all(base_path):
            if found.step == step:
                return found
        raise ValueError(f"There is no checkpoint {self.build_name(step)} in {str(base_path)!r}.")


class Checkpoints:
    """The newest `keep` checkpoints of a run.

    A save is visible only once it is complete, so a process that is killed while saving leaves the previous
    checkpoint in force. A damaged one is moved into the folder `damaged` beside `directory`.

    Args:
        processes: processes of the run; all construct this together.

    Raises:
        ConfigError: there are checkpoints, but all of them are damaged.
    """

    def __init__(self, directory: Path, keep: int, processes: Processes | None = None) -> None:
        self._directory = directory
        for library in ("absl", "asyncio"):  # Orbax' messages, and those about its tasks that nobody waited for
            logging.getLogger(library).addFilter(_NOT_OF_FULL_DISKS)
        if sys.unraisablehook is sys.__unraisablehook__:
            sys.unraisablehook = _but_of_closed_loops
        _put_damaged_aside(directory, processes or Processes())
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
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=True, enable_async_checkpointing=True, step_name_format=Names()
        )
        self._manager = ocp.CheckpointManager(directory.resolve(), options=options, handler_registry=handlers)

    def save(self, step: int, arrays: Any, meta: Mapping[str, Any]) -> None:
        """Save in the background. `arrays` may be donated once this returns.

        Args:
            step: number (see `Names`) above those of all earlier checkpoints; the same number again saves nothing.
            arrays: pytree of arrays.
            meta: JSON beside them; see `save_run`.
        """
        if step in self._manager.all_steps():
            return
        self._manager.save(
            step, args=ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), meta=ocp.args.JsonSave(dict(meta)))
        )

    def peek(self) -> dict[str, Any] | None:
        """Return the newest checkpoint's meta, or None if there is none."""
        step = self._manager.latest_step()
        if step is None:
            return None
        return dict(self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"])

    def restore(self, like: Any) -> Any:
        """Return the newest checkpoint's arrays.

        Args:
            like: tree of arrays or shape structs with the wanted structure, shapes, dtypes and shardings; leaves
                without a sharding come back as numpy arrays.
        """
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        step = self._manager.latest_step()
        restored = self._manager.restore(step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(abstract)))
        return restored["arrays"]

    def save_run(self, cfg: RunConfig, state: RunState, position: Mapping[str, Any], seconds: float) -> None:
        """Save a run whose stream of tasks is at `position`, after `seconds` in all."""
        arrays: dict[str, Any] = {"state": state.trained}
        if state.reference is not None:
            arrays["reference"] = state.reference
        meta = {name: getattr(state, name) for name in _JSON} | {"seconds": seconds}
        self.save(_FIRST[f"{state.phase}-"] + state.step, arrays, meta | {"data": position, "config": asdict(cfg)})

    def run_meta(self, cfg: RunConfig) -> dict[str, Any] | None:
        """Return the newest checkpoint's meta, or None if there is none.

        Raises:
            ConfigError: the checkpoint is of a run with another configuration.
        """
        meta = self.peek()
        if meta is not None and (changed := resume_conflicts(meta["config"], cfg)):
            folder = self._directory.parent
            raise ConfigError(
                f"{folder} holds another run ({'; '.join(changed)}): choose another name=..., or delete it."
            )
        return meta

    def restore_run(self, meta: Mapping[str, Any], trained: TrainState, reference: Any) -> RunState:
        """Return the newest checkpoint's run, from `run_meta` and arrays or shape structs like the saved ones.

        A `reference` of None restores none.
        """
        like: dict[str, Any] = {"state": trained}
        if reference is not None:
            like["reference"] = reference
        arrays = self.restore(like)
        return RunState(
            trained=arrays["state"],
            reference=arrays.get("reference"),
            **{name: meta[name] for name in _JSON},
        )

    def check(self) -> None:
        """Raise the error of a save under way, if it has failed."""
        if self._arrays.failure is not None:
            raise self._arrays.failure

    def close(self) -> None:
        """Wait for saves under way, and raise their error."""
        try:
            self._manager.wait_until_finished()
        finally:
            self._manager.close()


class _NotOfFullDisks(logging.Filter):
    """Drops the trace of a save that a full disk ended: the run ends with a sentence about it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and disk_full(record.exc_info[1]))


_NOT_OF_FULL_DISKS = _NotOfFullDisks()


def _but_of_closed_loops(raised: Any) -> None:
    """Drop the message that TensorStore prints for every failing write after the first: that nobody waits for it."""
    if not (isinstance(raised.exc_value, RuntimeError) and str(raised.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(raised)


def _put_damaged_aside(directory: Path, processes: Processes) -> None:
    """Move damaged checkpoints away, newest first, until one is whole, and say so; remove unfinished saves."""
    damaged, whole = dict[str, str](), None
    for step in processes.gather([path.name for _, path in reversed(_found(directory))])[0]:
        problem = checksums.problem(directory / step, processes)
        if problem is None:
            whole = step
            break
        damaged[step] = problem
    with processes.together():
        if processes.first and directory.is_dir():
            for partial in directory.iterdir():
                if _PARTIAL.match(partial.name):
                    shutil.rmtree(partial, ignore_errors=True)
        if damaged and whole is None:
            found = ", ".join(f"{step} ({problem})" for step, problem in damaged.items())
            raise ConfigError(
                f"{str(directory)!r} has no checkpoint that can be used: {found}. Restore one of them, or delete the "
                "folder to begin anew."
            )
        if processes.first:
            for step, problem in damaged.items():
                target = _move(directory / step, directory.parent / "damaged")
                print(
                    f"Checkpoint {step} is damaged ({problem}): the run goes on from checkpoint {whole}; "
                    f"{str(target)!r} is what is left of it.",
                    file=sys.stderr,
                    flush=True,
                )


def newest_checkpoint(directory: Path) -> Path | None:
    """Return the newest checkpoint in a folder, or None if there is none."""
    return next((path for _, path in reversed(_found(directory))), None)


def _found(directory: Any) -> list[tuple[int, Any]]:
    """Return number and path of each checkpoint in a folder, oldest first."""
    paths = list(directory.iterdir()) if directory.is_dir() else []
    named = [(match, path) for path in paths if (match := _NAME.fullmatch(path.name))]
    return sorted((_FIRST[match["phase"] or ""] + int(match["step"] or match[0]), path) for match, path in named)


def _move(path: Path, folder: Path) -> Path:
    """Move the path into the folder, under a name that is free there."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [path.name, *(f"{path.name}-{number}" for number in range(2, 1000))]
    target = next(folder / name for name in names if not (folder / name).exists())
    return path.rename(target)
