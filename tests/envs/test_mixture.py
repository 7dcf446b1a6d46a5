"""A mixture draws by weight, resumes exactly, and plays every task where it came from."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.envs.base import Environment, Episode
from orchestra_jax.envs.mixture import MixtureEnvironment
from orchestra_jax.envs.registry import environment_class
from orchestra_jax.money.budgets import Budget
from orchestra_jax.types import Preference, Task, ToolResult


class Left(Environment):
    """Twelve tasks of its name, of which four are held out."""

    closed: ClassVar[list[str]] = []

    def __init__(self, cfg: RunConfig) -> None:
        self.name, self.options, self._seed = type(self).__name__, cfg.env.options, cfg.seed
        self.tasks = [Task(f"{self.name}-{n}", "?", ("!",), (), Preference("x", "")) for n in range(12)]

    @classmethod
    def problems(cls, cfg: RunConfig) -> list[str]:
        return ["Set env.options.repo=FOLDER."] if cfg.env.options.get("broken") else []

    @classmethod
    def forecast(cls, cfg: RunConfig) -> str:
        return f"{cls.__name__} is there."

    def train_tasks(self, batch_size: int) -> TaskIterator:
        return task_iterator(self.tasks[4:], seed=self._seed, batch_size=batch_size)

    def held_out(self, count: int) -> Sequence[Task]:
        return self.tasks[:4][:count]

    def reset(self, task: Task, budget: Budget) -> Episode:
        return (self.name, task.id)  # type: ignore[return-value]

    def said(self, task: Task, result: ToolResult) -> str:
        return f"{self.name} read {result.text}"

    async def close(self) -> None:
        self.closed.append(self.name)


class Right(Left):
    """The same under another name."""


LEFT, RIGHT = f"{__name__}:Left", f"{__name__}:Right"


def config(left: float = 0.5, right: float = 0.5, **options: Any) -> RunConfig:
    cfg = compose("tools=none")
    options = {"parts": {LEFT: left, RIGHT: right}, **options}
    data = replace(cfg.data, preferences_per_question=1)
    return replace(cfg, env=replace(cfg.env, name="mixture", options=options), data=data)


def ids(batch: Sequence[Task]) -> list[str]:
    return [task.id for task in batch]


@pytest.mark.parametrize(("left", "right"), [(0.5, 0.5), (3, 1)])
def test_the_weights_hold_over_a_thousand_draws(left: float, right: float) -> None:
    stream = MixtureEnvironment(config(left, right)).train_tasks(10)
    drawn = Counter(task.id.partition("-")[0] for _ in range(100) for task in next(stream))
    share = left / (left + right)
    assert abs(drawn["Left"] - 1000 * share) < 4 * math.sqrt(1000 * share * (1 - share))
    assert stream.get_state()["place"] == drawn.total() == 1000


def test_the_stream_resumes_exactly_and_batches_do_not_change_it() -> None:
    environment = MixtureEnvironment(config())
    stream = environment.train_tasks(4)
    first = [ids(next(stream)) for _ in range(5)]
    state = json.loads(json.dumps(stream.get_state()))
    rest = [ids(next(stream)) for _ in range(5)]
    again = environment.train_tasks(4)
    again.set_state(state)
    assert [ids(next(again)) for _ in range(5)] == rest
    long = environment.train_tasks(20)
    assert ids(next(long)) == [name for batch in first for name in batch]


def test_no_task_of_a_part_is_skipped_or_repeated_within_its_epoch() -> None:
    stream = MixtureEnvironment(config()).train_tasks(1)
    drawn = [next(stream)[0].id for _ in range(100)]
    for name in ("Left", "Right"):
        mine = [each for each in drawn if each.startswith(name)]
        assert sorted(mine[:8]) == sorted(f"{name}-{n}" for n in range(4, 12))


def test_what_is_held_out_is_of_each_part_by_weight_and_a_longer_list_begins_with_a_shorter() -> None:
    environment = MixtureEnvironment(config(3, 1))
    assert Counter(name.partition("-")[0] for name in ids(environment.held_out(4))) == {"Left": 3, "Right": 1}
    assert ids(environment.held_out(8))[:4] == ids(environment.held_out(4))
    assert len(environment.held_out(100)) == 8


def test_a_question_under_other_preferences_is_of_the_parts_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    def pairs(kinds: str) -> Any:
        def paired(self: Left, count: int) -> dict[str, list[Task]]:
            return {
                kind: [replace(task, preference=Preference(kind, "")) for task in self.tasks[:4][:count]]
                for kind in kinds
            }

        return paired

    assert MixtureEnvironment(config()).paired_preferences(4) == {}
    monkeypatch.setattr(Left, "paired_preferences", pairs("ab"))
    monkeypatch.setattr(Right, "paired_preferences", pairs("bc"))
    environment = MixtureEnvironment(config(3, 1))
    found = environment.paired_preferences(4)
    assert {kind: ids(tasks) for kind, tasks in found.items()} == {"b": ids(environment.held_out(4))}
    assert {task.preference.name for task in found["b"]} == {"b"}
    assert environment.reset(found["b"][0], Budget()) == ("Left", "Left-0")
    monkeypatch.setattr(Right, "paired_preferences", Environment.paired_preferences)
    alone = environment.paired_preferences(4)
    assert {kind: ids(tasks) for kind, tasks in alone.items()} == {
        kind: ids(environment._parts[LEFT].tasks[:4]) for kind in "ab"
    }


def test_baselines_are_silent_where_those_of_all_parts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Right, "silent_baselines", True)
    assert not MixtureEnvironment(config()).silent_baselines
    monkeypatch.setattr(Left, "silent_baselines", True)
    assert MixtureEnvironment(config()).silent_baselines


async def test_a_task_is_played_where_it_came_from_and_all_parts_are_closed() -> None:
    environment = MixtureEnvironment(config())
    for task in (*next(environment.train_tasks(6)), *environment.held_out(4)):
        name = task.id.partition("-")[0]
        assert environment.reset(task, Budget(None, name="run")) == (name, task.id)
        assert environment.said(task, ToolResult("it")) == f"{name} read it"
    Left.closed.clear()
    await environment.close()
    assert Left.closed == ["Left", "Right"]


def test_parts_see_their_own_options_and_say_what_they_lack_under_their_names() -> None:
    assert MixtureEnvironment.problems(config(**{RIGHT: {"broken": True}})) == [
        f"Set env.options.{RIGHT}.repo=FOLDER. Without {RIGHT}: env={LEFT}."
    ]
    assert (
        MixtureEnvironment.forecast(config(1, 3)) == f"Tasks: 25% {LEFT}, 75% {RIGHT}.\nLeft is there.\nRight is there."
    )
    with pytest.raises(ConfigError, match=r"Set env\.options"):
        MixtureEnvironment(config(**{RIGHT: {"broken": True}}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parts": {}}, "must give every part of the mixture a weight above 0"),
        ({"parts": {"qa": 0}}, "must give every part of the mixture a weight above 0"),
        ({"parts": {"mixture": 1}}, "cannot be a part of a mixture"),
        ({"parts": {"qa": 1}, "toolscale": {}}, "env.options.toolscale is of no part of the mixture: qa"),
        ({"parts": {"qqq": 1}}, "qqq is no known environment"),
    ],
)
def test_what_is_no_mixture_is_told(options: dict[str, Any], words: str) -> None:
    (wrong,) = MixtureEnvironment.problems(config(**options))
    assert words in wrong


def test_the_papers_run_is_questions_and_toolscale_in_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLSCALE_REPO", raising=False)
    cfg = compose("+experiment=hle", "tools=none", "model=tiny", "tools.judge=match")
    assert (cfg.env.name, cfg.env.options["parts"]) == ("mixture", {"qa": 0.5, "toolscale": 0.5})
    (wrong,) = environment_class(cfg).problems(cfg)
    assert wrong == (
        "ToolScale's tools are code of the authors' repository, which runs in the sandbox: git clone "
        "https://github.com/NVlabs/ToolOrchestra, and set env.options.toolscale.repo=FOLDER (or TOOLSCALE_REPO). "
        "Without toolscale: env=qa."
    )
    assert "The paper trains" not in (MixtureEnvironment.forecast(cfg) or "")  # what questions alone lack
