"""The progress display of a run: phase, bar, time left and a few live figures, and on a terminal a table below them."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from rich import progress as rich_progress
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from orchestra_jax.types import Trajectory

if TYPE_CHECKING:
    from orchestra_jax.training.loggers.live import FamilyTable

# Figures beside the bar: label, name in metrics.jsonl.
_LIVE = {
    "reward": "reward/mean",
    "accuracy": "accuracy",
    "$/question": "cost_usd",
    "valid": "valid_rate",
    "groups": "groups/collected",
    "$ spent": "spend/usd",
}
_IN_TABLE = ("accuracy", "$/question", "valid")
_SILENCE_S = 30.0


class ProgressBar:
    """Phase, bar, time left and a few live metrics; plain lines if stdout is no terminal.

    Attributes:
        start: steps done before, in a resumed run; they count for the bar, not for the time left.
        every: steps between plain lines; the last step and half a minute without a line print one too.
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
        self._phase, self._shown, self._printed = phase, "", clock()
        self._first: tuple[int, float] | None = None
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.fields[phase]}", markup=False),
            rich_progress.BarColumn(),
            rich_progress.TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TextColumn("eta {task.fields[eta]}  {task.fields[shown]}", markup=False),
            console=self._console,
        )
        self._live = Live(self._bar, console=self._console, refresh_per_second=2)
        self._table: FamilyTable | None = None
        self._task = self._bar.add_task("", total=total, completed=start, phase=phase, eta="-:--:--", shown="")

    def update(self, done: int, metrics: Mapping[str, Any] | None = None) -> None:
        """Show that `done` steps are finished, those before `start` included. Without metrics the last ones stay."""
        if metrics is not None:
            names = [name for name in metrics if self._table is None or name not in _IN_TABLE]
            self._shown = "  ".join(f"{name} {float(metrics[name]):.4g}" for name in names)
        now, eta = self.clock(), "-:--:--"
        if self._first is None:
            self._first = done - self.start, now  # it compiles, and says nothing about the others
        elif (more := done - self.start - self._first[0]) > 0:
            per_step = (now - self._first[1]) / more
            eta = str(timedelta(seconds=round(per_step * max(self.total - done, 0))))
        self._bar.update(self._task, completed=done, eta=eta, shown=self._shown)
        due = done % self.every == 0 or done >= self.total or now - self._printed >= _SILENCE_S
        if due and not self._console.is_terminal:
            self._printed = now
            self.print(f"{self._phase} {done}/{self.total}  eta {eta}  {self._shown}".rstrip())

    def show(self, trajectories: Sequence[Trajectory]) -> None:
        """Show figures of the latest rollouts in a table, if stdout is a terminal."""
        if self._console.is_terminal:
            if self._table is None:
                from orchestra_jax.training.loggers.live import FamilyTable

                self._table = FamilyTable()
                self._live.update(Group(self._bar, self._table))
            self._table.add(trajectories)

    def print(self, text: str) -> None:
        """Print a line above the bar: as a Text, since `markup=False` would show the table's marks too."""
        self._console.print(Text(text), highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()


def show_step(progress: ProgressBar, step: int, metrics: Mapping[str, float]) -> None:
    """Show the figures of a finished policy step."""
    if metrics.get("updates/skipped"):
        progress.print(f"Step {step}: loss or gradient was not finite, so its update was skipped.")
    progress.update(step, {label: metrics[name] for label, name in _LIVE.items() if name in metrics})
    if metrics.get("groups/kept") == 0:
        progress.print(f"Step {step}: no group had a gradient: {why_no_gradient(metrics)}.")


def why_no_gradient(metrics: Mapping[str, float]) -> str:
    """Return the likeliest reason why no group of a step had a gradient, and what to change if most steps are so."""
    if "accuracy" not in metrics:
        return "every rollout failed for infrastructure reasons; experiments/view.py shows what tools and servers said"
    if metrics["reward/std"] > 1e-6:  # rounding
        return "rewards differed by less than algorithm.advantage.min_std; if most steps are so, lower it"
    if not metrics["valid_rate"]:
        return "no rollout ended with an answer; if most steps are so, raise warm_start.steps or max_new_tokens"
    if metrics["accuracy"] == 0:
        return "no rollout was right; if most steps are so, take easier questions or raise warm_start.steps"
    if metrics["accuracy"] == 1:
        return "every rollout was right, and alike; if most steps are so, take harder questions"
    return "each group was all right or all wrong; if most steps are so, raise rollout.temperature or the group size"
