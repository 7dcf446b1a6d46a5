"""The quickstart's world with tools of many makers."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestra_jax.config.schema import ConfigError, EvaluationConfig, RunConfig, WarmStartConfig
from orchestra_jax.envs.quickstart import unseen
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment
from orchestra_jax.envs.quickstart.facts import TOOL_NAMES
from orchestra_jax.envs.quickstart.makers import (
    DOES,
    MADE,
    MAKERS,
    MakersQuickstart,
    original,
    under_own_names,
    unseen_makers,
    used_where_best,
)
from orchestra_jax.envs.quickstart.plans import best_plan, expected_utility
from orchestra_jax.models.tokenizer import UNKNOWN
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.types import Task, ToolCall
from tests.envs.quickstart.posed import use

CFG = RunConfig(evaluation=EvaluationConfig(swap_questions=8), warm_start=WarmStartConfig(demonstrations=300))


@pytest.fixture(scope="module")
def makers() -> Iterator[MakersQuickstart]:
    made = MakersQuickstart(CFG)
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def trained_on(makers: MakersQuickstart) -> list[Task]:
    batches, shown = makers.train_tasks(64), makers.demonstrations()
    return [task for _ in range(6) for task in next(batches)] + [*shown.tasks, *shown.gate]


def test_half_of_three_tools_stand_on_training_menus_under_makers_names(trained_on: list[Task]) -> None:
    met: dict[str, Counter[str]] = {name: Counter() for name in MADE}
    for spec in (spec for task in trained_on for spec in task.tools):
        assert spec.name == original(spec) or original(spec) in MADE
        if original(spec) in MADE:
            met[original(spec)][spec.name] += 1
    for name, found in met.items():
        assert set(found) == {name, *MAKERS["train"]}
        assert 0.4 < found[name] / found.total() < 0.6
    assert set(MAKERS["train"]).isdisjoint(MAKERS["eval"])


def test_held_out_questions_are_those_of_the_quickstart(makers: MakersQuickstart) -> None:
    plain = QuickstartEnvironment(CFG)
    for task, same in zip(makers.held_out(60), plain.held_out(60), strict=True):
        assert replace(task, tools=tuple(replace(spec, traits=()) for spec in task.tools)) == same


def test_a_line_of_the_menu_says_what_its_tool_does(
    makers: MakersQuickstart, chat: ChatFormat, trained_on: list[Task]
) -> None:
    unknown = chat.tokenizer.convert_tokens_to_ids(UNKNOWN)
    for task in [*trained_on, *unseen_makers(makers, CFG)["makers_cost"]]:
        episode = makers.reset(task, Budget())
        prompt = chat.prompt_ids(episode.messages, episode.tools)
        assert unknown not in prompt
        for spec in task.tools:
            line = f"{DOES[original(spec)]} {spec.name} {round(100 * spec.price_usd)} {round(spec.latency_s)}"
            assert f" {line} " in f"{chat.decode(prompt)} ".replace("<|im_end|>", " ")


def test_demonstrations_say_lines_of_the_menu_and_take_the_lowest_figure(makers: MakersQuickstart) -> None:
    shown, wishes = makers.demonstrations(), Counter[str]()
    for task in shown.tasks[:200]:
        words, wish = shown.think(task, []).removeprefix("first ").split(" ")[2:], task.preference.name
        call = shown.script(task, [])
        assert isinstance(call, ToolCall)
        lines = {
            spec.name: (DOES[original(spec)], round(100 * spec.price_usd if wish == "cost" else spec.latency_s))
            for spec in task.tools
        }
        if wish in ("cost", "fast"):
            said = {name: (kind, int(number)) for kind, name, number in (words[:3], words[3:])}
            assert len(said) == 2
            assert said.items() <= lines.items()
            assert said[call.name][1] == min(number for _, number in said.values())
        else:
            assert words == [lines[call.name][0], call.name]
        wishes[wish] += 1
    assert len(wishes) == 4


def test_unseen_makers_are_known_by_their_lines_alone(makers: MakersQuickstart) -> None:
    posed, usual = unseen_makers(makers, CFG), unseen.unseen_prices(makers, CFG)
    met = set[str]()
    for task, fast, known in zip(posed["makers_cost"], posed["makers_fast"], usual["usual_cost"], strict=True):
        assert task.tools == fast.tools  # under every wish
        assert under_own_names(task, ()) == (known, [])
        new = {spec.name for spec in task.tools} - {*TOOL_NAMES}
        assert new <= {*MAKERS["eval"]}
        met |= new
    assert len(met) >= 5
    with pytest.raises(ConfigError, match=r"add \+experiment=makers"):
        unseen_makers(QuickstartEnvironment(CFG), CFG)


def test_a_makers_tool_does_what_its_line_says(makers: MakersQuickstart) -> None:
    posed = unseen_makers(makers, CFG)["makers_cost"]
    strange = [(task, spec.name) for task in posed for spec in task.tools]
    usual = [(under_own_names(task, ())[0], original(spec)) for task in posed for spec in task.tools]
    for result, known, (_, name) in zip(use(makers, strange), use(makers, usual), strange, strict=True):
        assert (result.text, result.is_error) == (known.text, known.is_error)
        assert [row.name for row in result.usage] == [name]


def test_makers_tools_count_where_no_known_tool_is_as_good(makers: MakersQuickstart) -> None:
    counted = 0
    for task in (task for tasks in unseen_makers(makers, CFG).values() for task in tasks):
        shown = {original(spec): spec.name for spec in task.tools}
        plain, _ = under_own_names(task, ())
        best, worths = best_plan(plain), expected_utility(plain)
        by_known = [plan for plan in worths if all(shown[name] == name for name in plan)]
        known = max(by_known, key=worths.__getitem__)
        if worths[best] == worths[known]:
            assert used_where_best(task, best) is None
        else:
            assert used_where_best(task, [shown[name] for name in best]) is True
            assert used_where_best(task, known) is used_where_best(task, ()) is False
            counted += 1
    assert counted >= 8
