"""Budgets: no limit is ever exceeded, at any level, by any interleaving; totals are exact; a state survives JSON."""

import asyncio
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra_jax.money import reservations
from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits, Spending
from orchestra_jax.money.reservations import Reservation, acquire
from orchestra_jax.types import Usage


class InTheWay(Exception):  # noqa: N818  named like the fact it states
    """Only calls in flight are in the way: `acquire` would wait."""


def reserve(budget: Budget, worst: Usage) -> Reservation:
    """`acquire` without an event loop, as far as it gets without waiting."""
    coroutine = acquire(budget, worst)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    except RuntimeError:  # there is no loop to wait in
        raise InTheWay from None
    raise AssertionError("It waits without a loop.")


def spend(budget: Budget, *rows: Usage) -> None:
    for each in rows:
        reserve(budget, each).settle(each)


def row(usd: float = 0.0, tokens: int = 0, name: str = "m", role: str = "tool") -> Usage:
    return Usage(name, role, prompt_tokens=tokens - tokens // 3, completion_tokens=tokens // 3, cost_usd=usd)


def test_a_call_in_flight_counts_with_its_worst_case():
    budget = Budget(Limits(usd=1.0))
    first = reserve(budget, row(0.6))
    with pytest.raises(InTheWay):
        reserve(budget, row(0.5))
    first.settle(row(0.1))
    assert (budget.spent, budget.reserved) == (Spending(0.1, 0, 1), Spending())
    with pytest.raises(BudgetExceeded) as caught:
        reserve(budget, row(1.0, name="gpt-5"))
    assert caught.value.scope == "run"
    assert str(caught.value) == (
        "With the next call of 'gpt-5' the run could come to 1.1 dollars, but its budget is 1; raise it to go on."
    )
    reserve(budget, row(0.5)).release()
    assert (budget.spent, budget.reserved) == (Spending(0.1, 0, 1), Spending())


@pytest.mark.parametrize(
    ("limits", "unit"),
    [(Limits(tokens=100), "100 tokens"), (Limits(calls=3), "3 calls"), (Limits(usd=3.0), "3 dollars")],
)
def test_every_unit_has_a_limit_that_can_be_reached_and_not_passed(limits: Limits, unit: str):
    budget = Budget(limits)
    worst = row(1.0, tokens=33)
    for _ in range(3):
        reserve(budget, worst).settle(worst)
    with pytest.raises(BudgetExceeded, match=f"could come to 13[0-9]* tokens|could come to 4 {unit.split()[1]}"):
        reserve(budget, worst)
    assert budget.spent == Spending(3.0, 99, 3)


def test_ten_calls_of_ten_cents_are_a_dollar():
    """0.1 is a little more than a tenth in binary; what is compared is the sum as it is reported."""
    budget = Budget(Limits(usd=1.0))
    for _ in range(10):
        reserve(budget, row(0.1)).settle(row(0.1))
    assert budget.spent.usd == 1.0
    with pytest.raises(BudgetExceeded):
        reserve(budget, row(1e-15))


def test_the_outermost_level_refuses_and_nothing_is_set_aside_anywhere():
    run = Budget(Limits(usd=1.0))
    step = Budget(Limits(tokens=12), name="step", parent=run)
    one, other = (Budget(Limits(tokens=10), name="trajectory", parent=step) for _ in range(2))
    reserve(one, row(0.25, tokens=4)).settle(row(0.25, tokens=3))
    with pytest.raises(BudgetExceeded) as caught:
        reserve(one, row(0.1, tokens=8))
    assert caught.value.scope == "trajectory"
    with pytest.raises(BudgetExceeded) as caught:
        reserve(one, row(0.8, tokens=8))
    assert caught.value.scope == "run"
    with pytest.raises(BudgetExceeded) as caught:
        reserve(other, row(0.01, tokens=10))
    assert caught.value.scope == "step"
    assert [level.reserved for level in (run, step, one, other)] == [Spending()] * 4
    assert run.spent == step.spent == one.spent == Spending(0.25, 3, 1)
    assert other.spent == Spending()


def test_a_reservation_ends_once():
    budget = Budget()
    reservation = reserve(budget, row(1.0))
    reservation.release()
    reservation.release()
    with pytest.raises(RuntimeError, match="acquire one per call"):
        reservation.settle(row(1.0))
    reservation = reserve(budget, row(1.0))
    reservation.settle(row(0.5, name="a"))
    reservation.release()
    assert (budget.spent, budget.reserved) == (Spending(0.5, 0, 1), Spending())


def test_the_state_survives_json_and_counts_calls_in_flight():
    parent = Budget(Limits(usd=10.0))
    budget = Budget(parent=parent, name="step")
    spend(budget, row(0.1, 5, "a"), row(0.2, 7, "a"), row(1 / 3, 1, "b"))
    settled = json.loads(json.dumps(budget.get_state()))
    reserve(budget, row(0.7, 9, "c"))
    restored, later = Budget(Limits(usd=1.0)), Budget()
    restored.set_state(settled)
    assert restored.by_name() == budget.by_name()
    assert restored.spent == budget.spent
    assert restored.get_state() == settled
    spend(later, row(9.0, name="d"))  # its own is replaced
    later.set_state(json.loads(json.dumps(parent.get_state())))
    assert later.by_name() == {**budget.by_name(), "c": Spending(0.7, 9, 1)}
    with pytest.raises(BudgetExceeded):
        reserve(restored, row(0.5))


def test_what_a_state_holds_is_not_rounded():
    """Two of the smallest amounts change a dollar; one alone is rounded away in the sum that is reported."""
    budget, restored = Budget(), Budget()
    spend(budget, row(1.0), row(2.0**-53))
    restored.set_state(json.loads(json.dumps(budget.get_state())))
    assert restored.spent.usd == 1.0
    spend(restored, row(2.0**-53))
    assert restored.spent.usd == restored.by_name()["m"].usd == 1.0 + 2.0**-52


def test_impossible_limits():
    for limits in ({"usd": -1.0}, {"usd": float("nan")}, {"tokens": -1}, {"calls": -1}):
        with pytest.raises(ValueError, match="must be at least 0"):
            Limits(**limits)  # type: ignore[arg-type]
    with pytest.raises(BudgetExceeded):
        reserve(Budget(Limits(calls=0)), row())
    reserve(Budget(Limits(usd=0.0)), row(tokens=5)).settle(row(tokens=5))


def test_the_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(BudgetExceeded("one sentence.", "step")))
    assert (str(error), error.scope) == ("one sentence.", "step")


@dataclass(eq=False)  # two budgets with equal limits are two
class Model:
    """A budget as sums over lists."""

    limits: Limits
    parent: "Model | None"
    spent: list[Usage] = field(default_factory=list)
    reserved: list[Usage] = field(default_factory=list)

    def levels(self) -> list["Model"]:
        return [self, *(self.parent.levels() if self.parent else [])]

    def fits(self, worst: Usage, in_flight: bool = True) -> bool:
        return within(self.limits, total([*self.spent, *(self.reserved if in_flight else []), worst]))


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
# (action, which budget or reservation, worst case, the part of it that is billed)
ACTION = st.tuples(
    st.sampled_from(["reserve", "reserve", "settle", "release", "restore"]), st.integers(0, 99), ROW, st.floats(0, 1)
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
    in_flight: list[tuple[Reservation, Model, Usage]] = []
    for action, which, worst, billed in actions:
        if action == "reserve":
            index = which % len(budgets)
            levels = models[index].levels()
            if never := [level for level in levels if not level.fits(worst, in_flight=False)]:
                with pytest.raises(BudgetExceeded) as caught:
                    reserve(budgets[index], worst)
                assert caught.value.scope == str(models.index(never[-1]))
            elif not all(level.fits(worst) for level in levels):
                with pytest.raises(InTheWay):
                    reserve(budgets[index], worst)
            else:
                in_flight.append((reserve(budgets[index], worst), models[index], worst))
                for level in levels:
                    level.reserved.append(worst)
        elif action == "restore":
            index = which % len(budgets)
            if not models[index].reserved:
                budgets[index].set_state(json.loads(json.dumps(budgets[index].get_state())))
        elif in_flight:
            reservation, model, worst = in_flight.pop(which % len(in_flight))
            tokens = int(billed * (worst.prompt_tokens + worst.completion_tokens))
            paid = [row(billed * worst.cost_usd, tokens, worst.name)] if action == "settle" else []
            reservation.settle(*paid) if action == "settle" else reservation.release()
            for level in model.levels():
                level.reserved.remove(worst)
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


async def test_a_thousand_callers_at_once_on_a_hundred_trajectories_never_exceed():
    run = Budget(Limits(usd=7.0, tokens=60_000, calls=900))
    trajectories = [Budget(Limits(usd=0.5), name="trajectory", parent=run) for _ in range(100)]
    worst, over, refused = row(0.1, tokens=1000), list[bool](), list[BudgetExceeded]()

    async def call(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            reservation = await acquire(trajectories[seed % 100], worst)
        except BudgetExceeded as error:
            refused.append(error)
            return
        for _ in range(int(rng.integers(1, 5))):
            await asyncio.sleep(0)
            over.append(not within(run.limits, run.spent) or run.reserved.usd + run.spent.usd > 7.0 + 1e-9)
        if rng.random() < 0.9:
            share = rng.random()
            reservation.settle(row(0.1 * share, tokens=int(1000 * share)))
        else:
            reservation.release()

    await asyncio.gather(*map(call, range(1000)))
    for budget in (run, *trajectories):
        assert within(budget.limits, budget.spent)
        assert budget.reserved == Spending()
    assert run.spent.calls == sum(budget.spent.calls for budget in trajectories)
    assert run.spent.tokens == sum(budget.spent.tokens for budget in trajectories)
    assert not any(over)
    assert refused
    # A caller that waits is refused by what was spent, not by what might have been.
    assert run.spent.usd > 6.9 or run.spent.tokens > 59_000


async def test_acquire_waits_for_calls_in_flight_only():
    run = Budget(Limits(usd=1.0))
    trajectory = Budget(Limits(tokens=4), name="trajectory", parent=run)
    first = reserve(run, row(0.9))
    waiting = asyncio.create_task(acquire(trajectory, row(0.5)))
    gives_up = asyncio.create_task(acquire(trajectory, row(0.5)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    gives_up.cancel()
    with pytest.raises(BudgetExceeded):  # not even an empty run could take it: no use to wait
        await acquire(run, row(1.1))
    with pytest.raises(BudgetExceeded) as caught:
        await acquire(trajectory, row(0.1, tokens=5))
    assert caught.value.scope == "trajectory"
    first.settle(row(0.2))
    (await waiting).settle(row(0.5))
    assert run.spent == Spending(0.7, 0, 2)
    assert gives_up.cancelled()


async def test_a_call_whose_turn_has_come_at_one_level_may_wait_at_another():
    run = Budget(Limits(usd=1.0))
    trajectory = Budget(Limits(usd=0.6), name="trajectory", parent=run)
    first = reserve(trajectory, row(0.5))
    waiting = asyncio.create_task(acquire(trajectory, row(0.5)))  # at the trajectory: the run has room for it
    await asyncio.sleep(0)
    other = reserve(run, row(0.5))
    first.settle(row(0.1))  # now the trajectory has, and the run has not
    await asyncio.sleep(0.01)
    assert not waiting.done()
    other.release()
    (await asyncio.wait_for(waiting, 5)).settle(row(0.5))
    assert (run.spent, run.reserved) == (Spending(0.6, 0, 2), Spending())


async def test_those_that_wait_go_on_in_their_order_and_a_settlement_looks_at_few(monkeypatch):
    """Hundreds that wait would else look at the budget again at every settlement."""
    run, order, looks, look = Budget(Limits(usd=1.0)), [], [], reservations._set_aside
    monkeypatch.setattr(reservations, "_set_aside", lambda *call: looks.append(call) or look(*call))

    async def one(number: int) -> None:
        reservation = await acquire(run, row(1.0))
        order.append(number)
        await asyncio.sleep(0)
        reservation.settle(row(0.0))

    await asyncio.gather(*map(one, range(300)))
    assert order == list(range(300))
    assert len(looks) <= 4 * 300


async def test_who_gives_up_when_its_turn_has_come_makes_room_for_the_next():
    run = Budget(Limits(usd=1.0))
    first = await acquire(run, row(1.0))
    gives_up, waits = (asyncio.create_task(acquire(run, row(1.0))) for _ in range(2))
    await asyncio.sleep(0)
    first.release()
    gives_up.cancel()
    (await waits).settle(row(0.5))
    assert gives_up.cancelled()
    assert (run.spent, run.reserved) == (Spending(0.5, 0, 1), Spending())


def test_other_threads_read_while_calls_are_made():
    run, ended, seen = Budget(), threading.Event(), []
    step = Budget(name="step", parent=run)

    def read() -> None:
        while not ended.is_set():
            seen.append(sum(calls for _, _, calls in run.get_state().values()))
            assert sum(spent.calls for spent in run.by_name().values()) <= 2000

    async def spend() -> None:
        for number in range(2000):
            (await acquire(step, row(0.1, name=str(number)))).settle(row(0.1, name=str(number)))

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            asyncio.run(spend())
        finally:
            ended.set()
        reader.result(60)
    assert seen == sorted(seen)  # a call is never counted twice, nor in part
