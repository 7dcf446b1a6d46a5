"""Checksums of a checkpoint's files, which show before a restore what a disk has lost or changed.

Orbax writes each item of a checkpoint into a folder, and the arrays of process N into its `ocdbt.process_N`. Each
process sums up its own files (`checksums.N.json`). The first process sums up the others, these lists included
(`checksums.json`). So no process reads what another has written. Sums are written before the checkpoint gets its name.
A bucket keeps sums of its objects and checks them itself: none are written there.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from orchestra_jax.training.checkpoint_names import in_bucket

SUMS = "checksums.json"
PART = "ocdbt.process_"
_CHUNK, _THREADS = 1 << 24, 8


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
            _write(directory, directory / SUMS, parts=False)

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
        _write(directory, directory / SUMS, parts=False)


class _Summing:
    """A future for Orbax: the arrays of this process are written, then summed up."""

    def __init__(self, written: Sequence[Any], directory: Any, handler: SummedArrays) -> None:
        self._written, self._directory, self._handler = written, directory, handler

    def result(self, timeout: float | None = None) -> None:
        """Wait for both."""
        with self._handler.noting():
            for future in self._written:
                future.result(timeout)
            folder, index = self._directory, jax.process_index()
            part = folder / f"{PART}{index}"
            if part.is_dir():
                _write(part, folder / f"checksums.{index}.json", parts=True)


def _write(folder: Any, target: Any, *, parts: bool) -> None:
    """Sum up the files below the folder; without `parts`, leave out those that a process sums up itself."""
    if in_bucket(folder):
        return
    folder, target = Path(folder), Path(target)
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file != target]
    if not parts:
        files = [file for file in files if not file.relative_to(folder).parts[0].startswith(PART)]
    sums = zip(files, crcs(files), strict=True)
    target.write_text(json.dumps({str(file.relative_to(folder)): [file.stat().st_size, crc] for file, crc in sums}))


def crcs(files: Sequence[Path]) -> Iterator[int]:
    """Yield the CRC-32 of each file, in order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(_crc, files)


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc
