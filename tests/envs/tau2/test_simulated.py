"""τ²-Bench with a user that a model plays, on a made package: what they do counts, what they cost is kept apart."""

import json
from dataclasses import replace

import pytest

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import ConfigError, PricingConfig
from orchestra_jax.config.tools import ExpertServer
from orchestra_jax.envs.tau2.environment import Tau2Environment
from orchestra_jax.evaluation.measures import summarize
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.types import Status, ToolCall
from tests.envs.played import FREE, plan, task_of
from tests.envs.tau2.conftest import cfg
from tests.tools.openai_stub import status

ROAM, GET = ToolCall("enable_roaming", {}), ToolCall("get_user", {"user": "ann"})


def settings(stub, **options):
    made = cfg(domains=["airline", "telecom"], evaluate="all", user="qwen3-32b", **options)
    tools = replace(made.tools, server=ExpertServer(url=stub.url, retries=0))
    return replace(made, tools=tools, pricing=PricingConfig(name="paper"))


def step(action, words=""):
    return json.dumps({"action": action, "arguments": "{}", "words": words})


async def played(stub, script, name, replies, **limits):
    stub.says(*replies)
    environment = Tau2Environment(settings(stub))
    assert list(environment.baselines()) == ["do_nothing"]  # each would pay for the user
    try:
        collector = Collector(environment, None, RolloutLimits(retries=0, **limits), FREE)
        (found,) = await collector.play(script, [task_of(environment, name)], budget=Budget())
    finally:
        await environment.close()
    return found


async def test_what_the_user_does_counts_and_what_they_cost_is_kept_apart(package, stub):
    replies = (step("toggle_airplane_mode"), step("say", "I did."), step("say", "###STOP###"))
    found = await played(stub, plan(ROAM, "Turn off airplane mode.", "Is it fine?"), "telecom-broken", replies)
    assert (found.status, found.solved) == (Status.COMPLETED, True), found.criteria
    assert found.cost_usd == found.latency_s == 0.0
    assert sum(row.role == "user_simulator" for row in found.ledger) == 3
    cost = summarize([found])["user_cost"]
    assert cost == pytest.approx(sum(row.cost_usd for row in found.ledger))
    assert cost > 0
    shown = stub.bodies[0]["messages"]
    assert shown[0]["content"].startswith("Play a customer with tools.\n<scenario>\nInstructions: ")
    assert "toggle_airplane_mode" in shown[0]["content"]
    assert found.turns[0].heard is None
    assert found.task.question == "Hello, I need your help."  # they tell the rest when they are asked
    # An evaluation finds what it kept by the task: with another user it is another one.
    assert {key: found.task.extra[key] for key in ("source", "user")} == {"source": "wheel", "user": "qwen3-32b"}


async def test_a_dead_user_is_no_score_where_nothing_need_change(package, stub):
    """The package's own loop gives 1.0 to a user whose every turn raises."""
    stub.chaos = lambda number: status(500)
    found = await played(stub, plan("Done."), "airline-1", ["Hello"])
    assert (found.status, found.solved, found.criteria) == (Status.FAILED, False, {})


async def test_a_user_who_never_ends_is_no_score(package, stub):
    found = await played(stub, plan("Done."), "airline-1", ["And then?"], max_turns=3)
    assert (found.status, found.solved) == (Status.NO_ANSWER, False)
    assert len(stub.bodies) == 3


async def test_who_cannot_be_asked(package, stub):
    with pytest.raises(ConfigError, match="is the policy itself"):
        Tau2Environment(replace(settings(stub), policy="models/qwen3-32b"))
    assert Tau2Environment.forecast(settings(stub)) == (
        "The user qwen3-32b costs about $0.024 a conversation of 10 turns of 2000 + 1000 tokens.")  # fmt: skip
    assert Tau2Environment.forecast(cfg()) is None
    unserved = replace(settings(stub), tools=cfg().tools)
    with pytest.raises(ConfigError, match="There is no server for 'qwen3-32b'"):
        Tau2Environment(unserved)


async def test_a_judge_checks_what_only_a_judge_can(package, stub):
    """The task names the database and a claim; without a judge its facts count for the claim."""
    verdicts = ['{"reason": "It was.", "verdict": "correct"}', '{"reason": "No.", "verdict": "incorrect"}', "Hm."]
    made = cfg(domains=["airline"], evaluate="all")
    tools = replace(made.tools, server=ExpertServer(url=stub.url, retries=0), judge="gpt-5")
    environment = Tau2Environment(replace(made, tools=tools, pricing=PricingConfig(name="paper")))
    collector = Collector(environment, None, RolloutLimits(retries=0), FREE)
    task, found = task_of(environment, "airline-4"), []
    for said in verdicts:
        stub.reply = lambda body, said=said: said
        found += await collector.play(plan(GET, "Dear Ann, done."), [task], budget=Budget())
    await environment.close()
    assert [trajectory.status for trajectory in found] == [Status.COMPLETED, Status.COMPLETED, Status.FAILED]
    assert [trajectory.solved for trajectory in found] == [True, False, False]
    assert found[1].criteria == {"db": "", "nl_assertion": "Not true: 'The agent is kind.'.", "errors": ""}
    shown = stub.bodies[0]["messages"][1]["content"]
    for quoted in ("| The agent is kind.", "| agent: Dear Ann, done.", "| agent calls get_user with", "You want 4."):
        assert quoted in shown
    figures = summarize(found)
    assert figures["judge_cost"] > 0
    assert "exact_match" not in figures  # no answer was compared with a reference
    assert found[0].cost_usd == 0.0
