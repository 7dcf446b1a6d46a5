"""Benchmarks beyond the quickstart's own, and menus of fewer tools."""

from dataclasses import replace

import pytest

from orchestra_jax.config.schema import ConfigError, EvaluationConfig, RunConfig
from orchestra_jax.config.tools import EvaluationOffer, ToolsConfig
from orchestra_jax.envs.quickstart import unseen
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment
from orchestra_jax.envs.quickstart.facts import TOOL_NAMES
from orchestra_jax.envs.quickstart.preferences import PREFERENCE_SHARES
from orchestra_jax.envs.quickstart.unseen import DEARER, SWAPPED
from orchestra_jax.envs.quickstart.world import best_tool, expected_utility
from orchestra_jax.types import Task

FEWER = ["expert_large", "python", "expert_small", "local_search"]
CFG = RunConfig(
    tools=ToolsConfig(names=FEWER, evaluation=EvaluationOffer(own=True, names=list(TOOL_NAMES))),
    evaluation=EvaluationConfig(swap_questions=8),
)


@pytest.fixture(scope="module")
def environment() -> QuickstartEnvironment:
    return QuickstartEnvironment(CFG)


def names(task: Task) -> set[str]:
    return {spec.name for spec in task.tools}


def test_policy_steps_and_demonstrations_offer_the_tools_of_training_alone(environment: QuickstartEnvironment) -> None:
    posed = [*next(environment.train_tasks(32)), *environment.demonstrations().gate]
    assert set().union(*map(names, posed)) == set(FEWER)


def test_evaluation_offers_its_own_tools(environment: QuickstartEnvironment) -> None:
    assert set().union(*map(names, environment.held_out(32))) == set(TOOL_NAMES)


def test_without_names_every_tool_is_offered() -> None:
    everything = QuickstartEnvironment(RunConfig())
    named = QuickstartEnvironment(RunConfig(tools=ToolsConfig(names=list(reversed(TOOL_NAMES)))))
    assert everything.held_out(8) == named.held_out(8)


@pytest.mark.parametrize(
    ("tools", "sentence"),
    [
        (["python", "web_search", "expert_large", "abacus"], "names abacus"),
        (["python", "web_search"], "no tool that can answer the questions of the family easy"),
    ],
)
def test_tools_that_cannot_be_are_told(tools: list[str], sentence: str) -> None:
    cfg = RunConfig(tools=ToolsConfig(names=tools))
    assert any(sentence in problem for problem in QuickstartEnvironment.problems(cfg))
    assert not any("tools.names" in problem for problem in QuickstartEnvironment.problems(CFG))


def test_prices_change_and_nothing_else(environment: QuickstartEnvironment) -> None:
    parts = unseen.unseen_prices(environment, CFG)
    for usual, dearer, swapped in zip(parts["usual_cost"], parts["dearer_cost"], parts["swapped_cost"], strict=True):
        assert usual.question == dearer.question == swapped.question
        assert usual.preference == dearer.preference == swapped.preference
        offers = {spec.name: (spec.price_usd, spec.latency_s) for spec in usual.tools}
        assert {spec.name: offers[SWAPPED.get(spec.name, spec.name)] for spec in usual.tools} == {
            spec.name: (spec.price_usd, spec.latency_s) for spec in swapped.tools
        }
        for spec in dearer.tools:
            assert spec.price_usd == pytest.approx(DEARER * offers[spec.name][0])
            assert spec.latency_s == offers[spec.name][1]


def test_menus_with_and_without_the_unseen_tools_differ_in_nothing_else(environment: QuickstartEnvironment) -> None:
    parts = unseen.unseen_tools(environment, CFG)
    for seen, every in zip(parts["seen_fast"], parts["every_fast"], strict=True):
        assert (names(seen), names(every)) == (set(FEWER), set(TOOL_NAMES))
        assert seen.question == every.question
        assert seen.preference.instruction == every.preference.instruction
        assert seen.tools == tuple(spec for spec in every.tools if spec.name in FEWER)


def test_every_kind_of_preference_is_posed(environment: QuickstartEnvironment) -> None:
    parts = unseen.every_preference(environment, CFG)
    assert list(parts) == list(PREFERENCE_SHARES)
    assert all(task.preference.name == kind for kind, tasks in parts.items() for task in tasks)


def test_another_environment_is_told_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match="add env=quickstart"):
        unseen.unseen_prices(object(), CFG)  # type: ignore[arg-type]


def test_the_best_tool_is_worth_most(environment: QuickstartEnvironment) -> None:
    for task in environment.held_out(8):
        expected = expected_utility(task)
        assert set(expected) == names(task)
        assert expected[best_tool(task)] == max(expected.values())
    # By hand: an easy question under "cost" between a small expert (.80, cheap) and a large one (.98, dear).
    easy = next(task for task in unseen.every_preference(environment, CFG)["cost"] if task.family == "easy")
    pair = tuple(spec for spec in easy.tools if spec.name in ("expert_small", "expert_large"))
    worth = expected_utility(replace(easy, tools=pair))
    assert worth["expert_small"] == pytest.approx(0.80 * (0.5 + 0.5))
    assert worth["expert_large"] == pytest.approx(0.98 * 0.5)
