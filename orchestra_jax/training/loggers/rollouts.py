"""Complete rollouts of every step, written into `rollouts/` of the run's folder while the run goes on."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from orchestra_jax.evaluation.group_files import SUFFIX, Scores, StoredGroup, step_of, write_groups
from orchestra_jax.processes import Processes
from orchestra_jax.types import Trajectory

FOLDER = "rollouts"


class RolloutFiles:
    """Files of rollouts, one a step and process, that a thread writes during the next step.

    Args:
        first_step: next step of the run; files of it and later steps are removed, since these are done again.
        processes: processes of the run; the first writes step-N, the others step-N.PROCESS.
        on: False writes and removes nothing.
    """

    def __init__(self, directory: Path, first_step: int, processes: Processes, *, on: bool = True) -> None:
        self._folder, self.on = directory / FOLDER, on
        self._mark = "" if processes.first else f".{processes.index}"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout-files")
        self._writing: Future[None] | None = None
        if on and processes.first:
            for file in self._folder.glob(f"step-*{SUFFIX}"):
                if step_of(file) >= first_step:
                    file.unlink()
            for half in self._folder.glob(".step-*.part"):
                half.unlink()

    def add(
        self,
        step: int,
        trajectories: Sequence[Trajectory],
        rewards: np.ndarray,
        advantages: np.ndarray,
        informative: np.ndarray,
        learner: Mapping[int, Scores] | None = None,
    ) -> None:
        """Hand over the rollouts of a step; wait for the step before, so that memory holds only one.

        `rewards` and `advantages` are [G, N]; `informative`, [G], tells which groups have a gradient; `learner` has the
        log-probs of the trajectories that the learner scored, by their index.

        Raises:
            OSError: the step before could not be written.
        """
        if not self.on:
            return
        self.flush()
        size, scored = rewards.shape[1], learner or {}
        groups = [
            StoredGroup(
                step=step,
                group=trajectories[g * size].group,
                members=tuple(trajectories[g * size : (g + 1) * size]),
                rewards=tuple(rewards[g].tolist()),
                advantages=tuple(advantages[g].tolist()),
                kept=bool(informative[g]),
                learner=tuple(scored.get(g * size + m) for m in range(size)) if scored else (),
            )
            for g in range(len(rewards))
        ]
        path = self._folder / f"step-{step:06d}{self._mark}{SUFFIX}"
        self._writing = self._thread.submit(write_groups, path, groups)

    def flush(self) -> None:
        """Wait until everything that was handed over is on the disk.

        Raises:
            OSError: it could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Flush and end the thread."""
        try:
            self.flush()
        finally:
            self._thread.shutdown()
