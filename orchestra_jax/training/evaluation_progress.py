"""Evaluations amid a run, and evaluators that show how far the policy is: trajectories done, dollars, time left."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console

from orchestra_jax.envs.base import Baseline
from orchestra_jax.evaluation.benchmarks import HELD_OUT, in_parts
from orchestra_jax.evaluation.runner import Evaluator
from orchestra_jax.evaluation.trajectory_files import TrajectoryFile
from orchestra_jax.evaluation.turn_caps import CappedEvaluator
from orchestra_jax.training.loggers.progress import ProgressBar
from orchestra_jax.types import Trajectory


class ShownEvaluator(Evaluator):
    """An evaluator whose trajectories move a bar; without a terminal there is a line every half minute."""

    _bar: ProgressBar | None = None
    _done = 0

    @contextmanager
    def shown(
        self,
        spent: Callable[[], float],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator[None]:
        """Show the trajectories of this process that end while the block lasts.

        Args:
            spent: gives the dollars that were spent so far.
            console: None: standard output.
            clock: gives seconds.
        """
        total = self.total()
        self._spent, self._done = spent, 0
        with ProgressBar(total, phase="evaluation", every=max(1, total), console=console, clock=clock) as self._bar:
            try:
                yield
            finally:
                self._bar = None

    def total(self) -> int:
        """Return the number of trajectories that this process plays for the policy, an earlier start's included."""
        settings, script, sizes = self.cfg.evaluation, isinstance(self.engine, Baseline), list[int]()
        for name, tasks in self.benchmarks.items():
            greedy = settings.greedy and settings.temperature and not script and not isinstance(tasks, Mapping)
            for some in in_parts(name, tasks).values():
                sizes += [len(some) * (1 if script else settings.samples), *([len(some)] if greedy else [])]
        return sum(len(self.processes.mine(range(size))) for size in sizes)

    def on_done(self, file: TrajectoryFile | None) -> Callable[[Trajectory], None] | None:
        keep, bar = super().on_done(file), self._bar
        if bar is None:
            return keep
        if file is not None and file.found:  # an earlier start made them: they say nothing about the time left
            bar.start += len(file.found)
            self._move(bar, len(file.found))

        def done(trajectory: Trajectory) -> None:
            if keep is not None:
                keep(trajectory)
            self._move(bar, 1)

        return done

    def _move(self, bar: ProgressBar, count: int) -> None:
        self._done += count
        bar.update(self._done, {"$": self._spent()})


class ShownCaps(ShownEvaluator, CappedEvaluator):
    """The same with figures under evaluation.turn_caps."""


class RunEvaluator(ShownEvaluator):
    """The evaluator of a run. Between policy steps it shows nothing, since their bar is on the screen."""

    async def evaluate(
        self, when: str = "policy", identity: str | None = None, policy_model: str | None = None
    ) -> dict[str, dict[str, Any]]:
        alone = when in ("before", "after")
        with self.shown(lambda: self._budget.spent.usd) if alone else nullcontext():
            return await super().evaluate(when, identity, policy_model)


def evaluation_metrics(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return figures for metrics.jsonl: `eval/FIGURE` of the held-out tasks, `eval/BENCHMARK/FIGURE` of others."""
    return {
        f"eval/{figure}" if benchmark == HELD_OUT else f"eval/{benchmark}/{figure}": value
        for benchmark, figures in found.items()
        for figure, value in figures.items()
        if isinstance(value, float)
    }
