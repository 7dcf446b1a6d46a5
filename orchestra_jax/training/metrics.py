"""Where training figures go: a metrics.jsonl file, TensorBoard, and a progress display."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

FILE_NAME = "metrics.jsonl"


def _as_number(name: str, value: Any) -> float | int | str:
    """A value as strict JSON holds it: NaN and infinities become the strings "nan", "inf" and "-inf"."""
    if isinstance(value, int):
        return int(value)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Metric {name!r} is not a single number ({value!r}): reduce it before logging.") from error
    return number if math.isfinite(number) else str(number)


def _parse(line: str) -> dict[str, float]:
    return {name: float(value) if isinstance(value, str) else value for name, value in json.loads(line).items()}


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, float]]:
    """Reads what `MetricLogger` wrote, in order; `step` is an int, NaN and infinities come back as floats.

    Args:
        path: the file, or the directory that holds `metrics.jsonl`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is broken. An unfinished last line, left by a killed process, is skipped.
    """
    file = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
    *lines, _ = file.read_text(encoding="utf-8").split("\n")  # the last piece is empty, or a torn line
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(_parse(line))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{file}:{number} is not a line of metrics: delete it or restore the file.") from error
    return rows


class MetricLogger:
    """Appends one JSON line per call to `directory/metrics.jsonl`, and mirrors it to TensorBoard if asked.

    Args:
        directory: created if missing; TensorBoard's files go to its `tensorboard` folder.
        tensorboard: write TensorBoard events too.

    Raises:
        ImportError: `tensorboard` is set and tensorboardX is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str], *, tensorboard: bool = False) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self.path = self._directory / FILE_NAME
        self._writer_type: Callable[..., Any] | None = None
        if tensorboard:
            try:
                from tensorboardX import SummaryWriter
            except ImportError as error:
                message = "TensorBoard logging needs tensorboardX: pip install tensorboardX, or switch it off."
                raise ImportError(message) from error
            self._writer_type = SummaryWriter
        self._writer: Any = None
        self._purge_step: int | None = None
        self._cut_torn_line()
        self._file = self.path.open("a", encoding="utf-8")

    def _cut_torn_line(self) -> None:
        """Removes an unfinished last line, so that the next one does not continue it."""
        if self.path.exists():
            content = self.path.read_bytes()
            if not content.endswith(b"\n"):
                os.truncate(self.path, content.rfind(b"\n") + 1)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes `{"step": step, **metrics}` and flushes it.

        Args:
            step: the training step the figures belong to.
            metrics: floats, or anything `float()` takes (0-d arrays).

        Raises:
            ValueError: a value is not a single number, or a metric is called "step".
        """
        if "step" in metrics:
            raise ValueError('"step" is the key of the step itself: give that metric another name.')
        row = {name: _as_number(name, value) for name, value in metrics.items()}
        self._file.write(json.dumps({"step": int(step), **row}, allow_nan=False) + "\n")
        self._file.flush()
        if self._writer_type is not None:
            if self._writer is None:
                self._writer = self._writer_type(str(self._directory / "tensorboard"), purge_step=self._purge_step)
            for name, value in row.items():
                self._writer.add_scalar(name, float(value), int(step))

    def truncate_from(self, step: int) -> None:
        """Drops every line whose step is `step` or later: call it when resuming, with the first step to run again.

        The file is replaced in one move, so a process killed here loses nothing. TensorBoard hides its later events.
        """
        *lines, _ = self.path.read_text(encoding="utf-8").split("\n")
        rows = read_metrics(self.path)
        kept = [line for line, row in zip(lines, rows, strict=True) if row["step"] < step]
        self._file.close()
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        os.replace(temporary, self.path)
        self._file = self.path.open("a", encoding="utf-8")
        self._close_writer()
        self._purge_step = step

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def close(self) -> None:
        """Closes the files; closing twice is harmless."""
        self._file.close()
        self._close_writer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours:d}:{rest // 60:02d}:{rest % 60:02d}"


class Progress:
    """Phase, bar, time left and a few live metrics; plain lines where stdout is not a terminal.

    Attributes:
        total: steps of the whole run.
        start: steps that were done before (a resumed run); they count for the bar, not for the time left.
        every: without a terminal, a line is printed every so many steps, and for the last one.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        total: int,
        *,
        phase: str = "train",
        start: int = 0,
        every: int = 10,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.start, self.every, self.clock = total, start, max(every, 1), clock
        self._console = console or Console()
        self._done, self._phase, self._shown, self._eta = start, phase, "", "-:--:--"
        self._began = clock()
        self._bar: RichProgress | None = None
        if self._console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.fields[phase]}", markup=False),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeElapsedColumn(),
                TextColumn("eta {task.fields[eta]}  {task.fields[shown]}", markup=False),
                console=self._console,
            )
            self._task = self._bar.add_task("", total=total, completed=start, phase=phase, eta=self._eta, shown="")

    def phase(self, name: str) -> None:
        """Says what is going on now, e.g. "rollout", "update", "evaluate"."""
        self._phase = name
        self._refresh()

    def update(self, done: int, metrics: Mapping[str, Any] | None = None) -> None:
        """Reports that `done` steps of `total` are finished.

        Args:
            done: steps finished, those before `start` included.
            metrics: figures to show beside the bar, e.g. reward, accuracy, cost; None keeps the last ones.
        """
        self._done = done
        if metrics is not None:
            self._shown = "  ".join(f"{name} {float(value):.4g}" for name, value in metrics.items())
        if done > self.start:
            per_step = (self.clock() - self._began) / (done - self.start)
            self._eta = _duration(per_step * max(self.total - done, 0))
        self._refresh()
        if self._bar is None and (done % self.every == 0 or done >= self.total):
            line = f"{self._phase} {done}/{self.total}  eta {self._eta}  {self._shown}".rstrip()
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def print(self, text: str) -> None:
        """Prints a line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _refresh(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, phase=self._phase, eta=self._eta, shown=self._shown)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
