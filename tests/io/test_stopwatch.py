"""Working time: what stands still while it waits, deadlines that wait with it, and every place that says so."""

import asyncio

import pytest

from orchestra_jax.io import stopwatch
from orchestra_jax.io.stopwatch import Stopwatch, current, queued, waiting, worked
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.money.limits import Limiter
from orchestra_jax.money.replay import Replay
from orchestra_jax.money.reservations import acquire
from orchestra_jax.money.store import Recorded
from orchestra_jax.types import Usage
from tests.rollout.jumping import JumpingLoop


def run(main):
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main())


def seconds_of(work, limit_s=None):
    async def main():
        watch = Stopwatch(limit_s)
        await watch.run(work())
        await asyncio.sleep(7)  # it has ended
        return watch.seconds

    return run(main)


def test_time_of_waiting_is_not_counted_nested_or_in_a_task():
    async def work():
        await asyncio.sleep(1)
        with waiting():
            await asyncio.sleep(10)
            await queued(asyncio.sleep(20))
        await asyncio.sleep(2)
        await asyncio.create_task(queued(asyncio.sleep(40)))
        start = worked()
        await asyncio.sleep(4)
        assert worked() - start == 4
        current().add(0.5)
        current().add(-0.25)

    assert seconds_of(work) == 7.25


def test_side_by_side_each_has_a_watch_of_its_own():
    async def main():
        async def wait(seconds):
            with waiting():
                await asyncio.sleep(5)
            await asyncio.sleep(seconds)

        watches = [Stopwatch() for _ in range(3)]
        await asyncio.gather(*(watch.run(wait(n)) for n, watch in enumerate(watches)))
        return [watch.seconds for watch in watches]

    assert run(main) == [0, 1, 2]


def test_a_limit_holds_for_work_and_not_for_waiting():
    async def work():
        for _ in range(4):
            await queued(asyncio.sleep(100))
            await asyncio.sleep(1)

    assert seconds_of(work, limit_s=4.5) == 4
    watch = Stopwatch(3.5)

    async def main():
        with pytest.raises(TimeoutError):
            await watch.run(work())
        return asyncio.get_running_loop().time()

    assert run(main) == 403.5
    assert watch.expired


def test_work_that_was_measured_elsewhere_counts_for_the_limit_too():
    async def work():
        for _ in range(5):
            with waiting():
                await asyncio.sleep(1)
                current().add(2.0)

    assert seconds_of(work, limit_s=10.5) == 10
    with pytest.raises(TimeoutError):
        seconds_of(work, limit_s=7.0)


def test_an_error_of_the_work_ends_its_watch_and_what_goes_on_harms_nothing():
    async def main():
        watch = Stopwatch(1.0)

        async def work():
            asyncio.get_running_loop().create_task(queued(asyncio.sleep(5)))
            await asyncio.sleep(0.5)
            raise KeyError

        with pytest.raises(KeyError):
            await watch.run(work())
        await asyncio.sleep(9)
        return watch.seconds, watch.expired

    assert run(main) == (0.0, False)


def test_without_a_watch_nothing_is_counted(monkeypatch):
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: 3.0)

    async def main():
        with waiting():
            await asyncio.sleep(1)
        return worked(), current().seconds

    assert run(main) == (3.0, 0.0)


def test_a_limiter_and_a_budget_are_waited_for():
    async def main():
        limiter, budget = Limiter(1), Budget(Limits(usd=1.0))

        async def work():
            reservation = await acquire(budget, Usage("x", cost_usd=0.8))
            await asyncio.sleep(1)
            reservation.release()
            await limiter.acquire()
            await asyncio.sleep(2)
            limiter.release()

        watches = [Stopwatch(3.5) for _ in range(4)]
        await asyncio.gather(*(watch.run(work()) for watch in watches))
        return [watch.seconds for watch in watches]

    assert run(main) == [3, 3, 3, 3]


async def test_who_joins_a_recorded_call_waits_for_who_made_it(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(stopwatch, "_now", lambda: clock[0])
    replay, go = Replay(tmp_path / "calls.db", "replay_or_record"), asyncio.Event()

    async def answer():
        await go.wait()
        return Recorded("yes", ())

    watches = [Stopwatch(), Stopwatch()]
    running = [asyncio.ensure_future(watch.run(replay.call("chat", {}, answer))) for watch in watches]
    await asyncio.sleep(0)
    clock[0] = 5.0
    go.set()
    await asyncio.gather(*running)
    replay.close()
    assert [watch.seconds for watch in watches] == [5.0, 0.0]
