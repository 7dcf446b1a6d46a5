"""Prices, ledger and budget: figures by hand, totals equal sums, hard stops."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra_jax.tools.pricing import Budget, BudgetExceeded, CostLedger, MissingPrice, Price, PriceList
from orchestra_jax.types import Usage

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


def test_missing_price_names_list_and_model():
    with pytest.raises(MissingPrice) as caught:
        PRICES.cost("other")
    assert str(caught.value) == "Price list 'test' has no price for 'other'; add it under entries."


@pytest.mark.parametrize("amounts", [{"prompt_tokens": 1, "cached_tokens": 2}, {"seconds": -1.0}, {"calls": -1}])
def test_impossible_amounts(amounts: dict[str, float]):
    with pytest.raises(ValueError, match="must not be negative"):
        PRICES.cost("m", **amounts)  # type: ignore[arg-type]


def test_charge_fills_dollars_and_list():
    row = PRICES.charge(Usage("m", "judge", prompt_tokens=1_000_000, seconds=1.0))
    assert row.cost_usd == pytest.approx(2.011)
    assert (row.price_list, row.role) == ("test", "judge")


def test_the_papers_prices():
    prices = PriceList.load(CONF / "paper.yaml")
    assert prices.cost("gpt-5", prompt_tokens=1_000_000, completion_tokens=1_000_000) == 11.25
    assert prices.cost("python", seconds=1.0) == 8.3e-6
    assert prices.cost("web_search", calls=2) == 0.02
    assert prices.latencies["gpt-5"] == {"answer": 96.0, "reason": 31.0, "search": 22.0}
    assert PriceList.load(CONF / "quickstart.yaml").cost("orchestrator", prompt_tokens=10**6) == 0.0


def test_bad_price_lists(tmp_path: Path):
    good = {"id": "a", "date": "d", "source": "s", "entries": {"m": {"input": 1}}}
    assert PriceList.from_config(good).cost("m", prompt_tokens=10**6) == 1.0
    for change, message in [
        ({"entries": {"m": {"inptu": 1}}}, "unknown key 'inptu'"),
        ({"entries": {"m": {"input": -1}}}, "must be a number of dollars"),
        ({"entries": {"m": {"input": "1"}}}, "must be a number of dollars"),
        ({"extra": 1}, "has the keys"),
    ]:
        with pytest.raises(ValueError, match=message):
            PriceList.from_config({**good, **change})
    with pytest.raises(FileNotFoundError, match="No price list"):
        PriceList.load(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("id: x\n")
    with pytest.raises(ValueError, match=r"bad.yaml: A price list has the keys"):
        PriceList.load(tmp_path / "bad.yaml")


AMOUNT = st.floats(0, 1e3, allow_nan=False)
ROWS = st.lists(
    st.builds(
        Usage,
        name=st.sampled_from(["a", "b"]),
        role=st.sampled_from(["orchestrator", "tool", "judge", "user_simulator"]),
        cost_usd=AMOUNT,
        seconds=AMOUNT,
    ),
    max_size=20,
)


@given(ROWS)
def test_ledger_totals_equal_sums(rows: list[Usage]):
    ledger = CostLedger()
    for row in rows:
        ledger.add(row)
    assert ledger.rows == rows
    mine = [row for row in rows if row.role in ("orchestrator", "tool")]
    assert ledger.cost_usd == pytest.approx(sum(row.cost_usd for row in mine), rel=1e-12)
    assert ledger.latency_s == pytest.approx(sum(row.seconds for row in mine), rel=1e-12)
    for parts in (ledger.by_role(), ledger.by_name()):
        assert sum(parts.values()) == pytest.approx(ledger.total_usd, rel=1e-12)


def test_budget_counts_calls_in_flight_and_stops():
    budget = Budget(1.0)
    budget.reserve(0.6)
    with pytest.raises(BudgetExceeded, match=r"could cost \$0.5, but \$0.6 of the budget of \$1"):
        budget.reserve(0.5)
    budget.settle(0.6, 0.1)
    budget.reserve(0.5)
    budget.settle(0.5, 0.0)
    assert (budget.spent_usd, budget.reserved_usd) == (0.1, 0.0)
    Budget(0.0).reserve(0.0)
