"""Instances of a catalogue: seeded subsets, aliases and prices; the released form; whose prices the rows have."""

import json
from collections.abc import Mapping
from dataclasses import replace
from string import ascii_uppercase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.config.tools import MenuRule
from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits
from orchestra_jax.money.price_book import PriceBook, PriceDraw, scaled
from orchestra_jax.money.prices import MissingPrice, Price, PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.money.reservations import acquire
from orchestra_jax.tools import schema
from orchestra_jax.tools.answer_tool import ANSWER_TOOL
from orchestra_jax.tools.catalogue import Catalogue, Entry, Instance, price_words
from orchestra_jax.tools.entries import OUT_OF_BUDGET, AnswerTool, recorded, within_budget
from orchestra_jax.tools.experts.client import expert_clients
from orchestra_jax.tools.experts.entries import expert_entries
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.tools.experts.simulated_tool import FallibleExpert, SimulatedTool
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import Preference, ReplayMiss, Task, ToolCall, ToolResult, ToolSpec, Usage
from tests.tools.openai_stub import StubOpenAI

PYTHON = ToolSpec("python", "Runs code.", {"type": "object"}, local=True)
BASE = PriceList(
    "base", "2026-01-01", "by hand",
    {"small": Price(input=0.5, output=2.0), "big": Price(4.0, None, 16.0), "python": Price(second=1e-5),
     "web_search": Price(call=0.01)},
    {"big": {"answer": 30.0, "search": 10.0}},
)  # fmt: skip
CHEAP = PriceList("cheap", "2026-01-01", "by hand", {**BASE.entries, "big": Price(0.4, None, 1.6)}, BASE.latencies)
EXPERTS = [Expert(name, name, "http://127.0.0.1:9/v1", max_tokens=16, retries=0) for name in ("small", "big")]
ROLES = {"query_writer": ["small", "big"], "code_writer": ["big"], "math": ["small"], "generalist": ["small", "big"]}


def task(question: str = "?", answer: str = "7") -> Task:
    return Task("t", question, (answer,), (), Preference("accuracy", ""))


async def execute(
    offer: Catalogue, instance: Instance, call: ToolCall, posed: Task | None = None, budget: Budget | None = None
) -> ToolResult:
    """One call of a new episode."""
    posed = replace(posed or task(), tools=instance.tools)
    return await offer.executor(instance.record, posed, budget or Budget()).step(call)


async def found(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
    return ToolResult("a page", (Usage("web_search", cost_usd=0.01, seconds=1.0, price_list="base"),))


async def run_python(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
    return ToolResult("42", (Usage("python", seconds=2.0),))


def catalogue(rule: MenuRule, book: PriceBook | None = None, experts: list[Expert] | None = None) -> Catalogue:
    clients = expert_clients(experts or EXPERTS, BASE, backoff_s=0.01)
    entries = expert_entries(ROLES, clients, search=("web_search", found), run=("python", run_python), local=["small"])
    if rule.form == "separate":
        entries += [Entry(PYTHON, run_python, billed=("python",)), Entry(ANSWER_TOOL, AnswerTool(None).run)]
    return Catalogue(entries, book or PriceBook(BASE), rule)


# --- instances -------------------------------------------------------------------------------------------------------


def test_without_subset_and_aliases_everything_is_offered_by_its_name_in_order():
    tools = catalogue(MenuRule()).instance(1).tools
    assert [spec.name for spec in tools] == [
        "query_writer-small", "query_writer-big", "code_writer-big", "math-small", "generalist-small",
        "generalist-big", "python", "answer",
    ]  # fmt: skip
    for spec in tools:
        check_spec(spec)


def test_models_whose_names_differ_in_a_replaced_character_have_tools_of_their_own():
    experts = [replace(EXPERTS[0], name=name) for name in ("m.1", "m-1", "m/1")]
    prices = replace(BASE, entries={expert.name: Price(input=1.0) for expert in experts})
    offered = expert_entries({"generalist": [expert.name for expert in experts]}, expert_clients(experts, prices))
    record = Catalogue(offered, PriceBook(prices), MenuRule()).instance(1).record
    assert record["tools"] == {
        "generalist-m-1": "generalist/m.1",
        "generalist-m-1-2": "generalist/m-1",
        "generalist-m-1-2-2": "generalist/m/1",
    }


def test_a_seed_is_an_instance_and_other_seeds_are_others():
    rule = MenuRule(subset=True, fewest=2, most=5, aliases=True)
    offer = catalogue(rule, PriceBook(BASE, [BASE, CHEAP], 0.5, 2.0))
    instances = [offer.instance(seed) for seed in range(200)]
    assert instances == [catalogue(rule, PriceBook(BASE, [BASE, CHEAP], 0.5, 2.0)).instance(s) for s in range(200)]
    assert {len(instance.tools) for instance in instances} == {2, 3, 4, 5}
    assert {i.record["prices"]["list"] for i in instances} == {"base", "cheap"}
    assert len({i.record["prices"]["seed"] for i in instances}) > 190
    assert {i.record["tools"].get("expert-1") for i in instances} >= {f"{r}/{m}" for r, ms in ROLES.items() for m in ms}
    for instance in instances:
        assert "answer" in instance.record["tools"]
        prices = offer.book.prices(PriceDraw(**instance.record["prices"]))
        experts = [key for key in instance.record["tools"].values() if "/" in key]
        assert instance.record["output_usd"] == {k: prices.entries[k.split("/")[1]].output for k in experts}
        assert json.loads(json.dumps(instance.record)) == instance.record
        assert list(instance.record["tools"]) == [spec.name for spec in instance.tools]


@pytest.mark.parametrize(
    "rule",
    [
        MenuRule(),
        MenuRule(aliases=True),
        MenuRule(subset=True),
        MenuRule(subset=True, fewest=1, most=2),
        MenuRule("released", subset=True),
    ],
)
def test_the_largest_menu_is_known_before_it_is_drawn(rule: MenuRule):
    offer = catalogue(rule)
    assert max(len(offer.instance(seed).tools) for seed in range(60)) == offer.largest


PLAIN = [Entry(ToolSpec(f"t{i}", f"Tool {i}.", {"type": "object"}), run_python) for i in range(5)]
PLAIN.append(Entry(ANSWER_TOOL, run_python))


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.none() | st.integers(1, 9))
def test_every_menu_is_of_the_asked_size_and_can_be_answered(seed: int, fewest: int, most: int | None):
    offer = Catalogue(PLAIN, PriceBook(BASE), MenuRule(subset=True, fewest=fewest, most=most))
    menus = [[tool.name for tool in offer.instance(seed).tools] for _ in range(2)]
    assert menus[0] == menus[1]
    assert len(set(menus[0])) == len(menus[0])
    assert {"answer"} <= set(menus[0]) <= {entry.key for entry in PLAIN}
    largest = min(most or 6, 6)
    assert min(fewest, largest) <= len(menus[0]) <= largest


def test_what_is_always_there_is_in_every_menu():
    offer = Catalogue(PLAIN, PriceBook(BASE), MenuRule(subset=True, fewest=1, most=4, always=["t3"]))
    menus = [[tool.name for tool in offer.instance(seed).tools] for seed in range(200)]
    assert all({"answer", "t3"} <= set(menu) for menu in menus)
    assert {len(menu) for menu in menus} == {2, 3, 4}
    assert {name for menu in menus for name in menu} == {entry.key for entry in PLAIN}
    with pytest.raises(ConfigError, match=r"tools\.menu\.always names t9, which is not offered here"):
        Catalogue(PLAIN, PriceBook(BASE), MenuRule(subset=True, always=["t9"]))
    with pytest.raises(ConfigError, match=r"tools\.menu\.most=1 does not hold what every menu has, t3, answer"):
        Catalogue(PLAIN, PriceBook(BASE), MenuRule(subset=True, fewest=1, most=1, always=["t3"]))


def test_letters_are_random_and_tell_nothing():
    offer = catalogue(MenuRule(subset=True, fewest=2, most=5, aliases=True, letters=True))
    instances = [offer.instance(seed) for seed in range(400)]
    letters = [{name: key for name, key in i.record["tools"].items() if "/" in key} for i in instances]
    assert all(len(name) == 1 and name in ascii_uppercase for named in letters for name in named)
    assert {name for named in letters for name in named} == set(ascii_uppercase)
    experts = {f"{role}/{model}" for role, models in ROLES.items() for model in models}
    assert {named["K"] for named in letters if "K" in named} == experts
    assert all(list(i.record["tools"]) == [spec.name for spec in i.tools] for i in instances)
    many = [replace(PLAIN[0], spec=ToolSpec("x", "", {}), role="math", model=f"m{n}") for n in range(40)]
    whole = Catalogue(many, PriceBook(BASE), MenuRule(aliases=True, letters=True)).instance(0).tools
    assert len({spec.name for spec in whole}) == 40
    assert {len(spec.name) for spec in whole} == {2}


def test_all_tools_sizes_and_positions_occur():
    offer = Catalogue(PLAIN, PriceBook(BASE), MenuRule(subset=True, fewest=2, most=4))
    menus = [[tool.name for tool in offer.instance(seed).tools] for seed in range(400)]
    assert {len(menu) for menu in menus} == {2, 3, 4}
    assert {name for menu in menus for name in menu} == {entry.key for entry in PLAIN}
    assert {menu.index("answer") for menu in menus} == {0, 1, 2, 3}
    shuffled = Catalogue(PLAIN, PriceBook(BASE), MenuRule(aliases=True)).instance(0)
    assert len(shuffled.tools) == len(PLAIN)


def test_aliases_tell_nothing():
    for seed in range(30):
        for spec in catalogue(MenuRule(aliases=True)).instance(seed).tools:
            text = json.dumps(schema.to_openai(spec))
            assert "small" not in text
            assert "big" not in text


def test_the_menu_states_prices_latency_and_place():
    tools = {spec.name: spec for spec in catalogue(MenuRule()).instance(0).tools}
    assert "Price: $4 per million input tokens, $16 per million output tokens." in tools["generalist-big"].description
    assert tools["generalist-big"].description.endswith("Latency: about 30 s.")
    assert "$16 per million output tokens, and $0.01 per call. Latency" in tools["query_writer-big"].description
    assert "about 10 s" in tools["query_writer-big"].description
    assert "about 20 s" in tools["code_writer-big"].description  # never measured as a reasoner: the mean
    assert tools["generalist-small"].description.endswith("Runs locally.")
    assert tools["generalist-small"].local
    assert tools["python"].description == "Runs code. Price: $1e-05 per second. Runs locally."
    assert "Price" not in tools["answer"].description
    assert price_words(Price()) == ""


def test_descriptions_of_the_models_are_shown():
    clients = expert_clients(EXPERTS, BASE)
    (entry,) = expert_entries({"math": ["big"]}, clients, descriptions={"big": "Good at sums."})
    assert entry.spec.description.endswith("step by step. Good at sums.")


def test_what_cannot_be_offered_is_refused():
    with pytest.raises(ValueError, match="each of them once"):
        Catalogue([], PriceBook(BASE), MenuRule())
    with pytest.raises(MissingPrice, match="'poor' has no price for"):
        catalogue(MenuRule(), PriceBook(BASE, [PriceList("poor", "d", "s", {"small": Price()})]))
    entries = expert_entries({"query_writer": ["small"], "code_writer": ["big"]}, expert_clients(EXPERTS, BASE))
    with pytest.raises(ValueError, match="no model for 'answer'"):
        Catalogue(entries, PriceBook(BASE), MenuRule("released"))
    with pytest.raises(ValueError, match=r"roles query_writer, .* not 'poet'"):
        expert_entries({"poet": ["small"]}, {})


def test_a_list_is_made_again_from_an_instances_record():
    book = PriceBook(BASE, [CHEAP], 0.5, 2.0)
    instance = catalogue(MenuRule(), book).instance(7)
    draw = PriceDraw(**json.loads(json.dumps(instance.record["prices"])))
    again = PriceBook(BASE, [CHEAP], 0.5, 2.0).prices(draw)
    assert again == scaled(CHEAP, draw.seed or 0, 0.5, 2.0)
    assert again.entries != CHEAP.entries
    for another in (PriceBook(BASE, [CHEAP], 0.5, 3.0), PriceBook(BASE, [BASE], 0.5, 2.0), PriceBook(BASE, [CHEAP])):
        with pytest.raises(ValueError, match="keep pricing"):
            another.prices(draw)
    assert PriceBook(BASE).prices(PriceDraw("base")) is BASE


# --- calls -----------------------------------------------------------------------------------------------------------


async def test_rows_are_charged_by_the_instances_list_and_the_budget_by_what_is_paid(stub: StubOpenAI):
    stub.reply = lambda body: "<answer>capital of Norway</answer>"
    experts = [Expert(name, name, stub.url, max_tokens=16, retries=0) for name in ("small", "big")]
    offer = catalogue(MenuRule(aliases=True), PriceBook(BASE, [CHEAP]), experts)
    instance, budget = offer.instance(3), Budget()
    names = {key: name for name, key in instance.record["tools"].items()}
    call = ToolCall(names["query_writer/big"], {"question": "What is the capital?"})
    result = await execute(offer, instance, call, budget=budget)
    model, search = result.usage
    (bill,) = stub.bills
    assert result.text == "Query: capital of Norway\na page"
    assert (model.name, model.prompt_tokens, model.completion_tokens) == ("big", bill.prompt, bill.completion)
    assert model.price_list == search.price_list == "cheap"
    assert model.cost_usd == pytest.approx((bill.prompt * 0.4 + bill.completion * 1.6) / 1e6)
    assert search.cost_usd == 0.01
    assert budget.spent.usd == pytest.approx((bill.prompt * 4.0 + bill.completion * 16.0) / 1e6)


async def test_local_rows_get_a_price_and_what_was_not_billed_stays_free():
    async def unbilled(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        return ToolResult("no such page", (Usage("web_search", cost_usd=0.0, price_list="base"),), is_error=True)

    async def silent(arguments: Mapping[str, Any], budget: Budget) -> str:
        return "done"

    def spec(name: str) -> ToolSpec:
        return ToolSpec(name, "A tool.", {"type": "object"})

    entries = [Entry(PYTHON, run_python), Entry(spec("web"), unbilled), Entry(spec("other"), silent)]
    offer = Catalogue(entries, PriceBook(BASE, [CHEAP]), MenuRule())
    calls = [ToolCall(name, {"code": "1"}) for name in ("python", "web", "other")]
    python, web, other = [await execute(offer, offer.instance(0), call) for call in calls]
    assert python.usage == (Usage("python", seconds=2.0, cost_usd=2e-5, price_list="cheap"),)
    assert web.usage == (Usage("web_search", price_list="cheap"),)
    assert other.usage == (Usage("other", price_list="cheap"),)


async def test_a_simulated_expert_knows_the_task_and_keeps_its_price():
    tool = SimulatedTool(FallibleExpert("oracle", {"*": 1.0}, price_usd=0.02, latency_s=7.0))
    offer = Catalogue(
        [Entry(tool.spec, run_python, for_task=tool.handler)], PriceBook(BASE, [CHEAP], 2.0, 3.0), MenuRule()
    )
    instance = offer.instance(1)
    (spec,) = instance.tools
    assert spec == tool.spec  # its price is a figure of the menu, not words
    for answer in ("7", "8"):
        result = await execute(offer, instance, ToolCall("oracle", {"question": "?"}), task(answer=answer))
        assert (result.text, result.usage[0].cost_usd, result.usage[0].seconds) == (answer, 0.02, 7.0)


async def test_the_answer_tool_ends_the_task():
    offer = catalogue(MenuRule())
    result = await execute(offer, offer.instance(0), ToolCall("answer", {"answer": "Oslo"}))
    assert (result.final, result.is_error) == ("Oslo", False)


async def test_the_released_form_keeps_what_its_functions_found(stub: StubOpenAI):
    replies = iter(("<answer>capital</answer>", "```python\nprint(42)\n```", r"\boxed{42}"))
    stub.reply = lambda body: next(replies)
    experts = [Expert(name, name, stub.url, max_tokens=16, retries=0) for name in ("small", "big")]
    offer = catalogue(MenuRule("released"), PriceBook(BASE, [CHEAP]), experts)
    instance = offer.instance(1)
    assert [spec.name for spec in instance.tools] == ["search", "enhance_reasoning", "answer"]
    choices = {spec.name: spec.parameters["properties"]["model"]["enum"] for spec in instance.tools}
    assert {name: sorted(each) for name, each in choices.items()} == {
        "search": ["search-1", "search-2"],
        "enhance_reasoning": ["reasoner-1"],
        "answer": ["answer-1", "answer-2", "answer-math-1"],
    }
    for spec in instance.tools:
        check_spec(spec)
        text = json.dumps(spec.parameters)
        assert "per million input tokens" in text
        assert "big" not in text
        assert schema.validate_arguments(spec, {"model": "gpt-5"}) is not None
    posed = replace(task("How much is 6 times 7?"), tools=instance.tools)
    executor = offer.executor(instance.record, posed, Budget())
    results = [await executor.step(ToolCall(name, {"model": each[0]})) for name, each in choices.items()]
    assert [result.final for result in results] == [None, None, r"\boxed{42}"]
    asked = [body["messages"][-1]["content"] for body in stub.bodies]
    assert all("How much is 6 times 7?" in text for text in asked)
    assert "a page" in asked[1]
    assert "a page" in asked[2]
    assert "print(42)" in asked[2]
    replies = iter(["an answer"])
    await execute(offer, instance, ToolCall("answer", {"model": choices["answer"][0]}), task("Another?"))
    assert "a page" not in stub.bodies[-1]["messages"][-1]["content"]


def test_the_released_form_offers_some_models_of_each_function():
    offer = catalogue(MenuRule("released", subset=True, fewest=1, most=1))
    seen = set()
    for seed in range(40):
        record = offer.instance(seed).record
        assert len(record["tools"]) == 3
        seen |= set(record["tools"].values())
    assert seen == {f"{role}/{model}" for role, models in ROLES.items() for model in models}


# --- around a handler ------------------------------------------------------------------------------------------------


async def test_a_trajectorys_budget_is_an_observation_and_the_runs_is_not():
    async def paid(arguments: Mapping[str, Any], budget: Budget) -> str:
        await acquire(budget, Usage("big", cost_usd=1.0))
        return "paid"

    run = Budget(Limits(usd=5.0))
    budget = Budget(Limits(usd=0.5), name="trajectory", parent=run)
    assert await within_budget(paid)({}, budget) == ToolResult(OUT_OF_BUDGET, is_error=True, refused=True)
    budget = Budget(name="trajectory", parent=Budget(Limits(usd=0.5)))
    with pytest.raises(BudgetExceeded):
        await within_budget(paid)({}, budget)
    lost = Usage("big", cost_usd=0.25, estimated=True)  # of a request before

    async def exceeded(arguments: Mapping[str, Any], budget: Budget) -> str:
        error = BudgetExceeded("no", arguments["scope"])
        error.usage = (lost,)
        raise error

    assert (await within_budget(exceeded)({"scope": "trajectory"}, budget)).usage == (lost,)
    with pytest.raises(BudgetExceeded):  # the bill cannot be written
        await within_budget(exceeded)({"scope": ""}, budget)


async def test_a_search_that_the_budget_refuses_does_not_hide_what_the_query_cost(stub: StubOpenAI):
    async def refused(arguments: Mapping[str, Any], budget: Budget) -> str:
        raise BudgetExceeded("no", "trajectory")

    stub.reply = lambda body: "<answer>capital</answer>"
    clients = expert_clients([Expert("big", "big", stub.url, max_tokens=16)], BASE)
    (entry,) = expert_entries({"query_writer": ["big"]}, clients, search=("web_search", refused))
    result = await entry.handler({"question": "?"}, Budget())
    assert isinstance(result, ToolResult)
    assert OUT_OF_BUDGET in result.text
    assert result.refused
    assert [row.name for row in result.usage] == ["big"]


async def test_a_local_tool_is_replayed_with_its_seconds(tmp_path):
    replay = Replay(tmp_path / "calls.db", "record")
    first = await recorded("python", run_python, replay, {"timeout_s": 1.0})({"code": "6 * 7"}, Budget())
    replay.close()

    async def absent(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        raise AssertionError

    replay = Replay(tmp_path / "calls.db", "replay")
    assert await recorded("python", absent, replay, {"timeout_s": 1.0})({"code": "6 * 7"}, Budget()) == first
    for code, limit in (("6 * 8", 1.0), ("6 * 7", 2.0)):
        with pytest.raises(ReplayMiss):
            await recorded("python", absent, replay, {"timeout_s": limit})({"code": code}, Budget())
    replay.close()
