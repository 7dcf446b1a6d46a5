"""A model behind an endpoint as the policy, over HTTP: the same loop as a policy in tokens, its own bill and record."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from orchestra_jax.config.schema import ConfigError, EndpointConfig, EvaluationConfig, PricingConfig, RunConfig
from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.prices import POLICY, Price, PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.endpoint import EndpointPolicy, endpoint_pricing, make_endpoint
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.types import ReplayMiss, Status, Trajectory
from tests.rollout.scripted import ANSWER, LIMITS, PRICES, TASK, World, call, make, roll, says
from tests.tools.http_stub import serving

Message = dict[str, Any]


class Model:
    """Answers the n-th request of a conversation with the n-th message; tokens are 100 and 10 a request."""

    def __init__(self, *turns: Message | str | int) -> None:
        self.turns, self.bodies, self.usage = turns, list[dict[str, Any]](), True

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        said = sum(message["role"] == "assistant" for message in body["messages"])
        turn = self.turns[min(said, len(self.turns) - 1)]
        if isinstance(turn, int):
            return web.json_response({"error": {"message": "prompt is too long" if turn == 400 else "no"}}, status=turn)
        message = {"content": turn} if isinstance(turn, str) else dict(turn)
        finish = message.pop("finish", "tool_calls" if message.get("tool_calls") else "stop")
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}
        answer = {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": finish}]}
        return web.json_response(answer | ({"usage": usage} if self.usage else {}))


def calls(*some: tuple[str, str, str], **more: Any) -> Message:
    """A message with calls of (id, tool, JSON of the arguments)."""
    made = [{"id": i, "type": "function", "function": {"name": name, "arguments": text}} for i, name, text in some]
    return {"content": None, "tool_calls": made, **more}


def expert(url: str, **fields: Any) -> Expert:
    return Expert(POLICY, "gpt", f"{url}/v1", **{"retries": 0, "max_tokens": 100, **fields})


@asynccontextmanager
async def endpoint(model: Callable, *, replay: Replay | None = None, **fields: Any):
    async with serving(model) as url:
        policy = EndpointPolicy(expert(url, **fields), PRICES, replay=replay or Replay(None), backoff_s=0.0)
        try:
            yield policy
        finally:
            await policy.close(0.0)


def played(*turns: Message | str | int, limits=LIMITS, **fields: Any) -> tuple[Trajectory, Model, World]:
    """One trajectory of the model in the world of four tools."""
    model, world = Model(*turns), World()

    async def play() -> Trajectory:
        async with endpoint(model, **fields) as policy:
            collector = Collector(world, None, limits, PRICES)
            return (await collector.collect(policy, [TASK], budget=Budget(), temperature=0.0))[0]

    return asyncio.run(play()), model, world


def test_a_conversation_with_tools_and_its_bill():
    two = calls(("a", "echo", '{"x": "hello"}'), ("b", "model", '{"x": "hm"}'), reasoning_content="hm hm")
    found, model, _ = played(two, calls(("c", "nothing", "")), ANSWER)
    assert (found.status, found.answer, found.solved) == (Status.COMPLETED, ANSWER, True)
    assert [c.name for turn in found.turns for c in turn.calls] == ["echo", "model", "nothing"]
    assert found.turns[0].text == "<think>\nhm hm\n</think>\n\n"
    first, second, third = model.bodies
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("gpt", 0.0, 100)
    assert [tool["function"]["name"] for tool in first["tools"]] == [spec.name for spec in TASK.tools]
    assert "Price: $0.25 per call." in first["tools"][0]["function"]["description"]
    assert [message["role"] for message in third["messages"]] == [
        "user", "assistant", "tool", "tool", "assistant", "tool",
    ]  # fmt: skip
    spoken, *heard = second["messages"][1:]
    assert (spoken["content"], [c["id"] for c in spoken["tool_calls"]]) == (None, ["a", "b"])
    assert [(m["tool_call_id"], m["content"]) for m in heard] == [("a", "hello"), ("b", "green")]
    own = [row for row in found.ledger if row.role == "orchestrator"]
    assert [(r.name, r.prompt_tokens, r.cached_tokens, r.completion_tokens) for r in own] == [(POLICY, 100, 40, 10)] * 3
    each = (60 * 1.0 + 40 * 0.1 + 10 * 10.0) / 1e6
    assert [row.cost_usd for row in own] == pytest.approx([each] * 3)
    assert all(row.seconds > 0 for row in own)
    assert found.cost_usd == pytest.approx(3 * each + 0.25 + 0.5)
    assert found.turns[0].spans == ((0, 10),)


SCRIPTS: Mapping[str, Sequence[str]] = {
    "two calls and an answer": [call("echo") + call("model"), ANSWER],
    "an error of a tool, a call that is refused": [call("echo", "error"), call("nothing"), ANSWER],
    "a wrong answer": ["green"],
    "no answer": [""],
    "too many calls": [call("echo") * 2, call("echo") * 2],
    "no end": [call("echo"), call("echo"), call("echo"), call("echo"), ANSWER],
    "a broken call": ['<tool_call>\n{"name": "echo", "arguments": {"x": }}\n</tool_call>'],
    "a tool whose server is away": [call("broken"), ANSWER],
}


@pytest.mark.parametrize("turns", SCRIPTS.values(), ids=SCRIPTS.keys())
async def test_the_loop_is_that_of_a_policy_in_tokens(tokenizer, turns: Sequence[str]):
    """Also where the server leaves the calls in the text."""
    collector, world, _ = make(tokenizer)
    world.failures = 9
    ((theirs,), _) = await roll(collector, says(*turns))
    ours_world = World()
    ours_world.failures = 9
    async with endpoint(Model(*turns)) as policy:
        other = Collector(ours_world, None, LIMITS, PRICES)
        (ours,) = await other.collect(policy, [TASK], budget=Budget())
    for field in ("status", "reason", "answer", "solved"):
        assert getattr(ours, field) == getattr(theirs, field)
    assert [(t.text, t.calls, t.results) for t in ours.turns] == [(t.text, t.calls, t.results) for t in theirs.turns]
    assert (ours_world.calls, ours_world.scored) == (world.calls, world.scored)


@pytest.mark.parametrize(
    ("turn", "status", "reason"),
    [
        (calls(("a", "echo", '{"x": ')), Status.MALFORMED, "is not a valid call"),
        (calls(("a", "echo", "[1]")), Status.MALFORMED, '"arguments" must be an object'),
        (calls(("a", "", "{}")), Status.MALFORMED, '"name" must be a non-empty string'),
        ({"content": "blu", "finish": "length"}, Status.MALFORMED, "the output was cut off"),
        ({"content": "", "finish": "content_filter"}, Status.MALFORMED, "the output ended with content_filter"),
        ({"content": "blu", "finish": "abort"}, Status.FAILED, "aborted the generation"),
        ({"content": "blu", "finish": "insufficient_system_resource"}, Status.FAILED, "aborted the generation"),
        (400, Status.NO_ANSWER, "the context limit of 4000 tokens was reached"),
        (500, Status.FAILED, "answered with status 500"),
        ({"tool_calls": "echo"}, Status.FAILED, "its tool calls are none"),
    ],
)
def test_bad_endings(turn, status, reason):
    found, _, _ = played(turn)
    assert (found.status, found.solved) == (status, False)
    assert reason in found.reason


@pytest.mark.parametrize("finish", ["stop", "end_turn", "eos_token", "stop_sequence"])
def test_words_for_an_end(finish):
    found, _, _ = played({"content": ANSWER, "finish": finish})
    assert (found.status, found.turns[-1].finish_reason) == (Status.COMPLETED, "stop")


def test_a_closing_tag_in_an_argument_is_a_part_of_it():
    said = "<think>so</think> a </tool_call>"
    found, _, _ = played(calls(("a", "echo", json.dumps({"x": said}))), ANSWER)
    assert found.status is Status.COMPLETED
    assert found.turns[0].calls[0].arguments == {"x": said}


def test_the_context_limit_is_that_of_every_policy():
    found, model, _ = played(calls(("a", "echo", '{"x": "a"}')), limits=replace(LIMITS, max_length=105))
    assert (found.status, len(model.bodies)) == (Status.NO_ANSWER, 1)
    assert "context limit of 105 tokens" in found.reason
    _, model, _ = played(calls(("a", "echo", '{"x": "a"}')), ANSWER, limits=replace(LIMITS, max_length=150))
    assert [body["max_tokens"] for body in model.bodies] == [100, 40]


def test_ids_that_are_missing_or_the_same_are_ours_and_outside_text_opens_no_turn():
    turn = calls(("", "echo", '{"x": "<|im_end|>"}'), ("", "echo", '{"x": "b"}'))
    found, model, _ = played(turn, ANSWER)
    spoken, *heard = model.bodies[1]["messages"][1:]
    ids = [c["id"] for c in spoken["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in heard] == ["call-1-0", "call-1-1"]
    assert heard[0]["content"].startswith("< |im_end|>")
    assert found.status is Status.COMPLETED


async def test_an_answer_without_usage_is_counted_by_us():
    model = Model(ANSWER)
    model.usage = False
    async with endpoint(model) as policy:
        (found,) = await Collector(World(), None, LIMITS, PRICES).collect(policy, [TASK], budget=Budget())
    (row,) = found.ledger
    assert row.estimated
    assert row.prompt_tokens > row.completion_tokens > 0


async def test_what_was_answered_is_replayed_with_its_bill_and_without_a_server(tmp_path: Path):
    model, found = Model(calls(("a", "echo", '{"x": "a"}')), ANSWER), []
    for mode in ("replay_or_record", "replay_or_record", "replay"):
        async with endpoint(model, replay=Replay(tmp_path / "calls.db", mode)) as policy:
            collector, budget = Collector(World(), None, LIMITS, PRICES), Budget()
            found += await collector.collect(policy, [TASK], budget=budget, temperature=0.0)
            assert (POLICY in budget.by_name()) == (len(found) == 1)
    assert len(model.bodies) == 2
    assert found[0].ledger == found[1].ledger == found[2].ledger
    async with endpoint(model, replay=Replay(tmp_path / "calls.db", "replay")) as policy:
        with pytest.raises(ReplayMiss):  # another sample of the same request
            await collector.collect(policy, [TASK], budget=Budget(), temperature=1.0)


async def test_its_own_tokens_count_in_the_run_and_not_in_the_allowance_for_calls():
    async with endpoint(Model(calls(("a", "echo", '{"x": "a"}')), ANSWER)) as policy:
        run = Budget()
        collector = Collector(World(), None, LIMITS, PRICES, allowance=Limits(calls=1))
        (found,) = await collector.collect(policy, [TASK], budget=run)
        assert (found.status, run.spent.calls) == (Status.COMPLETED, 3)
        assert run.by_name()[POLICY].usd == pytest.approx(sum(r.cost_usd for r in found.ledger if r.name == POLICY))
        with pytest.raises(BudgetExceeded, match="the run could come to"):
            await collector.collect(policy, [TASK], budget=Budget(Limits(usd=1e-6)))


# --- from a config ----------------------------------------------------------------------------------------------------


def cfg(**fields: Any) -> RunConfig:
    asked = EndpointConfig(**{"model": "gpt-5", **fields})
    return replace(RunConfig(), evaluation=EvaluationConfig(endpoint=asked), pricing=PricingConfig(name="paper"))


def test_its_price_is_an_entry_of_the_list_or_its_own_and_never_that_of_our_policy():
    def price(**fields: Any) -> tuple[float | None, ...]:
        found = endpoint_pricing(cfg(**fields))
        return found.orchestrator_input, found.orchestrator_cached_input, found.orchestrator_output

    own = cfg(input=3.0, cached_input=0.3, output=15.0)
    assert price_book(replace(own, pricing=endpoint_pricing(own))).base.entries[POLICY] == Price(3.0, 0.3, 15.0)
    assert price() == (1.25, None, 10.0)
    assert price(price="gpt-5-mini") == (0.25, None, 2.0)
    assert price(input=3.0, cached_input=0.3, output=15.0) == (3.0, 0.3, 15.0)
    with pytest.raises(ConfigError, match=r"no price for claude: set evaluation.endpoint.price to one of its entries"):
        price(model="claude")


def test_what_the_model_takes_is_known_by_its_name(monkeypatch):
    prices = PriceList("p", "2026-01-01", "made up", {POLICY: Price()})
    monkeypatch.setenv("SOME_KEY", "secret")
    found = make_endpoint(
        cfg(api_key_env="SOME_KEY", extra={"reasoning_effort": "low"}), "http://127.0.0.1:9/v1", prices
    )
    assert (found.expert.temperature, found.expert.max_tokens_field) == (None, "max_completion_tokens")
    assert (found.expert.name, json.dumps(dict(found.expert.extra))) == (POLICY, '{"reasoning_effort": "low"}')
    for fields, words in (
        ({"api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
        ({"extra": {"stream": True}}, "the endpoint http"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_endpoint(cfg(**fields), "http://127.0.0.1:9/v1", prices)
