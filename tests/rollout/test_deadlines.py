"""Deadlines of turns, tools and trajectories, and the watchdog that names what hangs, on a clock that jumps."""

import asyncio
from dataclasses import replace

import pytest

from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.watchdog import Waiting, Watchdog, describe
from orchestra_jax.types import Status
from tests.rollout.scripted import ANSWER, HANG, LIMITS, TASK, FakeEngine, call, make, says


def roll(run, collector, script, **options):
    engine = FakeEngine(collector.chat, script)
    found = run(lambda: collector.collect(engine, [TASK], **options, budget=Budget()))
    assert not engine.open
    assert collector.watchdog.waiting() == []
    return found, engine


# --- deadlines ---


@pytest.mark.parametrize(
    ("script", "limits", "reason", "given_up"),
    [
        ((call("echo"), HANG), {"turn_deadline_s": 5}, "engine took longer than its deadline of 5 s", []),
        (
            (call("echo"), call("echo", "hang") + call("echo", "slow")),
            {"tool_deadline_s": 0.5, "turn_deadline_s": 9},
            "tool echo took longer than its deadline of 0.5 s",
            ["echo"],
        ),
        (
            (HANG,),
            {"deadline_s": 8, "tool_deadline_s": 1},
            "engine took longer than its deadline of 8 s",
            [],
        ),
        (
            (call("echo"), call("echo", "hang") + call("model") + call("echo", "slow")),
            {"deadline_s": 8},
            "tool echo took longer than its deadline of 8 s",
            ["echo"],
        ),
        (
            ("judge never",),
            {"deadline_s": 8, "tool_deadline_s": 1, "turn_deadline_s": 1},
            "score took longer than its deadline of 8 s",
            ["judge"],
        ),
        ((call("echo", "late"),), {}, "tool echo timed out: no answer in 9 s", []),
    ],
    ids=["turn", "tool", "a turn alone", "a tool alone", "the score alone", "the tool's own"],
)
def test_what_is_overdue_is_named_given_up_and_never_a_wrong_answer(run, words, script, limits, reason, given_up):
    collector, world, _ = make(words, limits=replace(LIMITS, max_calls=9, retries=0, **limits), seconds=None)
    (trajectory,), engine = roll(run, collector, says(*script))
    assert (trajectory.status, trajectory.reason) == (Status.FAILED, reason)
    assert (trajectory.solved, trajectory.completed, trajectory.answer) == (False, False, None)
    assert world.given_up == given_up
    assert engine.aborted == ([0] if HANG in script else [])
    # What was said and answered is kept for the log.
    assert len(trajectory.turns) == len(script) - ("judge never" not in script)


def test_an_overdue_turn_is_tried_afresh_alone(run, words):
    collector, world, _ = make(words, limits=replace(LIMITS, turn_deadline_s=5, retries=1))
    said = iter((call("echo"), HANG, ANSWER))
    (trajectory,), engine = roll(run, collector, lambda session, turn: next(said))
    assert trajectory.solved
    assert (world.calls, world.scored, len(engine.log), engine.aborted) == (["hello"], [ANSWER], 1, [0])
    assert len(set(engine.seeds)) == len(engine.seeds) == 2


def test_an_overdue_tool_is_tried_afresh_alone(run, words):
    collector, world, _ = make(words, limits=replace(LIMITS, tool_deadline_s=5, retries=1))
    repeated = world.echo

    async def slow_at_first(arguments, budget):
        return await repeated({"x": arguments["x"] if world.given_up else "hang"}, budget)

    world.echo = slow_at_first
    (trajectory,), engine = roll(run, collector, says(call("model"), call("echo"), ANSWER))
    assert trajectory.solved
    assert (world.calls, world.given_up, world.scored) == (["hang", "hello"], ["echo"], [ANSWER])
    assert (len(engine.log), len(engine.log[0])) == (1, 3)
    assert [row.name for row in trajectory.ledger if row.role == "tool"] == ["model", "echo"]


def test_a_deadline_holds_for_each_turn_and_tool_and_not_for_their_sum(run, words):
    limits = replace(LIMITS, turn_deadline_s=0.015, tool_deadline_s=0.015, max_turns=6, max_calls=9)
    collector, _, _ = make(words, limits=limits)
    (trajectory,), _ = roll(run, collector, says(*[call("echo", "slow")] * 4, ANSWER))  # 0.01 s each
    assert trajectory.solved


# --- the watchdog ---


def test_the_collector_says_what_each_trajectory_waits_for_longest_first(run, words):
    collector, _, chat = make(words)
    scripts = [(call("echo", "slow"), HANG), (call("echo", "hang") + call("model"),), ("judge never",)]
    engine = FakeEngine(chat, lambda session, turn: scripts[session][turn])

    async def main():
        running = asyncio.ensure_future(collector.collect(engine, [TASK], group_size=3, budget=Budget()))
        await asyncio.sleep(2.01)
        found = collector.watchdog.waiting()
        running.cancel()
        await asyncio.wait([running])
        return found

    found = run(main)
    assert sorted((wait.member, wait.turn, wait.what) for wait in found) == [
        (0, 2, "engine"), (1, 1, "tool echo"), (2, 1, "score"),
    ]  # fmt: skip
    assert {wait.group for wait in found} == {0}
    assert [round(wait.seconds, 3) for wait in found] == [2.01, 2.01, 2.0]
    assert found[2].member == 0
    assert collector.watchdog.waiting() == []


def test_slow_waits_are_told_again_and_again_but_not_more_often(run, words):
    told = []
    dog = Watchdog(lambda slow: told.append((asyncio.get_running_loop().time(), [str(wait) for wait in slow])))
    collector, _, _ = make(words, limits=replace(LIMITS, deadline_s=200, retries=0), watchdog=dog)
    scripts = [(HANG,), (call("echo", "slow"), HANG), (call("echo", "slow"), ANSWER)]
    roll(run, collector, lambda session, turn: scripts[session][turn], group_size=3)
    first, second = "group 0 member 0: engine turn 1 for {} s", "group 0 member 1: engine turn 2 for {} s"
    assert [time for time, _ in told] == pytest.approx([60, 120, 180], abs=1e-6)
    assert [waits for _, waits in told] == [
        [first.format(60)],
        [first.format(120), second.format(120)],
        [first.format(180), second.format(180)],
    ]


def test_what_ends_in_time_is_not_told_and_leaves_no_timer(run, words):
    told = []
    collector, _, _ = make(words, watchdog=Watchdog(told.append, 0.015))
    for _ in range(2):  # each on a loop of its own
        (trajectory,), _ = roll(run, collector, says(*[call("echo", "slow")] * 3, ANSWER))
        assert trajectory.solved
    assert told == []


def test_no_timer_outlives_the_last_wait(run):
    told = []
    dog = Watchdog(told.append, 1.0)

    async def main():
        with dog.watch(0, 0, 1, "engine"), dog.watch(0, 1, 1, "engine"):
            await asyncio.sleep(1.5)
        await asyncio.sleep(9)

    run(main)
    assert [len(slow) for slow in told] == [2]


def test_a_report_that_fails_does_not_stop_the_run(run, words):
    calls, errors = [], []

    def on_slow(slow):
        calls.append(slow)
        raise OSError("disk full")

    limits = replace(LIMITS, deadline_s=2.5, retries=0)
    collector, _, chat = make(words, watchdog=Watchdog(on_slow, 1), limits=limits)
    engine = FakeEngine(chat, says(HANG))

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
        return await collector.collect(engine, [TASK], budget=Budget())

    (trajectory,) = run(main)
    assert trajectory.status is Status.FAILED
    assert (len(calls), [str(error) for error in errors]) == (2, ["disk full"] * 2)


def test_one_line_for_the_log():
    waits = [Waiting(1, member, 3, "tool web_search", 75.4) for member in range(7)]
    assert str(waits[0]) == "group 1 member 0: tool web_search turn 3 for 75 s"
    assert describe(waits[:1]) == f"1 slow: {waits[0]}"
    assert describe(waits, most=2) == f"7 slow: {waits[0]}; {waits[1]}; and 5 more"
    assert "\n" not in describe(waits)
