"""The budget of a run in several processes: shares of what is left, a file each, and a restart with fewer."""

import asyncio
import os
from pathlib import Path

import pytest

from orchestra_jax.config.schema import BudgetConfig
from orchestra_jax.money.bill import bill
from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits, Spending
from orchestra_jax.money.reservations import acquire
from orchestra_jax.money.run_budget import RunBudget
from orchestra_jax.types import Usage
from tests.processes.others import Prepared


def pay(budget: Budget, usd: float, name: str = "gpt-5") -> None:
    row = Usage(name, cost_usd=usd, prompt_tokens=10)
    asyncio.run(acquire(budget, row)).settle(row)


def test_each_process_gets_its_share_of_what_is_left(tmp_path: Path):
    processes = Prepared(1, 4)
    money = RunBudget(BudgetConfig(run_usd=10.0, run_calls=11, step_usd=2.0, step_tokens=90), tmp_path, processes)
    pay(money.run, 1.0)
    processes.others = [{"gpt-5": ["2", 10, 1]}, {}, {"judge": ["1", 10, 1]}]
    money.share()
    # 6 dollars and 8 calls are left for four processes; this one has spent a dollar and a call already.
    assert money.run.limits == Limits(usd=2.5, calls=3)
    assert money.spent == Spending(4.0, 30, 3)
    steps = [RunBudget(BudgetConfig(step_tokens=90), tmp_path, Prepared(p, 4)).step() for p in range(4)]
    assert [step.limits.tokens for step in steps] == [23, 23, 22, 22]
    steps = [RunBudget(BudgetConfig(step_tokens=5), tmp_path, Prepared(p, 2)).step() for p in range(2)]
    assert [step.limits.tokens for step in steps] == [3, 2]
    step = money.step()
    pay(step, 0.5)
    with pytest.raises(BudgetExceeded, match=r"the step could come to 0\.6 dollars"):
        pay(step, 0.1)
    assert money.summary() == {
        "usd": 4.5, "tokens": 40, "calls": 4,
        "by_name": {
            "gpt-5": {"usd": 3.5, "tokens": 30, "calls": 3}, "judge": {"usd": 1.0, "tokens": 10, "calls": 1},
        },
    }  # fmt: skip
    # Dealt out anew from the limits of the run: 5.5 dollars and 7 calls are left.
    states, processes.others = [processes.others[0], money.run.get_state(), *processes.others[1:]], []
    money.share(states)
    assert money.run.limits == Limits(usd=1.5 + 5.5 / 4, calls=2 + 2)
    assert money.spent == Spending(4.5, 40, 4)


def test_what_is_overdrawn_is_nobodys_share(tmp_path: Path):
    money = RunBudget(BudgetConfig(run_usd=1.0), tmp_path, Prepared(0, 2, [{"x": ["3", 0, 1]}]))
    pay(money.run, 0.4)
    money.share()
    assert money.run.limits.usd == pytest.approx(0.4)


def test_each_process_has_a_file_and_those_of_lost_ones_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for index in range(3):
        money = RunBudget(BudgetConfig(), tmp_path, Prepared(index, 3))
        pay(money.run, 1.0 + index)
        if index == 2:  # a call of it is in flight at its end
            asyncio.run(acquire(money.run, Usage("judge", cost_usd=0.5, prompt_tokens=7)))
        money.close()
    ends, sync, unlink = list[str](), os.fsync, Path.unlink
    monkeypatch.setattr(os, "fsync", lambda file: ends.append("sync") or sync(file))
    monkeypatch.setattr(Path, "unlink", lambda file: ends.append("unlink") or unlink(file))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spent-1.jsonl", "spent-2.jsonl", "spent.jsonl"]
    assert RunBudget(BudgetConfig(), tmp_path, Prepared(1, 2)).run.spent.usd == 2.0  # the first takes them
    first = RunBudget(BudgetConfig(), tmp_path, Prepared(0, 2))
    assert first.run.spent == Spending(1.0 + 3.0 + 0.5, 27, 3)
    assert ends == ["sync", "unlink"]  # a loss of power in between loses no line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spent-1.jsonl", "spent.jsonl"]
    paid, in_flight = bill(tmp_path)
    assert (paid["gpt-5"][2], paid["judge"], in_flight) == (3, ["1/2", 7, 1], {})
    assert RunBudget(BudgetConfig(), tmp_path, Prepared(1, 2)).run.spent.usd == pytest.approx(2.0)
    assert RunBudget(BudgetConfig(), tmp_path, Prepared(4, 5)).run.spent.usd == 0
    assert RunBudget(BudgetConfig(), tmp_path).summary()["by_name"] == {
        "gpt-5": {"usd": 6.0, "tokens": 30, "calls": 3},
        "judge": {"usd": 0.5, "tokens": 7, "calls": 1},
    }


def test_a_lost_process_may_be_the_only_one_that_paid(tmp_path: Path):
    pay(RunBudget(BudgetConfig(), tmp_path, Prepared(1, 2)).run, 0.5)
    assert RunBudget(BudgetConfig(), tmp_path, Prepared(0, 1)).run.spent.usd == 0.5


def test_the_dearest_name_comes_first(tmp_path: Path):
    money = RunBudget(BudgetConfig(), tmp_path)
    for usd, name in ((1.0, "a"), (3.0, "b"), (2.0, "c")):
        pay(money.run, usd, name)
    assert list(money.summary()["by_name"]) == ["b", "c", "a"]
