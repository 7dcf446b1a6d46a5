"""Latency and deadlines are those of a trajectory's own work, whatever else runs: on a clock that jumps."""

import asyncio
from dataclasses import replace

import pytest

from orchestra_jax.io.stopwatch import queued
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.limits import Limiter
from orchestra_jax.money.paid import PaidCalls
from orchestra_jax.money.reservations import acquire
from orchestra_jax.money.store import Recorded
from orchestra_jax.rl.groups import group_arrays
from orchestra_jax.types import InfrastructureError, Status, ToolResult, Usage
from tests.rollout.scripted import ANSWER, LIMITS, TASK, FakeEngine, call, make, says

TURN_S, CALL_S = 0.05, 0.3
# Without price and latency of the menu: what is charged is what was measured.
MEASURED = replace(TASK, tools=tuple(replace(spec, price_usd=None, latency_s=None) for spec in TASK.tools))


class SlowEngine(FakeEngine):
    """Every generation takes a while, and only so many run at once."""

    def __init__(self, chat, script, slots):
        super().__init__(chat, script)
        self.slots = asyncio.Semaphore(slots)

    async def generate(self, prompt_ids, params, *, session=None):
        await queued(self.slots.acquire())
        try:
            await asyncio.sleep(TURN_S)
            return await super().generate(prompt_ids, params, session=session)
        finally:
            self.slots.release()


def sleeping(seconds, limiter=None):
    """A tool that takes a while, also one that a limiter lets only a few at once have."""

    async def handle(arguments, budget):
        if limiter is not None:
            await limiter.acquire()
        try:
            await asyncio.sleep(seconds[arguments["x"]] if isinstance(seconds, dict) else seconds)
        finally:
            if limiter is not None:
                limiter.release()
        return ToolResult(arguments["x"])

    return handle


def collect(run, collector, script, *, slots=20, members=1, task=MEASURED, budget=None):
    async def main():
        engine = SlowEngine(collector.chat, script, slots)
        return await collector.collect(engine, [task], group_size=members, budget=budget or Budget())

    return run(main)


@pytest.mark.parametrize(("slots", "places"), [(20, 20), (2, 20), (20, 2), (2, 1)])
def test_the_same_work_has_the_same_latency_however_long_it_waits_for_a_place(run, words, slots, places):
    """Summed with the queues it was .10 to 1.02 s for the same work on 2 slots."""
    collector, world, _ = make(words, seconds=None)
    world.model = sleeping(CALL_S, Limiter(places))
    found = collect(run, collector, says(call("model"), ANSWER), slots=slots, members=20)
    assert [t.status for t in found] == [Status.COMPLETED] * 20
    assert [t.latency_s for t in found] == pytest.approx([2 * TURN_S + CALL_S] * 20)
    assert sum(row.seconds for row in found[0].ledger) == pytest.approx(2 * TURN_S + CALL_S)


def test_queueing_alone_is_never_too_late(run, words):
    """With deadlines that began before the work did, 14 of 20 trajectories failed."""
    limits = replace(LIMITS, turn_deadline_s=2 * TURN_S, tool_deadline_s=2 * CALL_S, deadline_s=1.0, retries=0)
    collector, world, _ = make(words, limits=limits, seconds=None)
    world.model = sleeping(CALL_S, Limiter(2))
    found = collect(run, collector, says(call("model"), ANSWER), slots=2, members=20)
    assert [t.status for t in found] == [Status.COMPLETED] * 20


def test_of_calls_side_by_side_the_longest_counts(run, words):
    collector, world, _ = make(words, seconds=None, limits=replace(LIMITS, max_calls=9, max_new_tokens=400))
    world.model = sleeping({"slow": 0.7, "blue": 0.4, "green": 0.5})
    calls = "".join(call("model", x) for x in ("slow", "slow", "blue", "blue"))
    (trajectory,) = collect(run, collector, says(calls, call("model", "green"), ANSWER))
    assert trajectory.latency_s == pytest.approx(3 * TURN_S + 0.7 + 0.5)
    assert sum(row.seconds for row in trajectory.ledger) == pytest.approx(3 * TURN_S + 2.2 + 0.5)
    arrays = group_arrays([trajectory], 1)
    assert arrays.latency_s[0, 0] == pytest.approx(trajectory.latency_s)


def test_a_slow_expert_is_asked_again_alone_and_every_request_is_billed_once(run, words):
    """Before, the whole trajectory began again, and paid for all that it had done."""
    collector, world, _ = make(words, seconds=None, limits=replace(LIMITS, tool_deadline_s=10.0, retries=1))
    worst, asked = Usage("expert", cost_usd=1.0), []

    async def send():
        asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(100.0 if len(asked) == 2 else 1.0)
        return Recorded("yes", (replace(worst, cost_usd=0.5, seconds=1.0),))

    async def expert(arguments, budget):
        found = await calls.call("chat", {"x": arguments["x"]}, worst, send, budget=budget)
        return ToolResult(found.value, found.usage)

    async def main():
        nonlocal calls
        calls = PaidCalls(Limiter(8), replay=None, timeout_s=300.0, retries=0)
        engine = SlowEngine(collector.chat, says(call("model", "a"), call("model", "b"), ANSWER), 1)
        found = await collector.collect(engine, [MEASURED], budget=budget)
        await calls.close(500.0)
        return found

    calls, budget = None, Budget()
    world.model = expert
    (trajectory,) = run(main)
    assert trajectory.solved
    assert len(asked) == 3  # a, b and b again
    assert (budget.spent.calls, budget.spent.usd) == (3, 1.5)
    assert [row.cost_usd for row in trajectory.ledger if row.role == "tool"] == [0.5, 0.5]
    assert trajectory.latency_s == pytest.approx(3 * TURN_S + 2.0)


@pytest.mark.parametrize("measured", [True, False], ids=["measured", "as the menu says"])
def test_a_policy_that_spends_fifty_slow_calls_gives_no_answer(run, words, measured):
    limits = replace(LIMITS, max_turns=60, max_calls=60, max_length=9000, deadline_s=100.0)
    collector, world, _ = make(words, limits=limits, seconds=None)
    world.model = sleeping(3.0)
    script = says(*[call("model" if measured else "echo")] * 50, ANSWER)
    (trajectory,) = collect(run, collector, script, task=MEASURED if measured else TASK)
    assert (trajectory.status, trajectory.reason) == (Status.NO_ANSWER, "no answer within 100 s of work")
    assert len(trajectory.calls) == 33  # 100 s / 3.05 s, and the call that it was passed with
    assert 100.0 < trajectory.latency_s < 104.0
    arrays = group_arrays([trajectory], 1)
    assert not arrays.failed[0, 0]
    assert not arrays.completed[0, 0]


def test_the_answer_that_is_under_way_when_the_time_is_up_counts(run, words):
    collector, world, _ = make(words, limits=replace(LIMITS, deadline_s=0.36), seconds=None)
    world.model = sleeping(CALL_S)
    (trajectory,) = collect(run, collector, says(call("model"), ANSWER))
    assert trajectory.solved


def test_a_call_on_the_last_turn_is_neither_made_nor_paid_but_a_terminal_tools_is(run, words):
    for terminal in (False, True):
        collector, world, _ = make(words, limits=replace(LIMITS, max_turns=2))
        task = replace(TASK, tools=tuple(replace(spec, terminal=terminal) for spec in TASK.tools))

        async def answers(arguments, budget):
            return ToolResult("told", final=ANSWER if arguments["x"] == "blue" else None)

        world.echo = answers
        (trajectory,) = collect(run, collector, says(call("echo"), call("echo", "blue")), task=task)
        assert trajectory.status is (Status.COMPLETED if terminal else Status.NO_ANSWER)
        assert (len(trajectory.turns), len(trajectory.calls)) == (2, 1 + terminal)
        assert sum(row.cost_usd for row in trajectory.ledger if row.name == "echo") == 0.25 * (1 + terminal)


@pytest.mark.parametrize("failures", [1, 3])
def test_what_a_failed_call_paid_is_in_the_ledger_and_its_time_is_not(run, words, failures):
    """Before, it stood in the budget alone; so did what the calls beside one that failed had paid."""
    collector, world, _ = make(words, limits=replace(LIMITS, max_new_tokens=400), seconds=None)
    row, tries = Usage("model", cost_usd=0.25, seconds=5.0), []

    async def model(arguments, budget):
        (await acquire(budget, row)).settle(row)
        if arguments["x"] == "blue":
            return ToolResult("blue", (row,))
        tries.append(1)
        if len(tries) <= failures:
            error = InfrastructureError("The search is down.")
            error.usage = (row,)
            raise error
        return ToolResult("green", (row,))

    world.model = model
    budget = Budget()
    both = call("model", "blue") + call("model", "green")
    (trajectory,) = collect(run, collector, says(both, ANSWER), budget=budget)
    assert trajectory.status == (Status.COMPLETED if failures == 1 else Status.FAILED)
    rows = [each for each in trajectory.ledger if each.name == "model"]
    assert len(rows) == budget.spent.calls == 1 + len(tries)
    assert sum(each.seconds for each in rows) == (10 if failures == 1 else 5)
