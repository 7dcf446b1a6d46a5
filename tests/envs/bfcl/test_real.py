"""The real package, where it is installed: every golden replay, and no state that episodes share."""

import importlib.util

import pytest

from orchestra_jax.envs.bfcl import package
from orchestra_jax.envs.bfcl.apis import EpisodeApis
from orchestra_jax.envs.bfcl.environment import BFCLEnvironment
from orchestra_jax.money.budgets import Budget
from tests.envs.bfcl.conftest import cfg
from tests.envs.bfcl.test_bfcl import play

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(package.PACKAGE) is None, reason="bfcl-eval is not installed: requirements/README.md"
)


@pytest.fixture(scope="module")
def everything():
    return BFCLEnvironment(cfg(evaluate="all"))


def test_golden_replay(everything):
    assert everything.unusable == {"multi_turn_miss_func_49": "turn 2: tail is not on the menu"}
    families = [task.family for task in everything.held_out(9999)]
    assert {kind: families.count(kind) for kind in package.SETS} == {
        "base": 200, "miss_func": 199, "miss_param": 200, "long_context": 200,
    }  # fmt: skip


def test_golden_policies_solve_and_those_that_leave_a_call_out_do_not(everything):
    tasks = everything.held_out(9999)[::40]
    script = everything.baselines()["golden"]
    assert all(found.solved for found in play(everything, script, tasks))
    idle = play(everything, lambda task, seen: "Done.", tasks)
    assert not any(found.solved for found in idle)


async def test_interleaved_episodes_hear_what_they_hear_alone(everything):
    tasks = everything.held_out(200)[::20]
    scenarios = [everything._scenarios[task.id] for task in tasks for _ in range(2)]
    alone = [[EpisodeApis(s).call(call).text for call in s.golden[0]][:1] for s in scenarios]

    episodes = [everything.reset(task, Budget()) for task in tasks for _ in range(2)]
    most = max(len(s.golden[0]) for s in scenarios)
    said = [[] for _ in episodes]
    for place in range(most):
        for episode, scenario, texts in zip(episodes, scenarios, said, strict=True):
            for call in scenario.golden[0][place : place + 1]:
                texts.append((await episode.step(call)).text)
    assert [texts[:1] for texts in said] == alone
    assert said[::2] == said[1::2]
