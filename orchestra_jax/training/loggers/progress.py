"""The progress display of a run: phase, bar, time left and a few live figures."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from rich import progress as rich_progress
from rich.console import Console

# Figures beside the bar: label, name in metrics.jsonl.
_LIVE = {
    "reward": "reward/mean",
    "accuracy": "accuracy",
    "$/question": "cost_usd",
    "valid": "valid_rate",
    "$ spent": "spend/usd",
}


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours:d}:{rest // 60:02d}:{rest % 60:02d}"


class ProgressBar:
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
        self._bar: rich_progress.Progress | None = None
        if self._console.is_terminal:
            self._bar = rich_progress.Progress(
                rich_progress.TextColumn("{task.fields[phase]}", markup=False),
                rich_progress.BarColumn(),
                rich_progress.TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                rich_progress.TimeElapsedColumn(),
                rich_progress.TextColumn("eta {task.fields[eta]}  {task.fields[shown]}", markup=False),
                console=self._console,
            )
            self._task = self._bar.add_task("", total=total, completed=start, phase=phase, eta=self._eta, shown="")

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


def show_step(progress: ProgressBar, step: int, metrics: Mapping[str, float]) -> None:
    """Shows the figures of a finished policy step."""
    if metrics.get("updates/skipped"):
        progress.print(f"Step {step}: loss or gradient was not finite, so its update was skipped.")
    progress.update(step, {label: metrics[name] for label, name in _LIVE.items() if name in metrics})
