"""The bill on disk: written before a request leaves, whole after any end, and never in the way of the run."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.config.schema import BudgetConfig, ConfigError
from orchestra_jax.money.bill import bill, read_bill
from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits, Spending
from orchestra_jax.money.journal import Journal
from orchestra_jax.money.limits import Limiter
from orchestra_jax.money.paid import Lost, PaidCalls
from orchestra_jax.money.replay import Replay
from orchestra_jax.money.reservations import acquire
from orchestra_jax.money.run_budget import RunBudget
from orchestra_jax.money.store import Recorded
from orchestra_jax.types import InfrastructureError, Usage

WORST = Usage("gpt-5", prompt_tokens=100, completion_tokens=900, cost_usd=0.1)
PAID = Usage("gpt-5", prompt_tokens=90, completion_tokens=10, cost_usd=0.01)


def state(usd: float, tokens: int, calls: int, name: str = "gpt-5") -> dict:
    return {name: [str(calls * Fraction(usd)), calls * tokens, calls]}


def test_a_call_that_ends_after_the_bill_was_closed_writes_to_no_other_file(tmp_path: Path):
    journal = Journal(tmp_path / "spent.jsonl")
    call = journal.reserve(WORST)
    journal.close()
    # The other file gets the number of the closed one.
    with (tmp_path / "other").open("wb"), pytest.raises(OSError, match="Bad file descriptor"):
        journal.end(call, PAID)
    assert (tmp_path / "other").read_bytes() == b""
    assert bill(tmp_path) == ({}, state(0.1, 1000, 1))


async def test_the_worst_case_is_on_the_disk_before_a_request_leaves(tmp_path: Path):
    money = RunBudget(BudgetConfig(), tmp_path)
    reservation = await acquire(money.step(), WORST)
    assert bill(tmp_path) == ({}, state(0.1, 1000, 1))
    reservation.settle(PAID)
    assert bill(tmp_path) == (state(0.01, 100, 1), {})
    (await acquire(money.run, WORST)).release()
    assert bill(tmp_path) == (state(0.01, 100, 1), {})


KILLED = """
import asyncio, sys
from pathlib import Path
from orchestra_jax.config.schema import BudgetConfig
from orchestra_jax.money.limits import Limiter
from orchestra_jax.money.paid import PaidCalls
from orchestra_jax.money.reservations import acquire
from orchestra_jax.money.run_budget import RunBudget
from orchestra_jax.types import Usage

async def main():
    money = RunBudget(BudgetConfig(run_usd=0.45), Path(sys.argv[1]))
    for _ in range(2):
        (await acquire(money.run, Usage("gpt-5", cost_usd=0.1))).settle(Usage("gpt-5", cost_usd=0.01))
    await acquire(money.run, Usage("gpt-5", cost_usd=0.1))
    print("in flight", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_killed_run_has_spent_what_was_in_flight(tmp_path: Path):
    """The first work of a run, killed again and again, cannot spend more than its budget unseen."""
    for killed in range(1, 4):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "in flight\n"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        paid, in_flight = bill(tmp_path)
        assert in_flight == state(0.1, 0, 1)
        assert float(Fraction(paid["gpt-5"][0])) == pytest.approx(killed * 0.02 + (killed - 1) * 0.1)
    money = RunBudget(BudgetConfig(run_usd=0.45), tmp_path)
    assert money.spent.usd == pytest.approx(3 * 0.12)
    with pytest.raises(BudgetExceeded, match="the run could come to"):
        asyncio.run(acquire(money.run, WORST))


async def test_a_call_that_waits_for_a_place_is_not_in_flight(tmp_path: Path):
    """A kill charged at their worst for hundreds of calls that had never left."""
    money, sent, answer = RunBudget(BudgetConfig(), tmp_path), asyncio.Event(), asyncio.Event()
    calls = PaidCalls(Limiter(concurrency=1), replay=None, timeout_s=60.0, retries=0)

    async def send() -> Recorded:
        assert bill(tmp_path)[1] == state(0.1, 1000, 1)  # this one, on the disk before it leaves
        sent.set()
        await answer.wait()
        return Recorded("text", (PAID,))

    some = [asyncio.create_task(calls.call("chat", {"n": n}, WORST, send, budget=money.run)) for n in range(4)]
    await sent.wait()
    assert money.run.reserved.calls == 4
    assert bill(tmp_path) == ({}, state(0.1, 1000, 1))
    some.pop().cancel()
    answer.set()
    await asyncio.gather(*some)
    await calls.close()
    assert bill(tmp_path) == (state(0.01, 100, 3), {})
    assert money.run.reserved.calls == 0
    money.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        money.run.journal.reserve(WORST)


async def test_what_is_answered_while_the_run_ends_is_kept_and_what_waits_is_not_asked(tmp_path: Path):
    """The callers leave (a budget is used up, Ctrl-C), and everything is closed while a request is under way."""
    money, sent, replay = Budget(), list[int](), Replay(tmp_path / "calls.db", "replay_or_record")
    began, answer = asyncio.Event(), asyncio.Event()
    calls = PaidCalls(Limiter(concurrency=1), replay=replay, timeout_s=60.0, retries=0)

    def send(number: int):
        async def request() -> Recorded:
            sent.append(number)
            began.set()
            await answer.wait()
            return Recorded("text", (PAID,))

        return request

    some = [asyncio.create_task(calls.call("chat", {"n": n}, WORST, send(n), budget=money)) for n in range(3)]
    await began.wait()
    for each in some:
        each.cancel()
    closing = asyncio.create_task(calls.close())
    await asyncio.sleep(0)
    answer.set()
    await closing
    await replay.drain()
    replay.close()
    assert sent == [0]
    assert (money.spent.calls, money.reserved.calls) == (1, 0)
    again = Replay(tmp_path / "calls.db", "replay")
    assert (await again.call("chat", {"n": 0}, send(9))).value == "text"
    again.close()
    with pytest.raises(InfrastructureError, match="is closed"):
        await calls.call("chat", {"n": 4}, WORST, send(4), budget=money)


async def test_a_call_that_the_disk_notes_while_the_client_closes_is_not_sent(tmp_path: Path, monkeypatch):
    """The request would go out over a connection that `close` drops: paid, and without its answer."""
    money, sent, noting, noted = Budget(bill=tmp_path / "spent.jsonl"), list[int](), asyncio.Event(), asyncio.Event()
    journal, calls = money.journal, PaidCalls(Limiter(1), replay=None, timeout_s=60.0, retries=0)

    async def durable(call: int, worst: Usage) -> None:
        noting.set()
        await noted.wait()

    async def send() -> Recorded:
        sent.append(1)
        return Recorded("text", (PAID,))

    monkeypatch.setattr(journal, "durable", durable)
    call = asyncio.create_task(calls.call("chat", {}, WORST, send, budget=money))
    await noting.wait()
    await calls.close()
    noted.set()
    with pytest.raises(InfrastructureError, match="is closed"):
        await call
    assert (sent, money.spent.calls, money.reserved.calls) == ([], 0, 0)
    journal.close()
    assert bill(tmp_path)[1] == {}


@pytest.mark.parametrize(
    ("unit", "dear"),
    [("usd", {"cost_usd": 0.02}), ("tokens", {"prompt_tokens": 980}), ("tokens", {"completion_tokens": 970})],
)
async def test_a_provider_that_bills_more_than_the_worst_case_is_paid_so_for_what_had_left_only(unit: str, dear: dict):
    """64 calls at once, each billed at 20 times its worst case, under a budget of 100 worst cases."""
    worst = Usage("gpt-5", prompt_tokens=30, completion_tokens=20, cost_usd=0.001)
    each = {"usd": 0.02, "tokens": 1000}[unit]
    money, sent = Budget(Limits(**{unit: 5 * each})), list[int]()
    calls = PaidCalls(Limiter(8), replay=None, timeout_s=60.0, retries=0)

    async def send() -> Recorded:
        sent.append(1)
        await asyncio.sleep(0)
        return Recorded("text", (replace(worst, **dear),))

    some = [calls.call("chat", {}, worst, send, budget=money) for _ in range(64)]
    found = await asyncio.gather(*some, return_exceptions=True)
    assert len(sent) == 8
    assert [type(one) for one in found if not isinstance(one, Recorded)] == [BudgetExceeded] * 56
    assert getattr(money.spent, unit) == pytest.approx(8 * each)
    # Within the raised estimate, which is the bill, calls go on, at first one by one. What is left pays for no other.
    money.limits = Limits(**{unit: 38.9 * each})
    found = await asyncio.gather(
        *(calls.call("chat", {}, worst, send, budget=money) for _ in range(64)), return_exceptions=True
    )
    assert (len(sent), money.reserved.calls) == (8 + 30, 0)
    await calls.close()


@pytest.mark.parametrize(
    ("bills", "alone"),
    [([3.0, 3.0], 2), ([1.0209, 1.0209], 2), ([3.0, 9.0], 3), ([3.0, None], 3)],
    ids=["as estimated", "but for rounding", "again too high", "lost"],  # the last says nothing about the next bill
)
async def test_calls_are_made_one_by_one_after_a_bill_that_was_too_high_until_one_fits(bills, alone):
    """`bills` are those of the first calls, in worst cases; None: the answer is lost. All later ones are of one."""
    under_way, most, billed = 0, list[int](), iter([*bills, *[1.0] * 21])
    last, reserved = Budget(), list[Spending]()
    calls = PaidCalls(Limiter(4), replay=None, timeout_s=60.0, retries=0)

    async def send() -> Recorded | Lost:
        nonlocal under_way
        under_way += 1
        most.append(under_way)
        reserved.append(last.reserved)
        for _ in range(100):  # turns of the event loop, so that all that may start does
            await asyncio.sleep(0)
        under_way -= 1
        bill = next(billed)
        return Recorded("text", (replace(PAID, cost_usd=bill / 10),)) if bill else Lost("It broke.")

    await calls.call("chat", {}, WORST, send, budget=Budget())
    waiting = (calls.call("chat", {}, WORST, send, budget=Budget()) for _ in range(20))
    lost = [each for each in await asyncio.gather(*waiting, return_exceptions=True) if not isinstance(each, Recorded)]
    assert len(lost) == bills.count(None)
    assert most[: alone + 4] == [*[1] * alone, 1, 2, 3, 4]
    await calls.call("chat", {}, WORST, send, budget=last)
    dearest = max(filter(None, bills))  # the worst case now, in all parts
    assert reserved[-1].usd == pytest.approx(0.1 * dearest)
    assert 1000 * dearest <= reserved[-1].tokens < 1000 * dearest + 2
    await calls.close()


async def test_a_call_that_waits_for_a_place_is_estimated_anew_after_a_bill_that_was_too_high():
    """One of 3 worst cases and at once one that fits; then one of 2, by a call that began before both."""
    calls, sent, budgets = PaidCalls(Limiter(3), replay=None, timeout_s=60.0, retries=0), dict[str, Any](), {}

    async def begin(name: str) -> asyncio.Task[Recorded]:
        budgets[name], bill = Budget(), asyncio.get_running_loop().create_future()

        async def send() -> Recorded | Lost:
            sent[name] = bill
            usd = await bill
            return Recorded("text", (replace(PAID, cost_usd=usd),)) if usd else Lost("It broke.")

        task = asyncio.create_task(calls.call("chat", {}, WORST, send, budget=budgets[name]))
        await turns()
        return task

    async def turns(**bills: float | None) -> None:
        for name, usd in bills.items():
            sent[name].set_result(usd)
        for _ in range(50):
            await asyncio.sleep(0)

    made = [await begin(name) for name in "abcd"]
    await turns(a=0.3, b=0.1)
    assert list(sent) == ["a", "b", "c", "d"]
    assert [budgets[name].reserved.usd for name in "cd"] == pytest.approx([0.1, 0.3])
    made += [await begin(name) for name in "ef"]
    await turns(c=0.2)
    assert budgets["f"].reserved.usd == pytest.approx(0.3)
    made.append(await begin("g"))
    await turns(d=None)  # says nothing
    assert list(sent) == ["a", "b", "c", "d", "e", "f"]  # "g" could have a place, and "f" has to end first
    await turns(e=0.3, f=0.3)
    await turns(g=0.3)
    ended = await asyncio.gather(*made, return_exceptions=True)
    assert [type(one) for one in ended] == [*[Recorded] * 3, InfrastructureError, *[Recorded] * 3]
    await calls.close()


@pytest.mark.parametrize("worst", [Usage("own", prompt_tokens=5), Usage("search", cost_usd=0.1), Usage("free")])
async def test_a_call_without_a_price_or_without_tokens_is_made(worst: Usage):
    calls, budget = PaidCalls(Limiter(1), replay=None, timeout_s=60.0, retries=0), Budget()

    async def send() -> Recorded:
        return Recorded("text", (worst,))

    assert (await calls.call("chat", {}, worst, send, budget=budget)).usage == (worst,)
    assert budget.spent == Spending(worst.cost_usd, worst.prompt_tokens, 1)


def test_a_torn_last_line_is_a_request_that_never_left(tmp_path: Path):
    file = tmp_path / "spent.jsonl"
    journal = Journal(file)
    journal.end(journal.reserve(WORST), PAID)
    with file.open("ab") as stream:
        stream.write(b'{"call": 2, "name": "gpt-5", "wor')
    journal = Journal(file)
    assert journal.paid == state(0.01, 100, 1)
    journal.reserve(WORST)
    assert read_bill(file) == (state(0.01, 100, 1), state(0.1, 1000, 1))


def test_calls_that_cost_nothing_are_noted_and_read_again(tmp_path: Path):
    """A model of one's own has tokens and calls, and no price."""
    file, free = tmp_path / "spent.jsonl", Usage("own", prompt_tokens=5)
    journal = Journal(file)
    journal.end(journal.reserve(free), free)
    journal.reserve(free)
    assert read_bill(file) == (state(0.0, 5, 1, "own"), state(0.0, 5, 1, "own"))


def reserved(usd: str, tokens: str = "1", name: str = '"x"') -> str:
    return f'{{"call": 1, "name": {name}, "worst": [{usd}, {tokens}]}}'


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"call": 9}', '{"call": 1, "worst": [1]}', '{"spent": {"x": [1]}}', "\0", "[" * 100_000,
     '{"spent": {"x": ["1/0", 1, 1]}}', '{"spent": {"x": ["' + 9000 * "1" + '", 1, 1]}}',
     '{"spent": {"x": ["1e9999999999", 1, 1]}}', '{"spent": {"x": ["1", 1, -1]}}',
     reserved("NaN"), reserved("1e999"), reserved("-1"), reserved("null"), reserved("true"), reserved('"x"'),
     reserved("1", "[]"), reserved("1", "2.5"), reserved("1", "-2"), reserved("1", name="[1]"),
     reserved("1", name="null")],
)  # fmt: skip
def test_a_broken_line_is_said_in_a_sentence(tmp_path: Path, line: str):
    (tmp_path / "spent.jsonl").write_text(f'{line}\n{{"spent": {{}}}}\n')
    with pytest.raises(ConfigError, match=r"spent\.jsonl', line 1, is no line of the run's bill: restore the file"):
        RunBudget(BudgetConfig(), tmp_path)


def test_a_call_that_begins_twice_is_not_counted_once(tmp_path: Path):
    (tmp_path / "spent.jsonl").write_text(2 * f"{reserved('1')}\n")
    with pytest.raises(ConfigError, match=r"spent\.jsonl', line 2, is no line"):
        RunBudget(BudgetConfig(), tmp_path)


async def test_calls_at_once_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    syncs, fsync, disk = [], os.fsync, threading.Event()
    monkeypatch.setattr(os, "fsync", lambda file: (syncs.append(file), disk.wait(60), fsync(file)))
    disk.set()
    budget = Budget(bill=tmp_path / "spent.jsonl")
    await asyncio.gather(*(acquire(budget, WORST) for _ in range(50)))
    shared = len(syncs)
    assert 1 <= shared <= 2
    await acquire(budget, Usage("simulated"))
    assert len(syncs) == shared  # what is free need not wait for the disk
    disk.clear()
    first = asyncio.create_task(acquire(budget, WORST))
    while len(syncs) == shared:  # noqa: ASYNC110  a thread appends
        await asyncio.sleep(0.001)
    second = asyncio.create_task(acquire(budget, WORST))  # noted while the disk is busy: it needs a sync of its own
    gives_up = asyncio.create_task(acquire(budget, WORST))
    await asyncio.sleep(0)
    gives_up.cancel()  # the others go on waiting for the sync
    await asyncio.wait([gives_up])
    disk.set()
    await asyncio.gather(first, second)
    assert len(syncs) == shared + 2


@pytest.mark.parametrize("told", [True, False])  # a disk that fills up takes a part of a line, and tells the next write
async def test_a_full_disk_stops_the_paying_and_harms_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
):
    money, write = RunBudget(BudgetConfig(), tmp_path), os.write
    (await acquire(money.run, WORST)).settle(PAID)
    under_way = await acquire(money.run, WORST)

    def full(file: int, text: bytes) -> int:
        written = write(file, text[:10])
        if not told:
            return written
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(BudgetExceeded, match=r"bill cannot be written .*No space left") as refused:
        await acquire(money.run, WORST)
    assert refused.value.scope == ""
    under_way.settle(PAID)  # it was billed all the same
    assert money.spent.usd == 0.02
    monkeypatch.undo()
    (await acquire(money.run, WORST)).settle(PAID)
    assert bill(tmp_path) == (state(0.01, 100, 2), state(0.1, 1000, 1))


async def test_who_still_waits_for_a_request_that_is_cut_at_the_end_is_told():
    budget, begun = Budget(), asyncio.Event()

    async def send() -> Recorded:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    calls = PaidCalls(Limiter(1), replay=None, timeout_s=60.0, retries=3)
    waiting = asyncio.create_task(calls.call("chat", {}, WORST, send, budget=budget))
    await begun.wait()
    await calls.close(0.0)
    with pytest.raises(InfrastructureError, match="was closed before it answered"):
        await waiting
    assert (budget.spent.usd, budget.reserved.usd) == (0.1, 0.0)
