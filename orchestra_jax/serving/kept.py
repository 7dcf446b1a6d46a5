"""Training on the very tokens that servers sampled: the kept trajectories of their database, judged by their users.

Nothing is asked again. `serving.feedback.keep` writes a thumb as a score, 1 or 0, and `read_kept` makes it right or
wrong: a thumb down is a reward of 0. What is left out, and why, is in `_left_out` and `grouped`. `kept_worlds` gives
each wish its weights.

A group is what was answered under one wish to questions of one family, or to one question that was asked several times;
its mean reward is the baseline of each answer. With `algorithm.loss.importance` an answer is weighed by its log-probs
of the time against the learner's own, so that older weights may have sampled it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.pipeline import task_iterator
from orchestra_jax.evaluation.decoding import decode_task, decode_trajectory
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.source import Informative, RolloutSource
from orchestra_jax.types import Status, Trajectory

Group = tuple[Trajectory, ...]


class KeptSource(RolloutSource):
    """Hands out groups of kept trajectories, as they were sampled.

    Raises:
        ConfigError: the policy that sampled them has other words than the one that learns.
    """

    def __init__(
        self, algorithm: AlgorithmConfig, rollout: RolloutConfig, seed: int, collector: Collector, *rest: Any
    ) -> None:
        world: Any = collector.environment  # a `kept_worlds.KeptWorld`
        chat = collector.chat
        for turn in (turn for each in world.kept for turn in each.turns):
            if chat is None or chat.decode(turn.sampled_ids) != turn.text:
                raise ConfigError(
                    f"The policy that answered in {world.path!r} has other words than this one: set model.path to it, "
                    "or to one that was trained from it."
                )
        self._groups = dict(enumerate(grouped(world.kept, algorithm.group_size, seed)))
        if not self._groups:
            raise ConfigError(f"No two answers in {world.path!r} can be compared: ask more questions under one wish.")
        engine, _, *others = rest
        tasks = [replace(members[0].task, id=str(number)) for number, members in self._groups.items()]
        batches = task_iterator(tasks, seed=seed, batch_size=algorithm.tasks_per_step)
        super().__init__(algorithm, rollout, seed, collector, engine, batches, *others)

    def _take(
        self, step: int, version: int, budget: Budget, informative: Informative | None
    ) -> tuple[list[Trajectory], dict[str, int]]:
        found = list[Trajectory]()
        for task, number in zip(next(self._tasks), self._own, strict=True):
            members = self._groups[int(task.id)]
            nobody = replace(members[0], status=Status.FAILED, reason="a smaller group", sequences=(), ledger=())
            whole = [*members, *[nobody] * (self._group_size - len(members))]
            found += [replace(each, group=number, member=place) for place, each in enumerate(whole)]
        return found, {}


def read_kept(path: str) -> tuple[list[Trajectory], Counter[str]]:
    """Return the answers of a database whose worth is known, oldest first, and the number of others by reason.

    An answer is right where its user, or else a judge, says so. One that broke the format is wrong without a word.
    Token ids, log-probs, weight versions, dollars and seconds are those of the time.

    Raises:
        ConfigError: the database cannot be read.
    """
    from orchestra_jax.serving.database import opened
    from orchestra_jax.serving.feedback import RIGHT, logged

    found, left = list[Trajectory](), Counter[str]()
    with opened(path) as database:
        try:
            for line in logged(database):
                played = decode_trajectory(line["trajectory"], decode_task(line["task"]))
                if any(len(turn.logprobs) != len(turn.sampled_ids) for turn in played.turns):
                    raise ValueError("a turn has other numbers of tokens and log-probs")
                if (reason := _left_out(played, line)) is not None:
                    left[reason] += 1
                else:
                    found.append(replace(played, solved=played.completed and line["score"] >= RIGHT))
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"An answer in {path!r} is damaged: {error!r}.") from error
    return found, left


def _left_out(played: Trajectory, line: Mapping[str, Any]) -> str | None:
    """Return why an answer cannot be trained on; None: it can."""
    if played.status is Status.FAILED or not any(any(turn.logprobs) for turn in played.turns):
        return "no policy of ours sampled it"
    if not line["temperature"]:
        return "it was not sampled at a temperature above 0"
    if played.completed and played.answer is None:
        return "a tool of the client was called"
    if played.completed and line["score"] is None:
        return "nobody said whether it is right"
    return None


def grouped(found: Sequence[Trajectory], size: int, seed: int) -> list[Group]:
    """Return groups of 2 to `size` trajectories that are compared with each other; one that has no equal is left out.

    All of a group have the same menu and weights of the wish, and the same question, or family where it was asked once.
    """
    asked = Counter(map(_question, found))
    cells = defaultdict[tuple[Any, ...], list[Trajectory]](list)
    for each in found:
        alike = _question(each) if asked[_question(each)] > 1 else (*_question(each)[1:], each.task.family)
        cells[alike].append(each)
    rng, groups = np.random.default_rng([seed, 5]), list[Group]()
    for members in cells.values():
        parts, order = -(-len(members) // size), rng.permutation(len(members))
        groups += [tuple(members[place] for place in order[part::parts]) for part in range(parts)]
    return [group for group in groups if len(group) > 1]


def _question(each: Trajectory) -> tuple[Any, ...]:
    """Return the question, with the weights of the wish and the names on the menu."""
    _, _, *weights = astuple(each.task.preference)
    return each.task.question, repr(weights), *(spec.name for spec in each.task.tools)
