"""Benchmarks beyond the quickstart's own, and menus of fewer tools."""

import pytest

from orchestra_jax.config.schema import ConfigError, EvaluationConfig, RunConfig
from orchestra_jax.config.tools import EvaluationOffer, ToolsConfig
from orchestra_jax.envs.quickstart import unseen
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment
from orchestra_jax.envs.quickstart.facts import TOOL_NAMES
from orchestra_jax.envs.quickstart.plans import best_plan
from orchestra_jax.envs.quickstart.preferences import PREFERENCE_SHARES
from orchestra_jax.envs.quickstart.unseen import close, followed, swapped, worth
from orchestra_jax.envs.quickstart.world import OFFER_UNITS
from orchestra_jax.types import Task
from tests.envs.quickstart.posed import names

FEWER = ["expert_large", "python", "expert_small", "local_search"]
CFG = RunConfig(
    tools=ToolsConfig(names=FEWER, evaluation=EvaluationOffer(own=True, names=list(TOOL_NAMES))),
    evaluation=EvaluationConfig(swap_questions=8),
)


@pytest.fixture(scope="module")
def environment() -> QuickstartEnvironment:
    return QuickstartEnvironment(CFG)


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
        (["python", "web_search", "expert_large", "my_tools:abacus"], "others need env=qa."),
        (["python", "web_search"], "no tool for a step of the kind compare"),
    ],
)
def test_tools_that_cannot_be_are_told(tools: list[str], sentence: str) -> None:
    cfg = RunConfig(tools=ToolsConfig(names=tools))
    assert any(sentence in problem for problem in QuickstartEnvironment.problems(cfg))
    assert not any("tools.names" in problem for problem in QuickstartEnvironment.problems(CFG))


def offers(task: Task) -> dict[str, tuple[int, int]]:
    return {spec.name: (round(100 * (spec.price_usd or 0)), round(spec.latency_s or 0)) for spec in task.tools}


def test_prices_change_and_nothing_else(environment: QuickstartEnvironment) -> None:
    parts = unseen.unseen_prices(environment, CFG)
    for usual, turned, near in zip(parts["usual_cost"], parts["swapped_cost"], parts["close_cost"], strict=True):
        assert usual.question == turned.question == near.question
        assert usual.preference == turned.preference == near.preference
        assert offers(turned) == swapped(offers(usual))
        assert offers(turned)["local_search"] == offers(usual)["web_search"]
        assert offers(turned)["expert_large"] == offers(usual)["expert_small"]
        assert offers(near) == close(offers(usual))
        for column, unit in enumerate(OFFER_UNITS):
            experts = [name for name in TOOL_NAMES if name.startswith("expert")]
            assert sorted(experts, key=lambda name, c=column: offers(near)[name][c]) == sorted(
                experts, key=lambda name, c=column: offers(usual)[name][c]
            )
            low = min(7, min(offers(usual)[name][column] for name in experts) // unit)
            assert sorted(offers(near)[name][column] // unit for name in experts) == [low, low + 1, low + 2]


def test_every_kind_of_preference_is_posed(environment: QuickstartEnvironment) -> None:
    parts = unseen.every_preference(environment, CFG)
    assert list(parts) == list(PREFERENCE_SHARES)
    assert all(task.preference.name == kind for kind, tasks in parts.items() for task in tasks)


def test_another_environment_is_told_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match="add env=quickstart"):
        unseen.unseen_prices(object(), CFG)  # type: ignore[arg-type]


def test_a_choice_follows_prices_where_it_is_the_new_best_one(environment: QuickstartEnvironment) -> None:
    parts = unseen.unseen_prices(environment, CFG)
    changes, lost = 0, []
    for usual, turned in zip(parts["usual_cost"], parts["swapped_cost"], strict=True):
        old, new = best_plan(usual), best_plan(turned)
        changed = sum(a != b for a, b in zip(old, new, strict=True))
        assert followed(usual, turned, new) == [True] * changed
        assert followed(usual, turned, old) == [False] * changed
        assert followed(usual, turned, ()) == [False] * changed
        assert worth(usual, old) == worth(turned, new) == 1.0
        assert worth(usual, ()) == worth(usual, ("python",) * 5) == 0.0
        changes += changed
        lost.append(worth(turned, old))
    assert changes >= 4
    assert min(lost) < 0.8
