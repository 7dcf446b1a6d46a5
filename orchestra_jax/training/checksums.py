"""Checksums of a checkpoint's files, which show before a restore what a disk has lost or changed.

Orbax writes each item of a checkpoint into a folder, and the arrays of process N into its `ocdbt.process_N`. Each
process sums up its own files (`checksums.N.json`). The first process sums up the others, these lists included
(`checksums.json`). So no process reads what another has written. Sums are written before the checkpoint gets its name.
"""

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from orchestra_jax.processes import Processes

_SUMS = "checksums.json"
_ITEMS = ("arrays", "meta")
_NEEDED = ("_CHECKPOINT_METADATA", "arrays/_METADATA", "meta/metadata")  # JSON that a checkpoint cannot do without
_PART = "ocdbt.process_"
_PART_SUMS = re.compile(r"checksums\.\d+\.json")
_CHUNK, _THREADS = 1 << 24, 8
_Sums = dict[str, list[int]]  # by path below the item's folder: bytes, CRC-32


class SummedArrays(ocp.StandardCheckpointHandler):
    """A handler of Orbax that saves arrays with checksums, in the background.

    Attributes:
        failure: error of a save under way; Orbax raises it only when it next saves or is closed.
    """

    failure: BaseException | None = None

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Save the arrays, then their checksums."""
        return [_Summing(await super().async_save(directory, *args, **kwargs) or [], directory, self)]

    def finalize(self, directory: Any) -> None:
        """Write the checksums of everything that no process summed up itself."""
        with self.noting():
            super().finalize(directory)
            _write(Path(directory), Path(directory) / _SUMS, parts=False)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Keep an error of the block as `failure`."""
        try:
            yield
        except BaseException as error:
            self.failure = error
            raise


class SummedJson(ocp.JsonCheckpointHandler):
    """A handler of Orbax that saves JSON with a checksum."""

    def finalize(self, directory: Any) -> None:
        """Write the checksum."""
        super().finalize(directory)
        _write(Path(directory), Path(directory) / _SUMS, parts=False)


class _Summing:
    """A future for Orbax: the arrays of this process are written, then summed up."""

    def __init__(self, written: Sequence[Any], directory: Any, handler: SummedArrays) -> None:
        self._written, self._directory, self._handler = written, directory, handler

    def result(self, timeout: float | None = None) -> None:
        """Wait for both."""
        with self._handler.noting():
            for future in self._written:
                future.result(timeout)
            folder, index = Path(self._directory), jax.process_index()
            part = folder / f"{_PART}{index}"
            if part.is_dir():
                _write(part, folder / f"checksums.{index}.json", parts=True)


def problem(step: Path, processes: Processes) -> str | None:
    """Return what is wrong with the checkpoint in this folder, in a few words, or None. All processes call this.

    Each reads its share of the files. A checkpoint of an older version, without checksums, must only be there.
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
    if not any((step / item / _SUMS).exists() for item in _ITEMS):
        return None
    sums = dict[Path, list[int]]()
    for item in _ITEMS:
        own = _read(step / item / _SUMS)
        sums |= {step / item / name: expected for name, expected in own.items()}
        # A network disk may show the first process another one's list too late for its own.
        for name in {name for name in own if _PART_SUMS.fullmatch(name)} | _part_sums(step / item):
            part = step / item / f"{_PART}{name.split('.')[1]}"
            sums |= {part / below: expected for below, expected in _read(step / item / name).items()}
    for file, (size, _) in sums.items():
        if not file.is_file():
            return f"{_below(file, step)} is missing"
        if (found := file.stat().st_size) != size:
            return f"{_below(file, step)} has {found} bytes instead of {size}"
    mine = processes.mine(sorted(sums))
    for file, crc in zip(mine, _crcs(mine), strict=True):
        if crc != sums[file][1]:
            return f"{_below(file, step)} is not what was written"
    return None


def _below(file: Path, step: Path) -> str:
    return str(file.relative_to(step)) if file.is_relative_to(step) else str(file)


def _write(folder: Path, target: Path, *, parts: bool) -> None:
    """Sum up the files below the folder; without `parts`, leave out those that a process sums up itself."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file != target]
    if not parts:
        files = [file for file in files if not file.relative_to(folder).parts[0].startswith(_PART)]
    sums = zip(files, _crcs(files), strict=True)
    target.write_text(json.dumps({str(file.relative_to(folder)): [file.stat().st_size, crc] for file, crc in sums}))


def _part_sums(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("checksums.*.json") if _PART_SUMS.fullmatch(file.name)}


def _read(file: Path) -> _Sums:
    return {str(name): [int(size), int(crc)] for name, (size, crc) in json.loads(file.read_bytes()).items()}


def _crcs(files: Sequence[Path]) -> Iterator[int]:
    """Yield the CRC-32 of each file, in order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(_crc, files)


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc
