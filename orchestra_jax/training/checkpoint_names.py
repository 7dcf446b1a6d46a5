"""The places and names of checkpoints, and the checkpoints that a folder or a bucket has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

NAME = re.compile(r"(?P<phase>warm_start-|policy-)(?P<step>\d{6,})|0|[1-9]\d*")
# Orbax numbers checkpoints: each phase has a range of its own. Numbers below belong to no run, or to one of an older
# version, which counted on from the warm start. All fit 32 bits, in which Orbax tells processes of them.
FIRST = {"": 0, "warm_start-": 1_000_000_000, "policy-": 2_000_000_000}


def checkpoint_folder(output_dir: str, folder: str | None) -> Any:
    """Return the folder of a run's checkpoints: a path, or Etils' path of a bucket, from `checkpoint.folder`."""
    place = folder or str(Path(output_dir, "checkpoints"))
    return epath.Path(place) if in_bucket(place) else Path(place)


def in_bucket(place: Any) -> bool:
    """Return whether a path leads into a bucket of Google Cloud Storage."""
    return str(place).startswith("gs://")


class Names:
    """Orbax' names of checkpoints: phase and step, such as `policy-000050`; digits for a number below all phases."""

    def build_name(self, step: int) -> str:
        """Return the name of a number."""
        phase = max((name for name, first in FIRST.items() if step >= first), key=FIRST.__getitem__)
        return f"{phase}{step - FIRST[phase]:0{6 if phase else 1}d}"

    def find_all(self, base_path: Any) -> Iterator[ocp.step.Metadata]:
        """Yield the checkpoints in a folder, oldest first."""
        return (ocp.step.Metadata(number, path) for number, path in checkpoints_in(base_path) if path.is_dir())

    def find_step(self, base_path: Any, step: int) -> ocp.step.Metadata:
        """Return the checkpoint with a number."""
        for found in self.find_all(base_path):
            if found.step == step:
                return found
        raise ValueError(f"There is no checkpoint {self.build_name(step)} in {str(base_path)!r}.")


def newest_checkpoint(directory: Any) -> Any:
    """Return the path of the newest checkpoint in a folder, or None if there is none."""
    return next((path for _, path in reversed(checkpoints_in(directory))), None)


def checkpoints_in(directory: Any) -> list[tuple[int, Any]]:
    """Return number and path of each checkpoint in a folder, oldest first."""
    paths = list(directory.iterdir()) if directory.is_dir() else []
    named = [(match, path) for path in paths if (match := NAME.fullmatch(path.name))]
    # A bucket renames nothing: a save has its name from the beginning there, and a mark once it is complete.
    named = [(match, path) for match, path in named if not in_bucket(path) or ocp.step.is_path_finalized(path)]
    return sorted((FIRST[match["phase"] or ""] + int(match["step"] or match[0]), path) for match, path in named)
