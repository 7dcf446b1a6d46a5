"""Files and folders that are complete or absent under their own name."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text file, so that a killed process leaves the new or the old file whole."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give `.NAME.part` beside the file to write into; it takes the file's place if nothing is raised."""
    part = path.with_name(f".{path.name}.part")
    yield part
    part.replace(path)


@contextmanager
def whole_folder(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give `.NAME.partial` beside the folder to write into; it takes the folder's place if nothing is raised.

    A process that is killed leaves the partial folder to the next save. A folder has one writer.

    `folder` is absolute. If it exists and is not empty, `overwrite` replaces it, else there is a FileExistsError.
    """
    partial, old = (folder.with_name(f".{folder.name}.{suffix}") for suffix in ("partial", "old"))
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not overwrite)):
        raise FileExistsError(f"{str(folder)!r} exists; give a new folder, or overwrite=True to replace it.")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise


def open_to_readers(folder: Path) -> None:
    """Let everybody who may enter the folder read its files: safetensors keeps those that it writes to their owner."""
    mode = folder.stat().st_mode & 0o666
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(mode)
