"""Servers of experts that write nonsense: nothing ends a run, leaks a reservation or is recorded."""

import asyncio
import json
import math
from functools import partial

import pytest
from aiohttp import web

from orchestra_jax.money import records
from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits
from orchestra_jax.money.limits import Limiter
from orchestra_jax.money.paid import Lost, PaidCalls
from orchestra_jax.money.replay import Recorded, Replay
from orchestra_jax.tools.experts import endpoint
from orchestra_jax.types import InfrastructureError, Usage
from tests.tools.openai_stub import PRICES, After, Before, changed, failure, status

HANGS_S = 60
QUESTION = [{"role": "user", "content": "[a] How far?"}]


@pytest.fixture
def make(make):
    return partial(make, retries=0)


def raw(change) -> After:
    """The answer's text as `change` makes it of the sound one, as bytes."""

    async def act(request: web.Request, answer) -> web.Response:
        return web.Response(body=change(json.dumps(answer)), content_type="application/json")

    return After(act)


def content(value) -> After:
    return changed(lambda answer: answer["choices"][0]["message"].update(content=value))


def usage(text: str) -> After:
    return raw(lambda sound: sound.replace('"completion_tokens": ', f'"completion_tokens": {text}, "was": ').encode())


async def ask(client, budget, **options):
    """The completion, or what was raised instead; the next call does not hang behind a reservation."""
    async with asyncio.timeout(HANGS_S):
        try:
            return await client.chat(QUESTION, budget=budget, **options)
        finally:
            assert budget.reserved.calls == 0
            await client.chat(QUESTION, budget=budget, sample=99)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("\ud83d", "\ufffd"),
        ("cut \ud83d\ude00 \ud83d", "cut \U0001f600 \ufffd"),
        (None, ""),
        ("\x00", "\x00"),
        ([{"type": "text", "text": "hi"}], "hi"),
        ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "h"}, {"type": "text", "text": "i"}], "hi"),
    ],
)
async def test_texts_are_made_valid(stub, make, tmp_path, said, text):
    replay = Replay(tmp_path / "calls.db", "replay_or_record")
    stub.faults.append(content(said))
    client, budget = make(replay=replay), Budget(Limits(usd=1.0))
    found = await ask(client, budget)
    assert found.text == text
    assert (await client.chat(QUESTION, budget=budget)).text == text  # recorded
    assert len(stub.bills) == 2
    replay.close()


UNREADABLE = {
    "a list": content(["hi"]),
    "parts without text": content([{"type": "image_url", "image_url": {"url": "x"}}]),
    "a part whose text is none": content([{"type": "text", "text": {"hi": 1}}]),
    "a number": content(7),
    "an object": content({"text": "hi"}),
    "no choices": changed(lambda answer: answer.update(choices=[])),
    "choices that are text": changed(lambda answer: answer.update(choices="abc")),
    "a message that is text": changed(lambda answer: answer["choices"][0].update(message="abc")),
    "a list for an answer": raw(lambda sound: b"[1, 2]"),
    "nested": raw(lambda sound: b'{"choices":' + b"[" * 100_000),
    "nested and closed": raw(lambda sound: (sound[:-1] + ', "x": ' + "[" * 9000 + "]" * 9000 + "}").encode()),
    "no JSON": raw(lambda sound: b"<html>"),
    "1e999": usage("1e999"),
    "400 digits": usage("9" * 400),
    "NaN": usage("NaN"),
    "bad gzip": After(lambda request, answer: _encoded(b"no gzip")),
}


async def _encoded(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"Content-Encoding": "gzip"})


@pytest.mark.parametrize("fault", UNREADABLE.values(), ids=UNREADABLE)
async def test_an_answer_that_cannot_be_read_is_charged_at_its_worst_and_not_kept(stub, make, tmp_path, fault):
    replay = Replay(tmp_path / "calls.db", "replay_or_record")
    client, budget = make(replay=replay), Budget(Limits(usd=1.0))
    stub.faults.append(fault)
    with pytest.raises(InfrastructureError) as caught:
        await ask(client, budget)
    assert len(str(caught.value)) < 400
    assert budget.spent.calls == 2
    worst = PRICES.cost("small", prompt_tokens=64 + 8 + len("[a] How far?"), completion_tokens=50)
    assert budget.spent.usd == pytest.approx(worst + stub.bills[-1].usd)
    assert records.stats(tmp_path / "calls.db")["chat"][0] == 1  # the sound one
    stub.faults.append(fault)
    again = make(retries=1)
    rows = (await again.chat(QUESTION, budget=budget)).usage
    assert [row.estimated for row in rows] == [True, False]
    replay.close()


async def test_a_web_page_is_the_answer_of_no_model_and_costs_nothing(stub, make):
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><html>Welcome</html>", content_type="text/html")

    stub.faults.append(Before(page))
    budget = Budget(Limits(usd=1.0))
    with pytest.raises(InfrastructureError, match=r"answered with a web page; correct base_url\.$"):
        await make(retries=4).chat(QUESTION, budget=budget)
    assert (len(stub.bodies), budget.spent.calls, budget.reserved.calls) == (1, 0, 0)


async def test_a_budget_that_unreadable_answers_have_used_up_says_so(stub, make):
    stub.faults += [UNREADABLE["no JSON"]] * 9
    client, budget = make(retries=9), Budget(Limits(usd=0.0005))
    worst = PRICES.cost("small", prompt_tokens=64 + 8 + len("[a] How far?"), completion_tokens=50)
    with pytest.raises(BudgetExceeded) as caught:
        await client.chat(QUESTION, budget=budget)
    assert (budget.spent.calls, caught.value.scope) == (len(stub.bills), "run") == (3, "run")
    told = (
        f"go on. 3 requests without a usable answer were charged at their worst case, ${3 * worst:.6g}; the last: The "
    )
    assert told in str(caught.value)
    assert str(caught.value).endswith(" cannot be read: it is not JSON: Expecting value: line 1 column 1 (char 0).")


@pytest.mark.parametrize("word", ["abort", "error", "insufficient_system_resource"])
async def test_an_answer_that_the_server_aborted_is_billed_asked_for_again_and_not_kept(stub, make, tmp_path, word):
    replay = Replay(tmp_path / "calls.db", "replay_or_record")
    client, budget = make(replay=replay, retries=1), Budget(Limits(usd=1.0))
    aborted = changed(lambda answer: answer["choices"][0].update(finish_reason=word))
    stub.faults += [aborted, aborted]
    with pytest.raises(InfrastructureError, match=rf"aborted the generation \({word}\)\."):
        await client.chat(QUESTION, budget=budget)
    stub.faults.append(aborted)
    completion = await client.chat(QUESTION, budget=budget)
    assert completion.finish_reason == "stop"
    assert [row.estimated for row in completion.usage] == [False, False]
    assert len(stub.bills) == budget.spent.calls == 4
    assert budget.spent.usd == pytest.approx(sum(bill.usd for bill in stub.bills))
    assert records.stats(tmp_path / "calls.db")["chat"][0] == 1
    replay.close()


@pytest.mark.parametrize("error", [{"code": 429, "message": "Rate\nlimited"}, "Rate limited"])
async def test_an_error_with_a_status_of_success_is_told(stub, make, error):
    stub.faults.append(raw(lambda sound: json.dumps({"error": error}).encode()))
    with pytest.raises(InfrastructureError, match=r"cannot be read: it is an error, 'Rate limited'\.$"):
        await ask(make(), Budget(Limits(usd=1.0)))


@pytest.mark.parametrize("given", [(0, 0), (12, 0)])
async def test_an_answer_is_not_free_because_its_usage_says_so(stub, make, given):
    tokens = dict(zip(("prompt_tokens", "completion_tokens"), given, strict=True))
    stub.faults.append(changed(lambda answer: answer.update(usage=tokens)))
    budget = Budget(Limits(usd=1.0))
    (row,) = (await ask(make(), budget)).usage
    assert row.estimated
    assert min(row.prompt_tokens, row.completion_tokens, row.cost_usd) > 0


async def test_thoughts_are_not_free_because_the_usage_says_so(stub, make):
    def thinks(answer):
        answer["choices"][0]["message"].update(content=None, reasoning_content="y" * 30)
        answer["usage"] = {"prompt_tokens": 12, "completion_tokens": 0}

    stub.faults.append(changed(thinks))
    (row,) = (await ask(make(), Budget())).usage
    assert (row.estimated, row.completion_tokens) == (True, 10)


async def test_an_answer_that_hidden_thoughts_have_used_up_is_charged_with_all_its_tokens(stub, make):
    def silent(answer):
        answer.pop("usage")
        answer["choices"][0].update(message={"content": ""}, finish_reason="length")

    stub.faults.append(changed(silent))
    (row,) = (await ask(make(), Budget())).usage
    assert (row.estimated, row.completion_tokens) == (True, 50)


async def test_an_answer_without_an_end_is_lost(stub, make, monkeypatch):
    monkeypatch.setattr(endpoint, "MOST_BYTES", 10_000)
    stub.faults.extend([raw(lambda sound: b" " * 20_000 + sound.encode()), Before(_long_refusal)])
    client, budget = make(), Budget()
    with pytest.raises(InfrastructureError, match="more than 10000 bytes"):
        await client.chat(QUESTION, budget=budget)
    assert (budget.spent.calls, budget.reserved.calls) == (1, 0)
    with pytest.raises(InfrastructureError):
        await client.chat(QUESTION, budget=budget)


async def _long_refusal(request: web.Request) -> web.Response:
    return failure(400, "x" * 20_000)


@pytest.mark.parametrize(
    "fault",
    [
        status(429, "Fri, 31 Dec 9999 23:59:59 -2359"),  # beyond the last year that a date has
        status(503, "Fri, 31 Dec 9999 23:59:59 GMT"),
        status(503, "1e300"),
        Before(lambda request: _body(b"[" * 50_000)),
        Before(lambda request: _body(b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}")),
        Before(lambda request: _body(json.dumps({"error": {"message": ["\ud83d"], "code": {"a": 1}}}).encode())),
        Before(lambda request: _body(b'{"error": {"message": "\\ud83d"}}')),
        Before(lambda request: _body(b'{"error": {"message": "\\u001b[2J\\u001b[31mPaid.\\u0007\\u009b1m"}}')),
    ],
)
async def test_refusals_beyond_all_sense_are_one_sentence(stub, make, fault):
    stub.faults.append(fault)
    budget = Budget(Limits(usd=1.0))
    with pytest.raises(InfrastructureError) as caught:
        await make().chat(QUESTION, budget=budget)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    assert (budget.spent.calls, budget.reserved.calls) == (0, 0)


async def _body(body: bytes) -> web.Response:
    return web.Response(status=400, body=body, content_type="application/json")


@pytest.mark.parametrize(
    ("code", "headers"), [(503, {}), (429, {"Retry-After": "0"}), (404, {}), (500, {"Content-Encoding": "gzip"})]
)
async def test_a_refusal_whose_text_breaks_off_costs_nothing(stub, make, code, headers):
    async def broken(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=code, headers={"Content-Length": "5000", **headers})
        await answer.prepare(request)
        await answer.write(b'{"error": {"mess')
        request.transport.close()
        return answer

    stub.faults.append(Before(broken))
    budget = Budget(Limits(usd=1.0))
    with pytest.raises(InfrastructureError, match=rf"answered with status {code}: "):
        await make().chat(QUESTION, budget=budget)
    assert (budget.spent.calls, budget.reserved.calls) == (0, 0)


async def test_half_a_pair_in_a_question_is_sent_as_a_mark(stub, make):
    await make().chat([{"role": "user", "content": "cut \ud83d"}], budget=Budget())
    assert stub.bodies[0]["messages"] == [{"role": "user", "content": "cut \ufffd"}]


@pytest.mark.parametrize("value", [{"text": ["a"], "finish_reason": "stop"}, {"finish_reason": "stop"}, "text", None])
async def test_a_record_of_such_an_answer_is_refused(make, tmp_path, value):
    replay = Replay(tmp_path / "calls.db", "replay_or_record")
    client = make(replay=replay)

    async def earlier() -> Recorded:
        return Recorded(value, (Usage("small"),))

    request = {"expert": "small", "role": "tool", "sample": 0, "model": "small", "messages": QUESTION}
    await replay.call("chat", {**request, "max_tokens": 50, "temperature": 0.0}, earlier)
    with pytest.raises(InfrastructureError, match="recorded"):
        await client.chat(QUESTION, budget=Budget())
    replay.close()


@pytest.mark.parametrize("bill", [{"cost_usd": math.inf}, {"cost_usd": math.nan}, {"seconds": math.inf}])
async def test_a_bill_that_is_no_number_is_charged_at_the_worst_case(bill):
    calls, budget = PaidCalls(Limiter(1), replay=None, timeout_s=9.0, retries=0), Budget(Limits(usd=10.0))
    worst = Usage("small", cost_usd=2.0, seconds=1.0)

    async def lies() -> Recorded | Lost:
        return Recorded("text", (Usage("small", **bill),))

    for calls_made in (1, 2):
        with pytest.raises(InfrastructureError):
            await asyncio.wait_for(calls.call("k", {}, worst, lies, budget=budget), HANGS_S)
        assert (budget.spent.usd, budget.reserved.calls) == (2.0 * calls_made, 0)


async def test_a_budget_that_is_used_up_names_what_was_charged_at_its_worst_and_nothing_else():
    calls = PaidCalls(Limiter(1), replay=None, timeout_s=9.0, retries=9, backoff_s=0.0)
    ends = iter([Lost("Aborted.", Usage("small", cost_usd=0.01)), *[Lost(f"It broke, {i}.") for i in range(2)]])

    async def send() -> Lost:
        return next(ends)

    said = []
    for limit in (0.05, 0.25):
        with pytest.raises(BudgetExceeded) as caught:
            await calls.call("k", {}, Usage("small", cost_usd=0.1), send, budget=Budget(Limits(usd=limit)))
        said.append(str(caught.value))
    assert said[0].endswith("; raise it to go on.")
    told = "2 requests without a usable answer were charged at their worst case, $0.2; the last: It broke, 1."
    assert said[1].endswith(f"; raise it to go on. {told}")
    assert [row.cost_usd for row in caught.value.usage] == [0.01, 0.1, 0.1]
