"""`relay`: a tool's result is the final answer, word for word, in every environment whose policy answers alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.envs.baselines import baseline
from orchestra_jax.envs.bfcl.environment import BFCLEnvironment
from orchestra_jax.envs.database.environment import DatabaseEnvironment
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.tools.build import tool_problems
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.tools.relay import RELAY, relaying
from orchestra_jax.training.warm_start import copy_accuracy
from orchestra_jax.types import Status, ToolCall, ToolResult, ToolSpec
from tests.envs.played import FREE
from tests.envs.recorded.made import config, made_rows, write

ASK, LOOK = (ToolSpec(name, "", {"type": "object", "properties": {}, "required": []}) for name in ("ask", "look"))


def executor() -> ToolExecutor:
    """Two tools: each says its name and how often it was called; `look` fails the second time."""
    counts = {"ask": 0, "look": 0}

    def handler(name: str):
        async def call(arguments, budget) -> ToolResult:
            counts[name] += 1
            return ToolResult(f"{name} {counts[name]}\n", is_error=name == "look" and counts[name] == 2)

        return call

    return ToolExecutor((ASK, LOOK, RELAY), relaying({name: handler(name) for name in counts}), Budget())


@pytest.mark.parametrize(
    ("before", "arguments", "final"),
    [
        (["ask"], {}, "ask 1\n"),
        (["ask", "look"], {}, "look 1\n"),
        (["look", "ask", "look"], {}, "ask 1\n"),  # an error is no result
        (["ask", "look", "ask"], {"tool": "look"}, "look 1\n"),
        (["ask", "look", "ask"], {"tool": "ask"}, "ask 2\n"),
    ],
)
async def test_the_last_result_or_that_of_a_tool_is_the_answer(before, arguments, final):
    made = executor()
    for name in before:
        await made.step(ToolCall(name, {}))
    found = await made.step(ToolCall(RELAY.name, arguments))
    assert (found.final, found.text, found.is_error) == (final, final, False)
    assert sum(row.cost_usd for row in found.usage) == 0.0


@pytest.mark.parametrize(
    ("before", "arguments", "said"),
    [
        ([], {}, "There is no result to hand over yet: call a tool first."),
        ([], {"tool": "ask"}, "There is no result to hand over yet: call a tool first."),
        (["look"], {"tool": "ask"}, "There is no result of 'ask'; results are there of look."),
        (["look"], {"tool": 3}, "must be of type string"),
    ],
)
async def test_without_a_result_it_says_so_and_the_task_goes_on(before, arguments, said):
    made = executor()
    for name in before:
        await made.step(ToolCall(name, {}))
    found = await made.step(ToolCall(RELAY.name, arguments))
    assert (found.final, found.is_error, found.refused, found.usage) == (None, True, True, ())
    assert said in found.text


async def test_recorded_answers_are_handed_over_and_no_demonstration_copies(tmp_path: Path):
    cfg = config(str(write(tmp_path / "table.jsonl", made_rows())), python=False)
    relaying = replace(cfg, tools=replace(cfg.tools, relay=True))
    played = {}
    for name, each in (("copied", cfg), ("relayed", relaying)):
        environment = RecordedEnvironment(each)
        shown = environment.demonstrations()
        collector = Collector(environment, None, RolloutLimits(), FREE)
        found = await collector.play(shown.script, shown.tasks, budget=Budget())
        assert [trajectory.status for trajectory in found] == [Status.COMPLETED] * len(found)
        assert copy_accuracy(found, shown) == 1.0
        played[name] = found
        assert all(any(t.name == RELAY.name for t in task.tools) == (name == "relayed") for task in shown.tasks)
        random = baseline(environment, "random", shown.tasks, 4).script
        assert {random(task, ()).name for task in shown.tasks}.isdisjoint({RELAY.name})
        await environment.close()
    assert [call.name for found in played["relayed"] for call in found.calls][1::2] == [RELAY.name] * 4
    assert all(found.answer == found.turns[-2].results[-1].text for found in played["relayed"])
    assert all(found.cost_usd > 0 for found in played["relayed"])


def test_where_a_user_waits_or_models_are_choices_it_is_refused():
    world = compose("+experiment=database", "tools=simulated", "tools.names=[]", "tools.relay=true")
    assert "here a user waits: set tools.relay=false" in DatabaseEnvironment.problems(world)[0]
    for name, env in (("quickstart", QuickstartEnvironment), ("bfcl", BFCLEnvironment)):
        cfg = compose(f"env={name}", "tools.relay=true", *(["data=world", "tools=none"] if name == "bfcl" else []))
        assert any("tools.relay" in sentence for sentence in env.problems(cfg))
    released = compose("env=qa", "data=gsm8k", "tools=simulated", "tools.relay=true", "tools.menu.form=released")
    assert any("tools.relay hands over" in sentence for sentence in tool_problems(released))
