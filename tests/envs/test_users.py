"""Users that a model plays: what the model is shown, what they can do, what ends a conversation, and who fails."""

import json
from dataclasses import replace

import pytest

from orchestra_jax.config.schema import EndpointConfig, EvaluationConfig, ModelConfig, RunConfig
from orchestra_jax.envs.users import MOST_CALLS, SCRIPTED, SimulatedUser, user_problems
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.types import InfrastructureError, ToolSpec
from tests.tools.openai_stub import PRICES, status

TOOL = ToolSpec("toggle", "Turns the phone on or off.", {
    "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]})  # fmt: skip


@pytest.fixture
async def client(stub):
    expert = Expert("small", "small", stub.url, max_tokens=60, context_tokens=4000, retries=0)
    made = ExpertClient(expert, PRICES, backoff_s=0.0)
    yield made
    await made.close()


def step(action, words="", **arguments):
    return json.dumps({"action": action, "arguments": json.dumps(arguments), "words": words})


async def test_the_conversation_so_far_is_the_models(stub, client):
    stub.says("I am Ann.", "Fine. ###TRANSFER### Bye.")
    run = Budget()
    user = SimulatedUser(client, "", Budget(parent=run), system="Play Ann.")
    first, last = await user.reply("Who are you?"), await user.reply("I hand you over.")
    assert [(turn.text, turn.done) for turn in (first, last)] == [
        ("I am Ann.", False), ("Fine. ###TRANSFER### Bye.", True)]  # fmt: skip
    system, _, hello, *seen = stub.bodies[1]["messages"]
    assert system == {"role": "system", "content": "Play Ann."}
    assert hello == {"role": "assistant", "content": "Hello, I need your help."}
    assert [message["content"] for message in seen] == ["Who are you?", "I am Ann.", "I hand you over."]
    rows = [*first.usage, *last.usage]
    assert {row.role for row in rows} == {"user_simulator"}
    assert run.spent.usd == pytest.approx(sum(row.cost_usd for row in rows))
    assert run.spent.usd > 0


@pytest.mark.parametrize("stop", ["###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"])
@pytest.mark.parametrize("tools", [(), (TOOL,)])
async def test_a_stop_word_anywhere_ends_it(stub, client, stop, tools):
    stub.says(step("say", f"Thanks {stop} a lot") if tools else f"Thanks {stop} a lot")
    turn = await SimulatedUser(client, "", Budget(), tools=tools).reply("Done.")
    assert turn.done
    assert "Thanks" in turn.text


async def test_tools_of_the_user_are_called_through_structured_steps(stub, client):
    called = []

    def act(call):
        called.append(call.arguments)
        return "the phone is on"

    stub.says(
        step("toggle", on="yes"), step("fly"), f"```json\n{step('toggle', on=True)}\n```",
        step("say", "It is on."), step("say", "Yes."),
    )  # fmt: skip
    user = SimulatedUser(client, "You are Ann.", Budget(), tools=[TOOL], act=act)
    turn = await user.reply("Please turn it on.")
    assert (turn.text, turn.done, len(turn.usage)) == ("It is on.", False, 4)
    assert called == [{"on": True}]
    shown = [message["content"] for message in stub.bodies[3]["messages"]]
    assert "Turns the phone on or off." in shown[0]
    assert "must be of type boolean" in shown[-5]
    assert "There is no tool 'fly'" in shown[-3]
    assert shown[-1] == "toggle gave: the phone is on"
    form = stub.bodies[0]["response_format"]["json_schema"]["schema"]
    assert form["properties"]["action"]["enum"] == ["say", "toggle"]
    await user.reply("Is it on?")
    assert "toggle gave: the phone is on" in [message["content"] for message in stub.bodies[4]["messages"]]


async def test_a_failure_costs_nothing_twice(stub, client):
    called = []
    stub.says(step("toggle", on=True), "no step", "still none", step("say", "It is on."))
    user = SimulatedUser(client, "", Budget(), tools=[TOOL], act=lambda call: called.append(call) or "on")
    with pytest.raises(InfrastructureError, match="wrote no step that can be read"):
        await user.reply("Turn it on.")
    turn = await user.reply("Turn it on.")
    assert (turn.text, len(called), len(turn.usage)) == ("It is on.", 1, 4)


async def test_a_dead_server_and_a_user_who_only_calls_are_infrastructure_failures(stub, client):
    stub.says(step("toggle", on=True))
    called = []
    user = SimulatedUser(client, "", Budget(), tools=[TOOL], act=lambda call: called.append(call) or "on")
    with pytest.raises(InfrastructureError, match=f"made {MOST_CALLS} calls without a word"):
        await user.reply("Turn it on.")
    assert len(called) == MOST_CALLS
    stub.faults += [status(500)]
    with pytest.raises(InfrastructureError, match="status 500"):
        await SimulatedUser(client, "", Budget()).reply("Hello?")


@pytest.mark.parametrize(
    ("cfg", "refused"),
    [
        (RunConfig(policy="http://x/v1", evaluation=EvaluationConfig(endpoint=EndpointConfig(model="gpt-5"))), True),
        (RunConfig(policy="models/GPT-5"), True),
        (RunConfig(model=ModelConfig(path="openai/gpt-5")), True),
        (RunConfig(policy="baseline:golden", model=ModelConfig(path="gpt-5")), False),
        (RunConfig(model=ModelConfig(path="models/gpt-5-mini")), False),
        (RunConfig(), False),
    ],
)
def test_nobody_talks_with_itself(cfg, refused):
    found = user_problems(cfg, "gpt-5")
    assert [("is the policy itself" in sentence) for sentence in found] == [True] * refused
    assert user_problems(cfg, SCRIPTED) == []
    assert len(user_problems(replace(cfg, policy=None), "")) == 1
