"""Prices and ledger: figures by hand, random schedules, the lists that come with us, totals equal sums."""

import math
import re
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.config.schema import PricingConfig, RandomPricesConfig, RunConfig
from orchestra_jax.money import price_files, run_prices
from orchestra_jax.money.price_book import PriceBook, PriceDraw, price_book, scaled
from orchestra_jax.money.prices import POLICY, MissingPrice, Price, PriceList, call_rows, policy_row
from orchestra_jax.types import ToolSpec, Usage

CONF = Path(__file__).parents[2] / "conf" / "pricing"
PRICES = PriceList(
    "test", "2026-01-01", "by hand", {"m": Price(input=2.0, cached_input=0.5, output=8.0, call=0.01, second=0.001)}
)


def test_cost_by_hand():
    cost = PRICES.cost("m", prompt_tokens=3000, cached_tokens=1000, completion_tokens=500, seconds=2.0, calls=3)
    assert cost == pytest.approx((2000 * 2 + 1000 * 0.5 + 500 * 8) / 1e6 + 0.03 + 0.002, rel=1e-15)


def test_cached_tokens_without_an_own_price_cost_as_much_as_others():
    prices = PriceList("t", "d", "s", {"m": Price(input=2.0)})
    assert prices.cost("m", prompt_tokens=10, cached_tokens=4) == prices.cost("m", prompt_tokens=10)
    prices = PriceList("t", "d", "s", {"m": Price(input=2.0, cached_input=0.0)})
    assert prices.cost("m", prompt_tokens=10, cached_tokens=4) == prices.cost("m", prompt_tokens=6)


def test_missing_price_names_list_and_model():
    with pytest.raises(MissingPrice) as caught:
        PRICES.cost("other")
    assert str(caught.value) == "Price list 'test' has no price for 'other'; add it under entries."


@pytest.mark.parametrize(
    "amounts",
    [
        {"prompt_tokens": 1, "cached_tokens": 2},
        {"cached_tokens": -1},
        {"completion_tokens": -1},
        {"seconds": -1.0},
        {"calls": -1},
    ],
)
def test_impossible_amounts(amounts: dict[str, float]):
    with pytest.raises(ValueError, match="must not be negative"):
        PRICES.cost("m", **amounts)  # type: ignore[arg-type]


def test_charge_fills_dollars_and_list():
    row = PRICES.priced(Usage("m", "judge", prompt_tokens=1_000_000, seconds=1.0))
    assert row.cost_usd == pytest.approx(2.011)
    assert (row.price_list, row.role) == ("test", "judge")


def test_a_call_at_a_fixed_price_keeps_the_tokens_of_its_rows():
    rows = (Usage("m", prompt_tokens=7, cached_tokens=3, completion_tokens=2, cost_usd=9.0, seconds=1.0),) * 2
    wanted = Usage("t", "tool", 14, 6, 4, cost_usd=0.5, seconds=2.0, price_list="menu")
    assert call_rows(ToolSpec("t", "", {}, price_usd=0.5), rows, 8.0) == (wanted,)
    free = ToolSpec("t", "", {}, price_usd=0.0, latency_s=0.0)  # at no price and in no time, whatever its rows say
    assert call_rows(free, rows, 8.0) == (replace(wanted, cost_usd=0.0, seconds=0.0),)
    assert call_rows(ToolSpec("t", "", {}), rows, 8.0) == rows
    assert call_rows(ToolSpec("t", "", {}), (), 8.0) == (Usage("t", seconds=8.0, price_list="menu"),)


def test_a_call_that_was_billed_at_another_list_gets_the_price_that_is_shown():
    paid = PriceList("paid", "d", "s", {"m": Price(call=0.1)})
    shown = PriceList("shown", "d", "s", {"m": Price(call=0.4)})
    free, billed = Usage("m", price_list="paid"), Usage("m", cost_usd=0.1, price_list="paid")
    for list_of_rows in (None, paid):  # None: the rows were paid by the list that is shown, which has no free call
        found = call_rows(ToolSpec("t", "", {}), (free, billed), 1.0, shown=shown, paid=list_of_rows)
        assert [(row.cost_usd, row.price_list) for row in found] == [(0.0, "shown"), (0.4, "shown")]
    # What nobody has priced, a worst case of another list, and one of this list, which stays as it was reserved.
    rows = Usage("m"), replace(billed, estimated=True), replace(billed, estimated=True, price_list="shown")
    found = call_rows(ToolSpec("t", "", {}), rows, 1.0, shown=shown, paid=paid)
    assert [row.cost_usd for row in found] == [0.4, 0.4, 0.1]
    (unlisted,) = call_rows(ToolSpec("t", "", {}), (Usage("x", cost_usd=3.0),), 1.0, shown=shown, paid=paid)
    assert (unlisted.cost_usd, unlisted.price_list) == (3.0, "shown")
    nothing = PriceList("paid", "d", "s", {"m": Price()})  # a free call there was billed, at its price of 0
    assert call_rows(ToolSpec("t", "", {}), (free,), 1.0, shown=shown, paid=nothing)[0].cost_usd == 0.4


def test_the_policys_tokens_cost_and_its_seconds_do_not():
    prices = PriceList("p", "d", "s", {POLICY: Price(input=2.0, cached_input=0.5, output=8.0, second=1.0)})
    row = Usage("served", POLICY, prompt_tokens=3_000_000, cached_tokens=1_000_000, completion_tokens=500_000)
    for known, per_token, seconds in ((0.0, None, 7.0), (3.0, None, 3.0), (3.0, 1e-5, 5.0), (3.0, 0.0, 0.0)):
        found = policy_row(replace(row, seconds=known), prices, 7.0, per_token)
        assert (found.cost_usd, found.seconds, found.price_list) == (8.5, pytest.approx(seconds), "p")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, Price(2.0, 0.5, 8.0, call=0.25)),
        ({"orchestrator_input": 3.0}, Price(3.0, None, 8.0, call=0.25)),  # cached tokens cost what is given, too
        ({"orchestrator_output": 9.0}, Price(2.0, 0.5, 9.0, call=0.25)),
        ({"orchestrator_cached_input": 0.1}, Price(2.0, 0.1, 8.0, call=0.25)),
        ({"orchestrator_cached_input": 0.0}, Price(2.0, 0.0, 8.0, call=0.25)),
        ({"orchestrator_input": 0.0, "orchestrator_output": 0.0}, Price(0.0, None, 0.0, call=0.25)),
        ({"orchestrator": "n", "orchestrator_input": 0.0, "orchestrator_output": 1.0}, Price(0.0, None, 1.0)),
    ],
)
def test_the_price_of_the_policy_is_what_is_given_and_else_its_models(given: dict[str, float], wanted: Price):
    prices = PriceList("p", "d", "s", {"m": Price(2.0, 0.5, 8.0, call=0.25)})
    none = {"orchestrator": "m", "orchestrator_input": None, "orchestrator_output": None}
    assert run_prices.with_policy(prices, PricingConfig(**none | given)).entries == {**prices.entries, POLICY: wanted}
    with pytest.raises(ConfigError, match="no price for the policy, n"):
        run_prices.with_policy(prices, PricingConfig(**none | {"orchestrator": "n", "orchestrator_input": 1.0}))


def test_a_book_makes_the_list_that_was_drawn_again_and_no_other():
    lists = [PriceList(name, "d", "s", {"m": Price(call=1.0 + i)}) for i, name in enumerate("abc")]
    rng = np.random.default_rng(0)
    drawn = [PriceBook(lists[0], lists[1:]).draw(rng) for _ in range(20)]
    assert set(drawn) == {PriceDraw("b"), PriceDraw("c")}
    assert PriceBook(lists[0], lists[1:]).prices(PriceDraw("c")) is lists[2]
    assert PriceBook(lists[0]).draw(rng) == PriceDraw("a")
    book = PriceBook(lists[0], lists[1:], 0.5, 2.0)
    draws = [book.draw(rng) for _ in range(20)]
    assert len({draw.seed for draw in draws}) == 20
    for draw in draws:
        (its,) = (prices for prices in lists if prices.id == draw.list)
        assert book.prices(draw) == scaled(its, draw.seed, 0.5, 2.0)
    dear = PriceBook(lists[0], (), 2.0, 2.0)  # a range of one factor is a factor, too
    assert dear.prices(dear.draw(rng)).cost("m") == pytest.approx(2.0)
    for other in (PriceDraw("a", 1, 0.5, 2.0), PriceDraw("b"), PriceDraw("b", 1, 0.5, 3.0)):
        with pytest.raises(ValueError, match="is not of this run"):
            book.prices(other)


def test_the_book_of_a_run_completes_and_prices_the_lists_that_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What is drawn has its own price for the policy's model, and that of the paid list for what it lacks."""
    for name, entries in (("paid", "{m: {call: 1}, n: {call: 2}}"), ("other", "{m: {call: 5}}")):
        (tmp_path / f"{name}.yaml").write_text(f"{{id: {name}, date: d, source: s, entries: {entries}}}")
    monkeypatch.setattr(price_files, "PRICES", tmp_path)
    own = {"orchestrator": "m", "orchestrator_input": None, "orchestrator_output": None}
    drawn = RandomPricesConfig(lists=["other", "paid"], low=0.5, high=2.0)
    book = price_book(replace(RunConfig(), pricing=PricingConfig(name="paid", **own, randomise=drawn)))
    found = [(prices.id, *(prices.cost(name) for name in ("m", "n", POLICY))) for prices in (book.base, *book.lists)]
    assert found == [("paid", 1.0, 2.0, 1.0), ("other+paid", 5.0, 2.0, 5.0), ("paid", 1.0, 2.0, 1.0)]
    draw = book.draw(np.random.default_rng(0))
    assert (draw.low, draw.high) == (0.5, 2.0)


def test_the_papers_prices():
    prices = price_files.load(CONF / "paper.yaml")
    assert prices.cost("gpt-5", prompt_tokens=1_000_000, completion_tokens=1_000_000) == 11.25
    assert prices.cost("python", seconds=1.0) == 8.3e-6
    assert prices.cost("web_search", calls=2) == 0.02
    assert prices.latencies["gpt-5"] == {"answer": 96.0, "reason": 31.0, "search": 22.0}
    assert price_files.load(CONF / "quickstart.yaml") == run_prices.QUICKSTART  # which a run takes without the file


def test_bad_price_lists(tmp_path: Path):
    good = {"id": "a", "date": "d", "source": "s", "entries": {"m": {"input": 1}}}
    assert price_files.from_config(good).cost("m", prompt_tokens=10**6) == 1.0
    for change, message in [
        ({"entries": {"m": {"inptu": 1}}}, "unknown key 'inptu'"),
        ({"entries": {"m": {"input": -1}}}, "must be a number of dollars"),
        *(
            ({"entries": {"m": {"input": odd}}}, "must be a number of dollars")
            for odd in ("1", math.inf, math.nan, True)
        ),
        ({"extra": 1}, "has the keys"),
    ]:
        with pytest.raises(ValueError, match=message):
            price_files.from_config({**good, **change})
    with pytest.raises(FileNotFoundError, match="No price list"):
        price_files.load(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("id: x\n")
    with pytest.raises(ValueError, match=r"bad.yaml: A price list has the keys"):
        price_files.load(tmp_path / "bad.yaml")


def test_a_list_is_completed_by_another_and_its_id_names_both():
    vendor = PriceList("v", "2026-01-01", "here", {"m": Price(call=1.0)}, {"m": {"answer": 1.0}})
    base = PriceList("b", "2025-01-01", "there", {"m": Price(call=9.0), "n": Price(call=2.0)}, {"n": {"answer": 2.0}})
    both = price_files.completed(vendor, base)
    assert (both.cost("m"), both.cost("n")) == (1.0, 2.0)
    assert both.priced(Usage("n")).price_list == both.id == "v+b"
    assert both.latencies == {"m": {"answer": 1.0}, "n": {"answer": 2.0}}
    assert (vendor.entries, base.cost("m")) == ({"m": Price(call=1.0)}, 9.0)


def test_the_id_of_a_random_schedule_names_seed_and_range():
    other = scaled(PRICES, 7, 0.5, 2.0)
    assert other.id == "test*0.5..2@7"
    assert scaled(PRICES, 7, 0.5, 2.0) == other
    assert scaled(PRICES, 8, 0.5, 2.0).entries != other.entries


def test_a_random_schedule_scales_all_prices_of_an_entry_alike_and_log_uniformly():
    names = [f"m{i}" for i in range(2000)]
    prices = PriceList("t", "d", "s", {name: Price(2.0, 0.5, 8.0, 0.01, 0.001) for name in names})
    other = scaled(prices, 3, 0.1, 10.0)
    factors = np.array([other.entries[name].input / 2.0 for name in names])
    for name, factor in zip(names, factors, strict=True):
        assert astuple(other.entries[name]) == pytest.approx(tuple(np.array([2.0, 0.5, 8.0, 0.01, 0.001]) * factor))
    assert factors.min() >= 0.1
    assert factors.max() <= 10.0
    # Log-uniform: as many below the geometric mean of the range as above, and a quarter below its root.
    assert np.mean(factors < 1.0) == pytest.approx(0.5, abs=0.05)
    assert np.mean(factors < 0.1**0.5) == pytest.approx(0.25, abs=0.05)
    one = PriceList("t", "d", "s", {"m5": prices.entries["m5"]})
    assert scaled(one, 3, 0.1, 10.0).entries["m5"] == other.entries["m5"]  # whatever else is on the list
    assert scaled(PriceList("t", "d", "s", {"m": Price(input=1.0)}), 0, 1.0, 1.0).entries["m"] == Price(input=1.0)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (2.0, 1.0), (1.0, float("inf")), (float("nan"), 1.0)])
def test_impossible_price_factors(low: float, high: float):
    with pytest.raises(ValueError, match="Price factors need"):
        scaled(PRICES, 0, low, high)


VENDORS = (
    "azure", "bedrock", "cerebras", "fireworks", "groq", "hyperbolic", "lambda", "novita", "sambanova", "together",
)  # fmt: skip


@pytest.mark.parametrize("name", [*VENDORS, "deepinfra", "paper_train"])
def test_a_vendors_list_prices_the_papers_whole_training_menu(name: str):
    prices = price_files.load(CONF / f"{name}.yaml")
    tools = OmegaConf.load(CONF.parent / "tools" / "paper_train.yaml")
    menu = [model for models in tools.experts.values() for model in models]
    assert {*menu, *tools.names, tools.judge} <= prices.entries.keys()
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", prices.date)
    assert re.search(r"litellm [\d.]+ ", prices.source)
    # Real models cost between a cent and 100 dollars per million tokens: a slip of a power of ten would show.
    assert all(0.01 <= prices.entries[model].output <= 100 for model in menu)


def test_vendors_differ():
    lists = [price_files.load(CONF / f"{name}.yaml") for name in VENDORS]
    assert len({prices.id for prices in lists}) == len(VENDORS) == 10
    assert len({prices.entries["llama-3.3-70b"] for prices in lists}) >= 9


def test_prices_of_the_unseen_tools():
    prices = price_files.load(CONF / "unseen.yaml")
    assert prices.cost("claude-opus-4.1", prompt_tokens=10**6, cached_tokens=10**6) == 1.5
    assert prices.cost("gpt-5", completion_tokens=10**6) == 10.0  # from the base of its base
    assert prices.id == "unseen-2026-01+paper-train-2026-01+paper-2025-11"


def test_a_base_that_is_not_there(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("{id: a, date: d, source: s, base: none, entries: {m: {input: 1}}}")
    with pytest.raises(FileNotFoundError, match=r"none\.yaml"):
        price_files.load(tmp_path / "a.yaml")


@pytest.mark.parametrize("bases", [{"a": "a"}, {"a": "b", "b": "a"}])
def test_a_base_that_leads_back_is_one_sentence(tmp_path: Path, bases: dict[str, str]):
    for name, base in bases.items():
        (tmp_path / f"{name}.yaml").write_text(f"base: {base}\nid: a\ndate: d\nsource: s\nentries: {{m: {{input: 1}}}}")
    with pytest.raises(ValueError, match=r"\.yaml: base: a leads back to this list"):
        price_files.load(tmp_path / "a.yaml")


def test_a_list_of_ours_whose_base_is_not_there_is_a_sentence_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.yaml").write_text("{id: a, date: d, source: s, base: papr, entries: {m: {input: 1}}}")
    monkeypatch.setattr(price_files, "PRICES", tmp_path)
    with pytest.raises(ConfigError, match=r"No price list at '.*papr\.yaml'"):
        price_files.named("pricing.name", "mine")
