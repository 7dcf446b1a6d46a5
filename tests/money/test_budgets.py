"""Budgets: no limit is ever exceeded, at any level, by any interleaving; totals are exact; a state survives JSON."""

import asyncio
import json
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits, Reservation, Spending
from orchestra_jax.money.forecast import Forecast, predict
from orchestra_jax.money.prices import MissingPrice, Price, PriceList
from orchestra_jax.types import Usage


def row(usd: float = 0.0, tokens: int = 0, name: str = "m", role: str = "tool") -> Usage:
    return Usage(name, role, prompt_tokens=tokens - tokens // 3, completion_tokens=tokens // 3, cost_usd=usd)


def test_a_call_in_flight_counts_with_its_worst_case():
    budget = Budget(Limits(usd=1.0))
    first = budget.reserve(row(0.6))
    with pytest.raises(BudgetExceeded) as caught:
        budget.reserve(row(0.5, name="gpt-5"))
    assert caught.value.scope == "run"
    assert str(caught.value) == (
        "With the next call of 'gpt-5' the run could come to 1.1 dollars, but its budget is 1; raise it to go on."
    )
    first.settle(row(0.1))
    assert (budget.spent, budget.reserved) == (Spending(0.1, 0, 1), Spending())
    budget.reserve(row(0.5)).release()
    assert (budget.spent, budget.reserved) == (Spending(0.1, 0, 1), Spending())


@pytest.mark.parametrize(
    ("limits", "unit"),
    [(Limits(tokens=100), "100 tokens"), (Limits(calls=3), "3 calls"), (Limits(usd=3.0), "3 dollars")],
)
def test_every_unit_has_a_limit_that_can_be_reached_and_not_passed(limits: Limits, unit: str):
    budget = Budget(limits)
    worst = row(1.0, tokens=33)
    for _ in range(3):
        budget.reserve(worst).settle(worst)
    with pytest.raises(BudgetExceeded, match=f"could come to 13[0-9]* tokens|could come to 4 {unit.split()[1]}"):
        budget.reserve(worst)
    assert budget.spent == Spending(3.0, 99, 3)


def test_ten_calls_of_ten_cents_are_a_dollar():
    """0.1 is a little more than a tenth in binary; what is compared is the sum as it is reported."""
    budget = Budget(Limits(usd=1.0))
    for _ in range(10):
        budget.reserve(row(0.1)).settle(row(0.1))
    assert budget.spent.usd == 1.0
    with pytest.raises(BudgetExceeded):
        budget.reserve(row(1e-15))


def test_the_outermost_level_refuses_and_nothing_is_set_aside_anywhere():
    run = Budget(Limits(usd=1.0))
    step = Budget(Limits(calls=5), name="step", parent=run)
    one, other = (Budget(Limits(tokens=10), name="trajectory", parent=step) for _ in range(2))
    one.reserve(row(0.25, tokens=4)).settle(row(0.25, tokens=3))
    with pytest.raises(BudgetExceeded) as caught:
        one.reserve(row(0.1, tokens=8))
    assert caught.value.scope == "trajectory"
    with pytest.raises(BudgetExceeded) as caught:
        one.reserve(row(0.8, tokens=8))
    assert caught.value.scope == "run"
    with pytest.raises(BudgetExceeded) as caught:
        other.reserve(row(0.01), calls=5)
    assert caught.value.scope == "step"
    assert [level.reserved for level in (run, step, one, other)] == [Spending()] * 4
    assert run.spent == step.spent == one.spent == Spending(0.25, 3, 1)
    assert other.spent == Spending()


def test_billed_retries_are_rows_of_one_reservation():
    budget = Budget(Limits(usd=1.0))
    reservation = budget.reserve(row(0.2, tokens=30), calls=3)
    assert budget.reserved == Spending(pytest.approx(0.6), 90, 3)
    reservation.settle(row(0.2, tokens=30), row(0.1, tokens=20))
    assert budget.spent == Spending(pytest.approx(0.3), 50, 2)
    assert budget.reserved == Spending()


def test_a_reservation_ends_once():
    budget = Budget()
    reservation = budget.reserve(row(1.0))
    reservation.settle()
    reservation.release()
    with pytest.raises(RuntimeError, match="reserve each call anew"):
        reservation.settle(row(1.0))
    with pytest.raises(KeyError), budget.reserve(row(1.0)):
        raise KeyError
    with budget.reserve(row(1.0)) as reservation:
        reservation.settle(row(0.5, name="a"))
    assert (budget.spent, budget.reserved) == (Spending(0.5, 0, 1), Spending())


def test_only_what_leaves_the_machine_is_counted():
    budget = Budget()
    budget.charge(*(row(1.0, name=role, role=role) for role in ("tool", "judge", "user_simulator", "orchestrator")))
    assert budget.by_name() == {name: Spending(1.0, 0, 1) for name in ("tool", "judge", "user_simulator")}
    assert budget.spent == Spending(3.0, 0, 3)


def test_the_state_survives_json_and_counts_calls_in_flight():
    parent = Budget(Limits(usd=10.0))
    budget = Budget(parent=parent, name="step")
    budget.charge(row(0.1, 5, "a"), row(0.2, 7, "a"), row(1 / 3, 1, "b"))
    settled = json.loads(json.dumps(budget.get_state()))
    budget.reserve(row(0.7, 9, "c"))
    restored, later = Budget(Limits(usd=1.0)), Budget()
    restored.set_state(settled)
    assert restored.by_name() == budget.by_name()
    assert restored.spent == budget.spent
    assert restored.get_state() == settled
    later.set_state(json.loads(json.dumps(parent.get_state())))
    assert later.by_name() == {**budget.by_name(), "c": Spending(0.7, 9, 1)}
    with pytest.raises(BudgetExceeded):
        restored.reserve(row(0.5))


def test_impossible_limits():
    for limits in ({"usd": -1.0}, {"usd": float("nan")}, {"tokens": -1}, {"calls": -1}):
        with pytest.raises(ValueError, match="must be at least 0"):
            Limits(**limits)  # type: ignore[arg-type]
    with pytest.raises(BudgetExceeded):
        Budget(Limits(calls=0)).reserve(row())
    Budget(Limits(usd=0.0)).reserve(row(tokens=5)).settle(row(tokens=5))
    with pytest.raises(ValueError, match="at least one call, not 0"):
        Budget().reserve(row(), calls=0)


def test_the_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(BudgetExceeded("one sentence.", "step")))
    assert (str(error), error.scope) == ("one sentence.", "step")


@dataclass
class Model:
    """A budget as sums over lists."""

    limits: Limits
    parent: "Model | None"
    spent: list[Usage] = field(default_factory=list)
    reserved: list[Usage] = field(default_factory=list)

    def levels(self) -> list["Model"]:
        return [self, *(self.parent.levels() if self.parent else [])]

    def fits(self, worst: list[Usage]) -> bool:
        return within(self.limits, total([*self.spent, *self.reserved, *worst]))


def total(rows: list[Usage]) -> Spending:
    usd = sum((Fraction(r.cost_usd) for r in rows), Fraction(0))
    return Spending(float(usd), sum(r.prompt_tokens + r.completion_tokens for r in rows), len(rows))


def within(limits: Limits, used: Spending) -> bool:
    return all(
        limit is None or amount <= limit
        for limit, amount in ((limits.usd, used.usd), (limits.tokens, used.tokens), (limits.calls, used.calls))
    )


LIMITS = st.builds(
    Limits,
    usd=st.none() | st.floats(0, 3),
    tokens=st.none() | st.integers(0, 30),
    calls=st.none() | st.integers(0, 12),
)
ROW = st.builds(row, st.floats(0, 1), st.integers(0, 9), st.sampled_from(["a", "b"]))
# (action, which budget or reservation, worst case, calls, the part of the worst case that is billed)
ACTION = st.tuples(
    st.sampled_from(["reserve", "reserve", "settle", "release", "restore"]),
    st.integers(0, 99),
    ROW,
    st.integers(1, 3),
    st.integers(0, 3),
)


@settings(max_examples=300)
@given(st.lists(st.tuples(LIMITS, st.integers(0, 99)), min_size=1, max_size=6), st.lists(ACTION, max_size=40))
def test_any_interleaving_agrees_with_a_model_and_exceeds_nothing(tree, actions):
    budgets: list[Budget] = []
    models: list[Model] = []
    for limits, parent in tree:
        above = parent % len(budgets) if budgets else None
        budgets.append(Budget(limits, name=str(len(budgets)), parent=None if above is None else budgets[above]))
        models.append(Model(limits, None if above is None else models[above]))
    in_flight: list[tuple[Reservation, Model, list[Usage]]] = []
    for action, which, worst, calls, billed in actions:
        if action == "reserve":
            index, rows = which % len(budgets), [worst] * calls
            refusing = [level for level in models[index].levels() if not level.fits(rows)]
            if refusing:
                with pytest.raises(BudgetExceeded) as caught:
                    budgets[index].reserve(worst, calls)
                assert caught.value.scope == str(models.index(refusing[-1]))
                continue
            in_flight.append((budgets[index].reserve(worst, calls), models[index], rows))
            for level in models[index].levels():
                level.reserved += rows
        elif action == "restore":
            index = which % len(budgets)
            if not models[index].reserved:
                budgets[index].set_state(json.loads(json.dumps(budgets[index].get_state())))
        elif in_flight:
            reservation, model, rows = in_flight.pop(which % len(in_flight))
            paid = rows[: billed % (len(rows) + 1)] if action == "settle" else []
            reservation.settle(*paid) if action == "settle" else reservation.release()
            for level in model.levels():
                for each in rows:
                    level.reserved.remove(each)
                level.spent += paid
        for budget, model in zip(budgets, models, strict=True):
            assert budget.spent == total(model.spent)
            assert budget.reserved == total(model.reserved)
            assert budget.by_name() == {
                name: total([r for r in model.spent if r.name == name]) for name in {r.name for r in model.spent}
            }
            assert within(budget.limits, budget.spent)
    for reservation, _, _ in in_flight:
        reservation.release()
    assert [budget.reserved for budget in budgets] == [Spending()] * len(budgets)


async def storm(run: Budget, call: Callable[[Budget, np.random.Generator], object]) -> tuple[int, int]:
    """1,000 callers at once on 100 trajectories; returns (calls made, calls refused)."""
    trajectories = [Budget(Limits(usd=0.5), name="trajectory", parent=run) for _ in range(100)]

    async def one(seed: int) -> bool:
        try:
            await call(trajectories[seed % 100], np.random.default_rng(seed))  # type: ignore[misc]
        except BudgetExceeded:
            return False
        return True

    made = await asyncio.gather(*(one(seed) for seed in range(1000)))
    for budget in (run, *trajectories):
        assert within(budget.limits, budget.spent)
        assert budget.reserved == Spending()
    assert run.spent.calls == sum(budget.spent.calls for budget in trajectories)
    assert run.spent.tokens == sum(budget.spent.tokens for budget in trajectories)
    return sum(made), 1000 - sum(made)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_thousand_callers_at_once_never_exceed(waits: bool):
    run = Budget(Limits(usd=7.0, tokens=60_000, calls=900))
    worst = row(0.1, tokens=1000)
    over = []

    async def call(budget: Budget, rng: np.random.Generator) -> None:
        with await budget.acquire(worst) if waits else budget.reserve(worst) as reservation:
            for _ in range(int(rng.integers(1, 5))):
                await asyncio.sleep(0)
                over.append(not within(run.limits, run.spent) or run.reserved.usd + run.spent.usd > 7.0 + 1e-9)
            if rng.random() < 0.9:
                share = rng.random()
                reservation.settle(row(0.1 * share, tokens=int(1000 * share)))

    made, refused = await storm(run, call)
    assert not any(over)
    assert refused > 0
    # Who waits is refused by what was spent, not by what might have been.
    assert run.spent.usd > 6.9 or run.spent.tokens > 59_000 if waits else made <= 200


async def test_acquire_waits_for_calls_in_flight_only():
    run = Budget(Limits(usd=1.0))
    trajectory = Budget(Limits(calls=2), name="trajectory", parent=run)
    first = run.reserve(row(0.9))
    waiting = asyncio.create_task(trajectory.acquire(row(0.5)))
    gives_up = asyncio.create_task(trajectory.acquire(row(0.5)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    gives_up.cancel()
    with pytest.raises(BudgetExceeded):  # not even an empty run could take it: no use to wait
        await run.acquire(row(1.1))
    with pytest.raises(BudgetExceeded) as caught:
        await trajectory.acquire(row(0.1), calls=3)
    assert caught.value.scope == "trajectory"
    first.settle(row(0.2))
    (await waiting).settle(row(0.5))
    assert run.spent == Spending(0.7, 0, 2)
    assert gives_up.cancelled()


async def test_acquire_hears_of_a_call_that_ends_in_another_thread():
    budget = Budget(Limits(usd=1.0))
    first = budget.reserve(row(1.0))
    timer = threading.Timer(0.05, first.release)
    timer.start()
    async with asyncio.timeout(30):
        (await budget.acquire(row(1.0))).settle(row(0.5))
    assert budget.spent.usd == 0.5


def test_threads_never_exceed():
    run = Budget(Limits(calls=500, usd=0.005))

    def work(seed: int) -> int:
        budget, done = Budget(name="trajectory", parent=run), 0
        for _ in range(200):
            try:
                budget.reserve(row(1e-5)).settle(row(1e-5))
            except BudgetExceeded:
                continue
            done += 1
        return done

    with ThreadPoolExecutor(8) as pool:
        made = sum(pool.map(work, range(8)))
    assert made == 500
    assert (run.spent, run.reserved) == (Spending(0.005, 0, 500), Spending())


def test_forecast_by_hand():
    ledgers = [
        [row(0.1, 10, "a"), row(0.3, 30, "b"), row(5.0, 99, "policy", "orchestrator")],
        [row(0.2, 20, "a"), row(0.2, 20, "a", "judge")],
    ]
    a, b, total = predict(iter(ledgers), 10)
    assert a == Forecast("a", 15.0, 250.0, pytest.approx(2.5), pytest.approx(4.0))
    assert b == Forecast("b", 5.0, 150.0, pytest.approx(1.5), pytest.approx(3.0))
    assert total == Forecast("total", 20.0, 400.0, pytest.approx(4.0), pytest.approx(4.0))


def test_forecast_under_another_price_list():
    prices = PriceList("t", "d", "s", {"a": Price(input=1.0, output=2.0)})
    made_up = [[Usage("a", prompt_tokens=3000, completion_tokens=1000)] * 2]
    assert predict(made_up, 128, prices)[-1].usd == pytest.approx(128 * 2 * (3000 + 2000) / 1e6)
    with pytest.raises(MissingPrice):
        predict([[row(name="b")]], 1, prices)
    with pytest.raises(ValueError, match="at least one trajectory"):
        predict([], 1)
    assert predict([[]], 8) == (Forecast("total", 0.0, 0.0, 0.0, 0.0),)
