"""The runs that a run is made from."""

from pathlib import Path
from typing import Any

from orchestra_jax.config.record import FILE_NAME, read
from orchestra_jax.config.schema import ModelConfig
from orchestra_jax.io import hub


def run_folder(path: Path) -> Path | None:
    """Return the folder of the run that left a file or folder: that, or one of the two above it; None: no record."""
    path = path.resolve()
    return next((folder for folder in (path, *path.parents[:2]) if (folder / FILE_NAME).is_file()), None)


def parent(key: str, path: Path) -> dict[str, Any]:
    """Return a folder that a run is made from: the setting that names it, its path, and the run that left it."""
    found: dict[str, Any] = {"setting": key, "path": str(path.resolve())}
    if (home := run_folder(path)) is not None and (record := read(home)) is not None:
        last = record["starts"][-1] if record["starts"] else {}
        found |= {"run": str(home), "name": record.get("name"), "commit": last.get("commit")}
    return found


def parents_of(model: ModelConfig) -> list[dict[str, Any]]:
    """Return what the policy of a run is made from, for its record."""
    found = [parent("model.path", hub.local(model.path, "model"))] if model.path is not None else []
    return found + ([parent("model.lora.path", Path(model.lora.path))] if model.lora.path is not None else [])
