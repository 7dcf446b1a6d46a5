"""The worlds of trainings on kept tokens (`+experiment=kept`): those of the runs whose policies answered.

Each says what a user weighs who says certain words. Questions, menus, prices and what is held out are the world's own.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from omegaconf import DictConfig, open_dict

from orchestra_jax.config import from_run, record
from orchestra_jax.config.flags import PATH
from orchestra_jax.config.parents import run_folder
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.config.served_path import is_served
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.data.preference_pairs import Pairs, preference_of
from orchestra_jax.data.preferences import SPLITS
from orchestra_jax.envs.base import Environment
from orchestra_jax.envs.qa.environment import QAEnvironment
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment
from orchestra_jax.envs.quickstart.served import meant
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.envs.recorded.wishes import KINDS, NONE, make_wish, wordings_of
from orchestra_jax.serving.kept import KeptSource, read_kept
from orchestra_jax.types import Preference, Task, Trajectory

_KEPT = "kept"  # of env.options: the database
# Stay as the experiment and the command have them; the record of the run gives the others.
_OF_THE_EXPERIMENT = (
    *from_run.OWN,
    *("name", "seed", "steps", "algorithm", "warm_start", "profile", "plan", "data.preferences_per_question"),
    *("rollout.temperature", "rollout.max_staleness", "rollout.oversample"),
)


class KeptWorld(Environment):
    """Trains on the tokens of a server's answers; a class for a world of its own stands before that world's.

    Attributes:
        of: names of the environments (env.name) whose served answers it trains on.
    """

    of: ClassVar[Sequence[str]] = ()
    rollout_source = KeptSource

    def __init__(self, cfg: WorldConfig) -> None:
        self.path, self._seed = str(cfg.env.options[_KEPT]), cfg.seed
        super().__init__(_of_the_world(cfg))  # type: ignore[call-arg]  # the world's own

    @abstractmethod
    def meant(self, task: Task, rng: np.random.Generator) -> Preference:
        """Return what the user of a question weighs, with the words that were said."""

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        return super().problems(_of_the_world(cfg))

    @classmethod
    def chat(cls, cfg: WorldConfig) -> Any:
        return super().chat(_of_the_world(cfg))

    @classmethod
    def forecast(cls, cfg: WorldConfig) -> str | None:
        return f"Trains on the tokens in {cfg.env.options[_KEPT]}; no question is asked again."

    def train_tasks(self, batch_size: int) -> TaskIterator:
        return task_iterator([each.task for each in self.kept], seed=self._seed, batch_size=batch_size)

    @cached_property
    def kept(self) -> list[Trajectory]:
        """The judged answers, oldest first, with what their users weigh.

        Raises:
            ConfigError: the database cannot be read, or has none.
        """
        found, left = read_kept(self.path)
        why = "".join(f"; {count} left out: {reason}" for reason, count in left.items())
        if not found:
            raise ConfigError(f"There is no answer to train on in {self.path!r}{why}.")
        print(f"{len(found)} answers of {self.path}{why}.", flush=True)
        rng = np.random.default_rng(self._seed)
        return [replace(each, task=replace(each.task, preference=self.meant(each.task, rng))) for each in found]


class KeptQuickstart(KeptWorld, QuickstartEnvironment):
    """Kept tokens of the quickstart's world."""

    of = ("quickstart", "orchestra_jax.envs.quickstart.served:ServedQuickstart")

    def meant(self, task: Task, rng: np.random.Generator) -> Preference:
        return meant(task, rng)


class KeptRecorded(KeptWorld, RecordedEnvironment):
    """Kept tokens of recorded answers, with the weights of `env.options.wishes`."""

    of = ("recorded",)

    def meant(self, task: Task, rng: np.random.Generator) -> Preference:
        words, wishes = task.preference.instruction, self._options["wishes"]
        if wishes is None:
            return preference_of(words, task.tools)
        if not words:
            return make_wish(NONE, wishes, task.tools, words)
        spoken = (kind for kind in KINDS if kind != NONE for split in SPLITS if words in wordings_of(kind, split))
        return make_wish(next(spoken, "accuracy"), wishes, task.tools, words)


class KeptQA(KeptWorld, QAEnvironment):
    """Kept tokens of real questions."""

    of = ("qa",)

    def meant(self, task: Task, rng: np.random.Generator) -> Preference:
        words, file = task.preference.instruction, self._cfg.data.preferences_file
        written = None if file is None else Pairs.load(file).said(words, task.tools)
        return written or preference_of(words, task.tools)


WORLDS = (KeptQuickstart, KeptRecorded, KeptQA)


def in_its_world(config: DictConfig, given: Sequence[str]) -> tuple[DictConfig, str]:
    """Return the settings of `+experiment=kept` in the world of the run at `model.path`, and a line about that run.

    Args:
        config: composed settings; `env.options.path` is the database.
        given: words of the command line that they are composed from.

    Raises:
        ConfigError: the command names no database or no run's policy, or the world is none of `WORLDS`.
    """
    database, policy = config.env.options.get("path"), config.model.path
    home = run_folder(Path(policy)) if policy is not None else None
    found = record.read(home) if home is not None else None
    wrong = []
    if not isinstance(database, str) or not is_served(database):
        wrong.append(
            f"path={'' if database is None else database} is no database of servers: name RUN/serving/served.db, or "
            "postgresql://...; a log of `served write` is for +experiment=served."
        )
    if home is None or found is None:
        wrong.append(
            f"model.path={'' if policy is None else policy} is no policy of a run: name RUN/policy of the run that was "
            "served, or of one that was trained from it, whose record tells the world."
        )
    if wrong or home is None or found is None:
        raise ConfigError("\n".join(wrong))
    words = [word for word in from_run.parsed(given) if word.key_or_group not in ("experiment", PATH.setting)]
    taken = dict(from_run.taken_from(home, found["config"], words, _OF_THE_EXPERIMENT))
    merged = from_run.merged_with(config, words, {"name": config.name, "config": taken}, _OF_THE_EXPERIMENT)
    name = merged.env.name
    own = next((world for world in WORLDS if name in (*world.of, _named(world))), None)
    if own is None and not any(word.key_or_group == "env.name" for word in words):
        raise ConfigError(
            f"Nobody says what users of env.name={name} weigh: set env.name=MODULE:CLASS, a class of "
            "orchestra_jax.serving.kept_worlds.KeptWorld before that world's."
        )
    line = from_run.told(merged, [str(word.input_line) for word in words], home)
    with open_dict(merged):
        merged.env.name = name if own is None else _named(own)
        merged.env.options[_KEPT] = database
    return merged, line


def _named(world: type) -> str:
    return f"{world.__module__}:{world.__name__}"


def _of_the_world(cfg: WorldConfig) -> WorldConfig:
    """Return the settings as the world knows them, without the database."""
    options = {name: value for name, value in cfg.env.options.items() if name != _KEPT}
    return replace(cfg, env=replace(cfg.env, options=options))
