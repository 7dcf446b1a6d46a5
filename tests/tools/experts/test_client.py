"""Experts over real HTTP: every attempt counted, every failure one sentence, and nothing unpaid or paid twice."""

import asyncio
import math
import sys
import time

import pytest

from orchestra_jax.io.http_json import retry_after
from orchestra_jax.money import paid
from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits
from orchestra_jax.money.limits import Limiter
from orchestra_jax.money.paid import MissingKey
from orchestra_jax.money.prices import MissingPrice
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.experts.client import ExpertClient, expert_clients
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.types import InfrastructureError, ReplayMiss
from tests.tools import openai_stub
from tests.tools.openai_stub import PRICES, StubOpenAI, status

HANGS_S = 60  # what takes so long will not come
QUESTION = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "[a] How far is the moon?"}]


def billed(stub: StubOpenAI) -> tuple[float, int, int]:
    return math.fsum(b.usd for b in stub.bills), sum(b.prompt + b.completion for b in stub.bills), len(stub.bills)


def spent(budget: Budget) -> tuple[float, int, int]:
    assert budget.reserved.calls == 0
    return budget.spent.usd, budget.spent.tokens, budget.spent.calls


async def until(condition) -> None:
    async with asyncio.timeout(HANGS_S):
        while not condition():  # noqa: ASYNC110  the stub has no events
            await asyncio.sleep(0.001)


async def test_an_answer_its_row_and_the_request(stub, make, monkeypatch):
    monkeypatch.setenv("STUB_KEY", "secret-1")
    stub.reply = lambda body: "About 384000 km."
    client = make(api_key_env="STUB_KEY", temperature=0.5, extra={"top_k": 3})
    budget = Budget()
    answer = await client.chat(QUESTION, role="judge", budget=budget)
    assert (answer.text, answer.finish_reason) == ("About 384000 km.", "stop")
    (row,) = answer.usage
    assert (row.name, row.role, row.price_list, row.estimated) == ("small", "judge", "stub", False)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (21, 7, 3)
    assert row.cost_usd == (14 * 0.5 + 7 * 0.25 + 3 * 2.0) / 1e6
    assert row.seconds > 0
    assert spent(budget) == billed(stub) == (row.cost_usd, 24, 1)
    assert stub.keys == ["secret-1"]
    assert stub.bodies == [{"model": "small", "messages": QUESTION, "max_tokens": 50, "temperature": 0.5, "top_k": 3}]


async def test_fields_for_reasoning_models(stub, make):
    client = make(temperature=None, max_tokens_field="max_completion_tokens", extra={"reasoning_effort": "low"})
    await client.chat(QUESTION, budget=Budget())
    assert stub.bodies == [
        {"model": "small", "messages": QUESTION, "max_completion_tokens": 50, "reasoning_effort": "low"}
    ]


@pytest.mark.parametrize("code", [408, 429, 500, 501, 503])
async def test_refused_requests_are_made_again_and_cost_nothing(stub, make, code):
    stub.faults.extend([status(code), status(code)])
    budget = Budget()
    answer = await make().chat(QUESTION, budget=budget)
    assert len(stub.bodies) == 3
    assert len(answer.usage) == 1
    assert spent(budget) == billed(stub)


async def test_the_last_retry_ends_in_one_sentence(stub, make):
    stub.faults.extend([status(503)] * 3)
    budget = Budget()
    with pytest.raises(InfrastructureError) as caught:
        await make(retries=2).chat(QUESTION, budget=budget)
    assert str(caught.value) == f"small at {stub.url} answered with status 503: something broke."
    assert caught.value.__context__ is None  # the client's own error holds the request and its key
    assert spent(budget) == (0.0, 0, 0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (status(404, message="no such model"), "status 404: no such model"),
        (status(429, error="insufficient_quota"), "status 429"),
        (status(400, message="a bad field"), "status 400"),
        (status(429, retry_after="86400"), r"asks to wait 86400 s, which is too long"),
    ],
)
async def test_what_no_retry_can_mend_is_not_tried_again(stub, make, fault, message):
    stub.faults.append(fault)
    with pytest.raises(InfrastructureError, match=message):
        await make().chat(QUESTION, budget=Budget())
    assert len(stub.bodies) == 1


async def test_a_wrong_key_is_not_repeated(stub, make, monkeypatch):
    monkeypatch.setenv("STUB_KEY", "secret-2")
    stub.accepted = {"secret-1"}
    with pytest.raises(InfrastructureError) as caught:
        await make(api_key_env="STUB_KEY").chat(QUESTION, budget=Budget())
    assert "status 401: Incorrect API key provided: ***; check the key in STUB_KEY." in str(caught.value)


@pytest.mark.parametrize("fault", ["RESET_BEFORE", "RESET_AFTER", "TRUNCATED"])
async def test_a_lost_answer_is_charged_at_its_worst_and_asked_for_again(stub, make, fault):
    stub.faults.append(getattr(openai_stub, fault))
    budget = Budget()
    answer = await make().chat(QUESTION, budget=budget)
    lost, row = answer.usage
    assert (lost.estimated, row.estimated) == (True, False)
    assert lost.completion_tokens == 50
    assert 0 < lost.seconds < HANGS_S  # its own, and not those of the worst case
    assert row.cost_usd == stub.bills[-1].usd
    assert lost.cost_usd >= stub.bills[0].usd
    assert spent(budget) == (lost.cost_usd + row.cost_usd, *spent(budget)[1:2], 2)


async def test_a_server_that_is_not_there_bills_nothing(make, stub):
    client = make(base_url="http://127.0.0.1:9/v1", retries=1)
    budget = Budget()
    with pytest.raises(InfrastructureError, match=r"cannot be reached \(ConnectError\)\.$"):
        await client.chat(QUESTION, budget=budget)
    assert spent(budget) == (0.0, 0, 0)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers, seconds):
    assert retry_after(headers) == seconds


async def test_retry_after_holds_for_everybody_at_the_provider(stub, make):
    paused = asyncio.Event()

    class Watched(Limiter):
        def pause(self, seconds: float) -> None:
            super().pause(seconds)
            paused.set()

    limiter = Watched(8)
    first, second = make(limiter=limiter), make("big", limiter=limiter)
    stub.faults.append(status(429, "0.3"))
    waiting = asyncio.create_task(first.chat(QUESTION, budget=Budget()))
    await asyncio.wait_for(paused.wait(), HANGS_S)
    await asyncio.gather(waiting, second.chat(QUESTION, budget=Budget()))
    refused, *later = stub.times
    assert len(later) == 2
    assert min(later) - refused >= 0.3


async def test_concurrency_and_rate_are_shared(stub):
    experts = [Expert(name, name, stub.url + "/" * i, concurrency=3) for i, name in enumerate(("small", "big"))]
    clients = expert_clients(experts, PRICES)
    stub.chaos = lambda number: openai_stub.slow(0.01)
    await asyncio.gather(*(client.chat(QUESTION, budget=Budget()) for client in clients.values() for _ in range(10)))
    assert stub.most == 3
    for client in clients.values():
        await client.close()


async def test_requests_per_minute(stub, make):
    client, start = make(requests_per_minute=60 / 0.05), time.monotonic()
    await asyncio.gather(*(client.chat(QUESTION, budget=Budget()) for _ in range(5)))
    assert all(at - start >= number * 0.05 for number, at in enumerate(stub.times))


async def test_a_budget_stops_the_call_before_it_is_sent(stub, make):
    run = Budget(Limits(usd=1.0), name="run")
    budget = Budget(Limits(calls=0), name="trajectory", parent=run)
    with pytest.raises(BudgetExceeded) as caught:
        await make().chat(QUESTION, budget=budget)
    assert caught.value.scope == "trajectory"
    assert stub.bodies == []
    assert spent(run) == (0.0, 0, 0)


async def test_who_gives_up_still_pays(stub, make):
    stub.gate.clear()
    client = make()
    budget = Budget()
    call = asyncio.create_task(client.chat(QUESTION, budget=budget))
    await until(lambda: stub.bills)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert budget.spent.calls == 0
    assert budget.reserved.calls == 1
    stub.gate.set()
    await client.close()
    assert spent(budget) == billed(stub)


async def test_who_gives_up_in_the_queue_pays_nothing(stub, make):
    stub.gate.clear()
    client = make(concurrency=1)
    budget = Budget()
    first = asyncio.create_task(client.chat(QUESTION, budget=budget))
    await until(lambda: stub.bills)
    second = asyncio.create_task(client.chat(QUESTION, budget=budget))
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.wait([second])
    stub.gate.set()
    await first
    await client.chat(QUESTION, budget=budget)  # the place in the queue was given back
    assert spent(budget) == billed(stub)
    assert len(stub.bodies) == 2


async def test_a_late_answer_is_paid_and_kept(stub, make, tmp_path):
    replay = Replay(tmp_path / "calls.db", "replay_or_record")
    stub.gate.clear()
    client = make(timeout_s=0.05, replay=replay)
    budget = Budget()
    with pytest.raises(InfrastructureError, match=r"did not answer within 0\.05 s; raise its timeout_s"):
        await client.chat(QUESTION, budget=budget)
    await until(lambda: stub.bills)
    stub.gate.set()
    await client.close()
    assert spent(budget) == billed(stub)
    found = await make(replay=replay).chat(QUESTION, budget=budget)
    assert found.text == openai_stub.some_words(stub.bodies[0])
    assert len(stub.bodies) == 1  # a time-out does not ask twice: both would be billed
    replay.close()


async def test_close_cuts_what_never_ends_and_charges_its_worst(stub, make, caplog):
    stub.gate.clear()
    client = make(timeout_s=0.05)
    budget = Budget()
    with pytest.raises(InfrastructureError):
        await client.chat(QUESTION, budget=budget)
    await until(lambda: stub.bills)
    await client.close(patience_s=0.05)
    assert "Waits for bills of small (requests under way: 1), 0.05 s at most." in caplog.text
    assert spent(budget)[0] >= billed(stub)[0] > 0
    with pytest.raises(InfrastructureError, match="closed"):
        await client.chat(QUESTION, budget=budget)


async def test_a_request_that_never_ends_is_lost(stub, make, monkeypatch):
    monkeypatch.setattr(paid, "GRACE_S", 0.0)
    stub.gate.clear()
    client = make(timeout_s=0.1, retries=0)
    budget = Budget(Limits(calls=1))
    with pytest.raises(InfrastructureError, match="did not answer within"):
        await client.chat(QUESTION, budget=budget)
    await until(lambda: budget.spent.calls)
    with pytest.raises(BudgetExceeded, match=r"; the last: small did not answer within 0\.1 s\.$"):
        await client.chat(QUESTION, budget=budget)
    await client.close()
    assert budget.spent.usd >= billed(stub)[0]
    assert (budget.spent.calls, budget.reserved.calls) == (1, 0)


async def test_a_context_that_is_smaller_than_said_is_found(stub, make):
    stub.context = 400
    long = [QUESTION[0], {"role": "user", "content": "[a] START " + "very long " * 300 + "END?"}]
    await make().chat(long, budget=Budget())
    assert len(stub.bodies) > 1
    sent = stub.bodies[-1]["messages"]
    assert sent[0] == QUESTION[0]
    assert sent[1]["content"].startswith("[a] START")
    assert sent[1]["content"].endswith("END?")
    stub.context = 10
    with pytest.raises(InfrastructureError, match=r"maximum context length is 10 tokens; lower context_tokens=32768"):
        await make().chat(QUESTION, budget=Budget())


@pytest.mark.parametrize(
    "said",
    [
        "the request exceeds the available context size. try increasing the context size",  # llama.cpp
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",  # Anthropic
        "The input token count (40000) exceeds the maximum number of tokens allowed (32768).",  # Gemini
        "This model's maximum prompt length is 131072 but the request contains 137000 tokens.",  # xAI
        "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens",  # TGI
    ],
)
async def test_words_of_servers_for_a_prompt_that_is_too_long(stub, make, said):
    stub.faults.append(status(400, message=said))
    long = [{"role": "user", "content": "[a] START " + "very long " * 300 + "END?"}]
    await make(retries=1).chat(long, budget=Budget())
    first, second = (len(body["messages"][0]["content"]) for body in stub.bodies)
    assert second < first


async def test_a_recorded_call_needs_neither_key_nor_server(stub, make, tmp_path, monkeypatch):
    recorder = Replay(tmp_path / "calls.db", "record")
    budget = Budget()
    answers = [await make(replay=recorder).chat(QUESTION, sample=sample, budget=budget) for sample in (0, 1)]
    assert spent(budget) == billed(stub)
    recorder.close()
    monkeypatch.setitem(sys.modules, "openai", None)
    replay = Replay(tmp_path / "calls.db", "replay")
    offline = make(replay=replay, base_url="http://127.0.0.1:9/v1", api_key_env="NO_SUCH_KEY")
    budget = Budget(Limits(usd=0.0, calls=0))
    assert [await offline.chat(QUESTION, sample=sample, budget=budget) for sample in (0, 1)] == answers
    for other in ({"sample": 2}, {"role": "judge"}, {"response_format": {"type": "json_object"}}):
        with pytest.raises(ReplayMiss):
            await offline.chat(QUESTION, **other, budget=budget)
    replay.close()
    assert len(stub.bodies) == 2


async def test_a_missing_key_or_package_is_one_sentence_and_costs_nothing(stub, make, monkeypatch):
    monkeypatch.delenv("STUB_KEY", raising=False)
    client = make(api_key_env="STUB_KEY")
    budget = Budget()
    for call in (client.chat(QUESTION, budget=budget), asyncio.to_thread(client.check)):
        with pytest.raises(MissingKey) as caught:
            await call
    assert str(caught.value) == (
        "Expert 'small' needs a key; set the environment variable STUB_KEY, or replay calls that were recorded."
    )
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ImportError, match=r"pip install orchestra-jax\[tools\]\.$"):
        await make().chat(QUESTION, budget=budget)
    assert spent(budget) == (0.0, 0, 0)


# What would undo a budget, a record or the reading of the answer.
RESERVED = "max_tokens max_completion_tokens n stream sample role expert model messages temperature stop".split()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({"base_url": url}, "must be a URL") for url in ("api.openai.com", "http://HOST:PORT/v1", "http://[/v1")),
        ({"base_url": "https://me:secret@host/v1"}, "keys go into api_key_env"),
        ({"base_url": "https://host/v1?key=secret"}, "keys go into api_key_env"),
        ({"max_tokens": 40000}, "must leave room"),
        ({"timeout_s": 0}, "timeout_s > 0"),
        ({"timeout_s": math.nan}, "timeout_s > 0"),
        ({"timeout_s": math.inf}, "timeout_s > 0"),
        *(({"extra": {key: 3600}}, f"extra of expert 'small' may not set {key}") for key in RESERVED),
        ({"extra": {"top_p": math.inf}}, "extra of expert 'small' must be JSON"),
        ({"extra": {"logit_bias": object()}}, "extra of expert 'small' must be JSON"),
        ({"extra": ["max_tokens"]}, "extra of expert 'small' must be JSON"),
        ({"max_tokens_field": "sample"}, "max_tokens_field of expert 'small' is max_tokens or max_completion_tokens"),
    ],
)
def test_an_expert_that_makes_no_sense(fields, message):
    with pytest.raises(ValueError, match=message) as caught:
        Expert(**{"name": "small", "model": "m", "base_url": "http://h/v1"} | fields)
    assert "secret" not in str(caught.value)


def test_experts_that_do_not_go_together():
    small, big = Expert("small", "s", "http://h/v1"), Expert("big", "b", "http://h/v1/", concurrency=3)
    with pytest.raises(ValueError, match=r"share its limits.*'big' differs"):
        expert_clients([small, big], PRICES)
    with pytest.raises(ValueError, match="Two experts are named 'small'"):
        expert_clients([small, small], PRICES)
    with pytest.raises(ValueError, match="a question needs 208 tokens beside the reply"):
        expert_clients([Expert("small", "s", "http://h/v1", context_tokens=257, max_tokens=50)], PRICES)
    with pytest.raises(MissingPrice):
        expert_clients([Expert("unpriced", "u", "http://h/v1")], PRICES)
    with pytest.raises(FileNotFoundError, match="No tokenizer"):
        ExpertClient(Expert("small", "s", "http://h/v1", tokenizer="/nowhere"), PRICES)
