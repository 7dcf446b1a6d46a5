"""The limiter of a provider: never more at once, never too fast, no place lost when a caller gives up."""

import asyncio
import time

import pytest

from orchestra_jax.money.limits import Limiter


async def test_so_many_at_once_in_the_order_of_arrival():
    limiter, active, most, order = Limiter(3), 0, 0, []

    async def request(number: int) -> None:
        nonlocal active, most
        await limiter.acquire()
        order.append(number)
        active += 1
        most = max(most, active)
        await asyncio.sleep(0)
        active -= 1
        limiter.release()

    await asyncio.gather(*map(request, range(20)))
    assert (most, order) == (3, list(range(20)))


async def test_starts_are_spaced():
    limiter, start = Limiter(10, requests_per_minute=60 / 0.02), time.monotonic()
    starts = []

    async def request() -> None:
        await limiter.acquire()
        starts.append(time.monotonic() - start)
        limiter.release()

    await asyncio.gather(*(request() for _ in range(6)))
    assert all(at >= number * 0.02 for number, at in enumerate(sorted(starts)))


async def test_a_pause_holds_for_those_who_wait_already():
    limiter, start = Limiter(2, requests_per_minute=60 / 0.02), time.monotonic()
    await limiter.acquire()
    second = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0)
    limiter.pause(0.1)
    limiter.pause(0.01)  # a shorter one does not end a longer one
    await second
    assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize("paused", [False, True])
async def test_a_place_is_not_lost_with_its_caller(paused):
    limiter = Limiter(1)
    await limiter.acquire()
    if paused:
        limiter.release()
        limiter.pause(60)
    waiting = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    if not paused:
        limiter.release()  # its turn comes in the moment of the cancellation
    await asyncio.wait(waiting)
    limiter._next_start = 0.0
    await asyncio.wait_for(limiter.acquire(), 5)


@pytest.mark.parametrize("limits", [(0, None), (1, 0), (1, -2.0)])
def test_limits_that_let_nothing_through(limits):
    with pytest.raises(ValueError, match="needs concurrency >= 1"):
        Limiter(*limits)
