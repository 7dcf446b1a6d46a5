"""Demonstrations and baselines of the quickstart world."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from orchestra_jax.envs.quickstart.demonstrations import (
    BASELINES,
    NO_IDEA,
    answer_from,
    read_answer,
    reference_call,
    shown_tools,
)
from orchestra_jax.envs.quickstart.facts import COMPOUND, EXPERTS, FAMILIES, RIVALS, TOOL_NAMES
from orchestra_jax.envs.quickstart.plans import step_kinds
from orchestra_jax.envs.quickstart.world import QuickstartWorld
from orchestra_jax.evaluation.measures import preference_utility
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.tools.search.bm25 import NO_RESULTS
from orchestra_jax.types import Task, ToolCall, ToolResult
from tests.envs.quickstart.posed import KINDS, full_menus


def test_a_reader_takes_the_last_word_that_says_something():
    fact, number = ToolResult("Alice Moreno was born in Lima."), ToolResult("157")
    error, nothing = ToolResult("NameError: x", is_error=True), ToolResult(NO_RESULTS)
    assert [read_answer(result) for result in (fact, number, error, nothing)] == ["Lima", "157", None, None]
    assert answer_from([fact, error, nothing]) == "Lima"
    assert answer_from([fact, number]) == "157"
    assert answer_from([error]) == answer_from([]) == NO_IDEA


def test_demonstrations_are_well_formed_and_say_whether_more_follows(collector: Collector, environment, tasks):
    shown = environment.demonstrations()
    runs = asyncio.run(collector.play(shown.script, tasks["train"][:250], shown.think, budget=Budget()))
    assert all(run.completed for run in runs)
    assert all(call.name in {s.name for s in run.task.tools} for run in runs for t in run.turns for call in t.calls)
    for run in runs:
        results = [result for turn in run.turns for result in turn.results]
        assert run.answer == answer_from(results)
        kinds = step_kinds(run.task)
        silent = read_answer(results[-1]) is None
        assert len(results) == len(kinds) or (silent and len(results) <= len(kinds))
        for place, turn in enumerate(run.turns[:-1]):
            step = ("first " if place + 1 < len(kinds) else "") + kinds[place].replace("arith", "arithmetic")
            wish = {"accuracy": "accurate", "cost": "cheap"}.get(run.task.preference.name, run.task.preference.name)
            assert turn.text.startswith(f"<think> {step} {wish}")
        assert "<think>" not in run.turns[-1].text


def test_demonstrations_compare_figures_of_the_menu_and_take_the_lowest(environment, world: QuickstartWorld):
    shown = environment.demonstrations()
    for task in full_menus(world, len(FAMILIES) * len(KINDS) * 4, "train"):
        words, wish = shown.think(task, []).removeprefix("first ").split(" ")[2:], task.preference.name
        told = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        offers = {s.name: {"cost": 100 * s.price_usd, "fast": s.latency_s}.get(wish) for s in task.tools}
        assert len(told) in ((2, 3) if wish in ("cost", "fast") else (0,))
        assert all(offers[name] == pytest.approx(figure) for name, figure in told.items())
        assert not told or told[first_call(shown.script, task)] == min(told.values())


@pytest.mark.parametrize("family", COMPOUND)
async def test_the_last_call_takes_what_the_others_found(environment, world: QuickstartWorld, family: str):
    tools = {"lookup": "web_search", "arith": "python"}
    for task in (task for task in full_menus(world, len(FAMILIES) * 25) if task.family == family):
        results: list[ToolResult] = []
        episode = environment.reset(task, Budget())
        for kind in step_kinds(task):
            call = reference_call(task, tools[kind], results)
            results.append(await episode.step(call))
        assert all(str(read_answer(result)) in str(call.arguments) for result in results[:-1])
        assert answer_from(results) in task.answer


@pytest.mark.parametrize("family", FAMILIES)
def test_demonstrations_choose_regardless_of_who_can_do_it(world: QuickstartWorld, family: str):
    """On full menus, because what a menu offers does depend on the family."""
    posed = [task for task in full_menus(world, len(FAMILIES) * 240, "train") if task.family == family]
    chosen = Counter(first_call(shown_tools(0), task) for task in posed)
    for rivals in RIVALS.values():  # a local tool is wished for, and the others are as good as each other
        remote = [name for name in rivals if name in EXPERTS]
        assert not remote or stats.chisquare([chosen[name] for name in remote]).pvalue > 1e-3
    assert all(0.5 < chosen[name] * len(TOOL_NAMES) / len(posed) < 1.8 for name in TOOL_NAMES)


def test_demonstrations_follow_the_wish(world: QuickstartWorld):
    posed = full_menus(world, len(FAMILIES) * len(KINDS) * 60, "train")

    def place(task: Task, figure: Callable[[Any], float]) -> float:
        called = next(spec for spec in task.tools if spec.name == first_call(shown_tools(0), task))
        return float(np.mean([figure(spec) < figure(called) for spec in task.tools]))

    figures = {"cost": lambda s: s.price_usd, "fast": lambda s: s.latency_s, "local": lambda s: float(not s.local)}
    for wish, figure in figures.items():
        mean = {kind: np.mean([place(t, figure) for t in posed if t.preference.name == kind]) for kind in KINDS}
        assert mean[wish] < 0.75 * mean["accuracy"]


def test_random_tools_are_of_the_seed(tasks: dict[str, list[Task]]):
    chosen = [[first_call(shown_tools(seed), task) for task in tasks["train"]] for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]


def first_call(script: Callable, task: Task) -> str:
    call = script(task, [])
    assert isinstance(call, ToolCall)
    return call.name


def test_the_oracle_serves_preferences_best(collector, tasks: dict[str, list[Task]]):
    runs = {
        name: asyncio.run(collector.play(script, tasks["eval"][:300], budget=Budget()))
        for name, script in BASELINES.items()
    }
    for played in runs.values():
        assert all(run.completed and len(run.tool_names) <= 3 for run in played)
    utility = preference_utility(list(runs.values()), list(runs.values()), "share").mean(axis=1)
    found = dict(zip(runs, utility, strict=True))
    assert all(found["preference_oracle"] >= other for other in found.values()), found
    accuracy = {name: np.mean([run.solved for run in played]) for name, played in runs.items()}
    cost = {name: np.mean([run.cost_usd for run in played]) for name, played in runs.items()}
    assert max(accuracy["random_tool"], accuracy["strongest_expert"]) < 0.5 < accuracy["cheapest_sufficient"]
    assert cost["cheapest_sufficient"] < cost["preference_oracle"]
