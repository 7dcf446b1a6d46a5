"""The quickstart's world with the questions of a served log to train on (`+experiment=served path=LOG`).

Each line of the log has a question, the user's wish, and the right answer by the users' feedback, which alone decides
the reward. The policy answers anew, and tools and simulated experts are asked again, for nothing. The held-out tasks
are the world's own. `serving.kept` trains on the tokens that a server sampled instead.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.data.rows import answers_of, rows_of, text_of
from orchestra_jax.envs.quickstart.asked import posed
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment, QuickstartEpisode
from orchestra_jax.envs.quickstart.plans import step_kinds
from orchestra_jax.envs.quickstart.preferences import PREFERENCE_SHARES, draw_preference, wordings
from orchestra_jax.money.budgets import Budget
from orchestra_jax.types import Task

_BY_FEEDBACK = "by_feedback"  # in a task's extra: the right answers by the users


class ServedQuickstart(QuickstartEnvironment):
    """Trains on what users asked.

    Raises:
        ConfigError: the log cannot be read, or has a question that this world does not know.
    """

    def __init__(self, cfg: WorldConfig) -> None:
        super().__init__(cfg)
        self._asked = self._read(Path(cfg.env.options["path"]))

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        found, path = super().problems(cfg), cfg.env.options.get("path")
        if not isinstance(path, str) or not Path(path).is_file() or Path(path).suffix == ".db":
            found.append(
                f"path={'' if path is None else path} names no served log: write one with `orchestra-jax served RUN "
                "write LOG.jsonl`, and set path=LOG.jsonl; the database itself is for +experiment=my_logs."
            )
        return found

    @classmethod
    def forecast(cls, cfg: WorldConfig) -> str | None:
        return f"Trains on the questions of {cfg.env.options['path']}; nothing is paid."

    def train_tasks(self, batch_size: int) -> TaskIterator:
        return task_iterator(self._asked, seed=self._cfg.seed, batch_size=batch_size)

    def reset(self, task: Task, budget: Budget) -> QuickstartEpisode:
        episode = super().reset(task, budget)
        if (right := task.extra.get(_BY_FEEDBACK)) is not None:
            episode.task = replace(task, answer=right)  # the experts know the world, and feedback may be wrong
        return episode

    def _read(self, file: Path) -> list[Task]:
        found = list[Task]()
        try:
            for number, place, read in rows_of(file):
                row = read()
                question, right = text_of(row.get("question"), "question", place), row.get("answer")
                task = posed(self.world, self._tools, question, row.get("wish") or None)
                wish = meant(task, np.random.default_rng([self._cfg.seed, number]))
                extra: Mapping[str, Any] = {**task.extra, _BY_FEEDBACK: answers_of(right, "answer", place)}
                found.append(replace(task, id=f"served-{number}", preference=wish, extra=extra))
        except (OSError, ValueError) as error:
            raise ConfigError(f"The served log {str(file)!r} cannot be used: {error}") from error
        if not found:
            raise ConfigError(f"The served log {str(file)!r} has no question whose right answer is known.")
        return found


def meant(task: Task, rng: np.random.Generator) -> Any:
    """Return what a user weighs who says these words; words of nobody in this world mean that it be right."""
    words = task.preference.instruction
    said = (kind for kind in PREFERENCE_SHARES for split in ("train", "eval") if words in wordings(kind, split))
    drawn = draw_preference(next(said, "accuracy"), "train", step_kinds(task), task.tools, rng)
    return replace(drawn, instruction=words)
