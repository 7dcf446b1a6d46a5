"""What an answer of an expert is booked at: its usage, our own count, another tier, a bill above the worst case."""

import math

import pytest

from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.tools.experts.endpoint import read_usage
from tests.tools import openai_stub
from tests.tools.experts.test_client import QUESTION, spent
from tests.tools.openai_stub import PRICES

SOUND = {"prompt_tokens": 10, "completion_tokens": 5}


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"total_tokens": 15}, (10, 0, 5)),
        ({"total_tokens": 35}, (10, 0, 25)),  # reasoning left out
        ({"completion_tokens_details": {"reasoning_tokens": 20}}, (10, 0, 25)),
        ({"completion_tokens": 25, "completion_tokens_details": {"reasoning_tokens": 20}}, (10, 0, 25)),
        ({"completion_tokens_details": {"reasoning_tokens": "x"}}, (10, 0, 5)),
        ({"prompt_tokens_details": {"cached_tokens": 4}}, (10, 4, 5)),
        ({"prompt_tokens_details": {"cached_tokens": 40}}, (10, 10, 5)),
        ({"prompt_tokens_details": None}, (10, 0, 5)),
        ({"total_tokens": 1e308}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens_details": [1]}, (10, 0, 5, True)),
        ({"prompt_tokens_details": {"cached_tokens": "x"}}, (10, 0, 5, True)),
        *(({"prompt_tokens": odd}, None) for odd in (-1, "many", 1e308, None, 10**30)),
        *(({"completion_tokens": odd}, None) for odd in (math.nan, math.inf, 1e308, 10**20, -5, 2.5)),
        *(({"completion_tokens": odd}, None) for odd in ("many", True, [1], {})),
    ],
)
def test_read_usage(fields, tokens):
    found = read_usage({**SOUND, **fields})
    assert (found and tuple(found.values())) == (tokens and (*tokens, False)[:4])


@pytest.mark.parametrize("usage", [{"prompt_tokens": 10}, None, [1]])
def test_what_is_no_usage(usage):
    assert read_usage(usage) is None


async def test_cached_tokens_that_make_no_sense_are_paid_in_full_and_the_rest_is_the_servers(stub, make, caplog):
    bad = {"prompt_tokens_details": {"cached_tokens": -1}}
    stub.faults += [
        openai_stub.changed(lambda answer, more=more: answer["usage"].update(more))
        for more in (bad, {**bad, "prompt_tokens": 10**6})
    ]
    budget, client = Budget(), make()
    (row,) = (await client.chat(QUESTION, budget=budget)).usage
    bill = stub.bills[0]
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.estimated) == (
        bill.prompt, 0, bill.completion, True,
    )  # fmt: skip
    whole = PRICES.cost("small", prompt_tokens=bill.prompt, completion_tokens=bill.completion)
    assert spent(budget)[0] == row.cost_usd == whole
    await client.chat(QUESTION, budget=budget, sample=1)
    assert "where its worst case was" in caplog.text


@pytest.mark.parametrize(
    ("asked", "taken", "told"),
    [(None, "priority", 1), ("flex", "default", 1), ("flex", "flex", 0), (None, "on_demand", 0), ("flex", None, 0)],
)
async def test_another_tier_than_the_one_asked_for_is_told_once(stub, make, caplog, asked, taken, told):
    stub.faults += [openai_stub.changed(lambda answer: answer.update(service_tier=taken))] * 2
    client = make(extra={"service_tier": asked} if asked else {})
    for sample in range(2):
        await client.chat(QUESTION, budget=Budget(), sample=sample)
    assert caplog.text.count("set the tier") == told


async def test_usage_that_is_not_given_is_estimated_and_flagged(stub, make):
    stub.faults.append(openai_stub.NO_USAGE)
    stub.reply = lambda body: "x" * 31
    budget = Budget()
    (row,) = (await make().chat(QUESTION, budget=budget)).usage
    assert row.estimated
    assert row.completion_tokens == 11
    assert row.prompt_tokens == 64 + 2 * 8 + 3 + 8  # template, then a third of the characters
    assert spent(budget) == (row.cost_usd, row.prompt_tokens + 11, 1)


@pytest.mark.parametrize(("thought", "tokens"), [("y" * 30, 21), ("y" * 999, 50), (["y"], 11)])
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
async def test_reasoning_is_counted_where_usage_is_not_given(stub, make, key, thought, tokens):
    def silent(answer):
        answer.pop("usage")
        answer["choices"][0]["message"][key] = thought

    stub.faults.append(openai_stub.changed(silent))
    stub.reply = lambda body: "x" * 31
    (row,) = (await make().chat(QUESTION, budget=Budget())).usage
    assert (row.estimated, row.completion_tokens) == (True, tokens)  # of at most max_tokens


async def test_a_bill_above_the_worst_case_is_still_the_bill(stub, make, caplog):
    stub.faults.append(openai_stub.changed(lambda answer: answer["usage"].update(completion_tokens=10**6)))
    budget = Budget(Limits(usd=1.0))
    (row,) = (await make().chat(QUESTION, budget=budget)).usage
    assert row.completion_tokens == 10**6
    assert budget.spent.usd == row.cost_usd
    assert "where its worst case was" in caplog.text


async def test_more_output_than_was_asked_for_is_booked_and_told_once(stub, make, caplog):
    """The worst case of the prompt has room to spare, so that the whole bill stays below that of the call."""
    most, more = (
        openai_stub.changed(lambda answer, n=n: answer["usage"].update(prompt_tokens=1, completion_tokens=n))
        for n in (50, 51)
    )
    stub.faults += [most, more, more]
    client, budget = make(), Budget(Limits(usd=1.0))
    await client.chat(QUESTION, budget=budget, sample=0)
    assert "output tokens" not in caplog.text
    rows = [(await client.chat(QUESTION, budget=budget, sample=number)).usage[0] for number in (1, 2)]
    assert [row.completion_tokens for row in rows] == [51, 51]
    assert budget.spent.usd > sum(row.cost_usd for row in rows)
    assert caplog.text.count("small billed 51 output tokens, and 50 were asked for at most") == 1
    assert "where its worst case was" not in caplog.text
