"""metrics.jsonl: one line of strict JSON per step, for resuming, pictures and other programs."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.io.whole import write_whole

FILE_NAME = "metrics.jsonl"


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, float]]:
    """Return the rows of a file, or of a run's folder, in order. `step` is an int; NaN and infinities are floats.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: a line is broken. An unfinished last line, left by a killed process, is skipped.
    """
    file = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
    *lines, _ = file.read_bytes().split(b"\n")  # the last piece is empty, or a torn line
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line).items()
            rows.append({name: float(value) if isinstance(value, str) else value for name, value in row})
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{file}:{number} is not a line of metrics: delete it or restore the file.") from error
    return rows


class JsonlLogger:
    """A logger that appends one line a step to the run's `metrics.jsonl`.

    It first removes the lines from `first_step` on. The whole file is replaced at once, so a process that is killed
    here loses nothing.
    """

    def __init__(self, cfg: WorldConfig, first_step: int) -> None:
        self.path = Path(cfg.output_dir) / FILE_NAME
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            *lines, _ = self.path.read_bytes().split(b"\n")
            rows = read_metrics(self.path)
            kept = [line for line, row in zip(lines, rows, strict=True) if row["step"] < first_step]
            write_whole(self.path, "".join(f"{line.decode()}\n" for line in kept))
        self._file = self.path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write `{"step": step, **metrics}` and flush it. NaN and infinities become strings: JSON has none."""
        row = {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()}
        self._file.write(json.dumps({"step": step, **row}, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
