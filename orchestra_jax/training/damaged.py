"""Find damaged checkpoints by their checksums, and put them aside; loaded by a run that has checkpoints."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.processes import Processes
from orchestra_jax.training.checkpoint_names import NAME, checkpoints_in, in_bucket
from orchestra_jax.training.checksums import PART, SUMS, crcs

_ITEMS = ("arrays", "meta")
_NEEDED = ("_CHECKPOINT_METADATA", "arrays/_METADATA", "meta/metadata")  # JSON that a checkpoint cannot do without
_PART_SUMS = re.compile(r"checksums\.\d+\.json")
_Sums = dict[str, list[int]]  # by path below the item's folder: bytes, CRC-32


def put_damaged_aside(directory: Any, processes: Processes) -> None:
    """Move damaged checkpoints away, newest first, until one is whole, and say so; remove unfinished saves.

    A bucket checks its objects itself: there, only unfinished saves are removed.
    """
    if in_bucket(directory):
        from orchestra_jax.training.buckets import remove_unfinished

        remove_unfinished(directory, processes)
        return
    damaged, whole = dict[str, str](), None
    for step in processes.gather([path.name for _, path in reversed(checkpoints_in(directory))])[0]:
        if (reason := problem(directory / step, processes)) is None:
            whole = step
            break
        damaged[step] = reason
    with processes.together():
        if processes.first and directory.is_dir():
            for partial in directory.iterdir():
                name, unfinished, _ = partial.name.partition(".orbax-checkpoint-tmp")
                if unfinished and NAME.fullmatch(name):
                    shutil.rmtree(partial, ignore_errors=True)
        if damaged and whole is None:
            found = ", ".join(f"{step} ({reason})" for step, reason in damaged.items())
            raise ConfigError(
                f"{str(directory)!r} has no checkpoint that can be used: {found}. Restore one of them, or delete the "
                "folder to begin anew."
            )
        if processes.first:
            for step, reason in damaged.items():
                target = _move(directory / step, directory.parent / "damaged")
                print(
                    f"Checkpoint {step} is damaged ({reason}): the run goes on from checkpoint {whole}; "
                    f"{str(target)!r} is what is left of it.",
                    file=sys.stderr,
                    flush=True,
                )


def problem(step: Path, processes: Processes) -> str | None:
    """Return what is wrong with the checkpoint in this folder, in a few words, or None. All processes call this.

    Each reads its share of the files.
    """
    try:
        found = _own_problem(step, processes)
    except OSError as error:
        found = f"{_below(Path(error.filename or step), step)}: {error.strerror}"
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        found = "its checksums cannot be read"
    return next((each for each in processes.gather(found) if each is not None), None)


def _own_problem(step: Path, processes: Processes) -> str | None:
    if not step.is_dir():
        return "it is no folder"
    for name in _NEEDED:
        if not (step / name).is_file():
            return f"{name} is missing"
        try:
            if not isinstance(json.loads((step / name).read_bytes()), dict):
                return f"{name} is no JSON object"
        except (ValueError, RecursionError):
            return f"{name} is no JSON"
    sums = dict[Path, list[int]]()
    for item in _ITEMS:
        own = _read(step / item / SUMS)
        sums |= {step / item / name: expected for name, expected in own.items()}
        # A network disk may show the first process another one's list too late for its own.
        names = {*own, *(file.name for file in (step / item).glob("checksums.*.json"))}
        for name in filter(_PART_SUMS.fullmatch, names):
            part = step / item / f"{PART}{name.split('.')[1]}"
            sums |= {part / below: expected for below, expected in _read(step / item / name).items()}
    for file, (size, _) in sums.items():
        if not file.is_file():
            return f"{_below(file, step)} is missing"
        if (found := file.stat().st_size) != size:
            return f"{_below(file, step)} has {found} bytes instead of {size}"
    mine = processes.mine(sorted(sums))
    for file, crc in zip(mine, crcs(mine), strict=True):
        if crc != sums[file][1]:
            return f"{_below(file, step)} is not what was written"
    return None


def _below(file: Path, step: Path) -> str:
    return str(file.relative_to(step)) if file.is_relative_to(step) else str(file)


def _read(file: Path) -> _Sums:
    return {str(name): [int(size), int(crc)] for name, (size, crc) in json.loads(file.read_bytes()).items()}


def _move(path: Path, folder: Path) -> Path:
    """Move the path into the folder, under a name that is free there."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [path.name, *(f"{path.name}-{number}" for number in range(2, 1000))]
    target = next(folder / name for name in names if not (folder / name).exists())
    return path.rename(target)
