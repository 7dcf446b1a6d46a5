"""BFCL's conversations on a made package of its form: who solves what, what is offered when, and what is left out."""

import asyncio
import json

import pytest

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.bfcl import package as packages
from orchestra_jax.envs.bfcl.environment import BFCLEnvironment
from orchestra_jax.envs.conversation import Conversation
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.models import saved_tokenizer
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.types import Status, ToolCall
from tests.envs.bfcl.conftest import cfg
from tests.envs.played import plan, play, task_of

ADD, READ = ToolCall("add", {"number": 3}), ToolCall("read", {})


def first(environment, kind):
    return task_of(environment, f"multi_turn_{kind}_0")


def test_golden_calls_solve_every_task_and_nothing_else_does(environment):
    tasks = environment.held_out(99)
    assert len(tasks) == 8
    assert isinstance(environment.reset(tasks[0], Budget()), Conversation)
    for found in play(environment, environment.baselines()["golden"], tasks):
        assert (found.status, found.solved, found.cost_usd) == (Status.COMPLETED, True, 0.0)
    assert not any(found.solved for found in play(environment, lambda task, seen: "Done.", tasks))
    assert not any(found.solved for found in play(environment, lambda task, seen: "", tasks))


@pytest.mark.parametrize(
    ("actions", "solved"),
    [
        ((ADD, "a", READ, "b"), True),
        ((ADD, READ, "a", READ, "b"), True),  # more than asked, without another state
        ((ToolCall("add", {"number": 1}), ToolCall("add", {"number": 2}), "a", READ, "b"), False),  # another log
        ((ToolCall("add", {"number": 4}), "a", READ, "b"), False),  # another state
        (("a", ADD, READ, "b"), False),  # too late: the first turn was not answered
        ((ADD, READ, "a", "b"), False),  # nothing called in the last turn
        ((ADD, "a", ToolCall("unwanted", {}), "b"), False),  # not on the menu
        ((ADD, "a", ToolCall("fails", {}), READ, "b"), True),  # an error is an observation
        ((ToolCall("add", {"wrong": 3}), ADD, "a", READ, "b"), True),
        ((ToolCall("add", {"number": "x"}), ADD, "a", READ, "b"), True),  # judged by the API, which changes nothing
    ],
)
def test_what_solves_a_task(environment, actions, solved):
    (found,) = play(environment, plan(*actions), [first(environment, "base")])
    assert (found.status, found.solved) == (Status.COMPLETED, solved)


def test_a_tool_that_is_missing_is_refused_until_the_user_brings_it(environment):
    task = first(environment, "miss_func")
    (found,) = play(environment, plan(ADD, "a", READ, "There is no tool to read with.", READ, "b"), [task])
    assert found.solved
    assert [turn.results[0].refused for turn in found.turns if turn.results] == [False, True, False]
    told = found.turns[3].heard
    assert json.loads(told.splitlines()[1])["function"]["name"] == "read"
    episode = environment.reset(task, Budget())
    assert [spec.name for spec in episode.tools] == ["add", "fails"]
    assert [spec.name for spec in task.tools] == ["add", "read", "fails"]  # rewards count all of them


def test_a_policy_in_tokens_hears_the_script(environment, data_dir):

    chat = ChatFormat(saved_tokenizer.load(data_dir / "qwen3-tokenizer"))
    task = first(environment, "miss_param")
    (found,) = play(environment, environment.baselines()["golden"], [task], chat=chat)
    assert found.solved
    heard = [chat.tokenizer.decode(turn.prompt_ids) for turn in found.turns]
    assert ["Add something." in heard[0], "user\n3.<|im_end|>" in heard[1]] == [True, True]
    assert [turn.heard for turn in found.turns] == ["3.", None, "Read it.", None, None]


async def test_episodes_share_no_state(environment):
    task = first(environment, "base")
    episodes = [environment.reset(task, Budget()) for _ in range(50)]
    for number in range(1, 4):
        assert {(await episode.step(ADD)).text for episode in episodes} == {json.dumps({"count": 3 * number})}


def test_numbers_that_would_take_hours_are_an_error(environment):
    episode = environment.reset(first(environment, "base"), Budget())
    result = asyncio.run(episode.step(ToolCall("add", {"number": 1, "precision": 10**9})))
    assert (result.is_error, result.text) == (True, "Error during execution: precision must be at most 1000.")


def test_variants_of_a_scenario_are_on_one_side(environment):
    training, evaluation = environment._training, environment.held_out(99)
    numbers = [{task.id.rpartition("_")[2] for task in some} for some in (training, evaluation)]
    assert numbers == [{"1", "2", "3", "5", "6", "7"}, {"0", "4"}]
    assert next(environment.train_tasks(4))


def test_a_benchmark_has_all_and_some_sets_can_be_chosen(package):
    package()
    environment = make_environment(cfg(sets=["base", "miss_param"], evaluate="all"))
    assert [task.family for task in environment.held_out(99)] == ["base"] * 8 + ["miss_param"] * 8
    assert environment.largest_menu() == 3


@pytest.mark.parametrize(
    ("golden", "reason"),
    [
        (("add(3)", "fails()"), "turn 2: fails: Error during execution: 'a bug of its own'"),
        (("add(2000)", "read()"), 'turn 2: read: {"error": "too many"}'),
        (("add(3)", "unwanted()"), "turn 2: unwanted is not on the menu"),
    ],
)
def test_a_task_whose_golden_calls_fail_is_left_out_with_the_reason(package, golden, reason, capsys):
    package(golden)
    environment = BFCLEnvironment(cfg(sets=["base"]))
    assert environment.unusable["multi_turn_base_7"] == reason
    assert len(environment.unusable) == 8
    assert environment.held_out(99) == []
    assert f"multi_turn_base_0 is left out: {reason}" in capsys.readouterr().out


def test_settings_and_a_package_that_is_not_there(package, monkeypatch):
    package(("add(", "read()"))
    with pytest.raises(ConfigError, match="is not one that we read: SyntaxError"):
        BFCLEnvironment(cfg())
    found = BFCLEnvironment.problems(cfg(sets=["more"], evaluate="some", turns=3))
    assert [sentence.partition(" must")[0].partition(" are")[0] for sentence in found] == [
        "env.options of BFCL", "env.options.sets", "env.options.evaluate",
    ]  # fmt: skip
    monkeypatch.setattr(packages, "PACKAGE", "no_such_package")
    assert BFCLEnvironment.problems(cfg()) == [f"{packages.MISSING}."]
    with pytest.raises(ConfigError, match="pip install --no-deps bfcl-eval"):
        BFCLEnvironment(cfg())
