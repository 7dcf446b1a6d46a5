"""What of a generation on a server is work: not our queue, nor the server's, nor new weights, nor what was lost."""

import asyncio

import pytest

pytest.importorskip("aiohttp")

from orchestra_jax.io import stopwatch
from orchestra_jax.io.stopwatch import Stopwatch
from tests.engines.sglang import stub
from tests.engines.sglang.stub import StubWeightSync, changed, one, soon


@pytest.fixture
def clock(monkeypatch):
    """The clock of every stopwatch, in a list; it stands still by itself."""
    found = [0.0]
    monkeypatch.setattr(stopwatch, "_now", lambda: found[0])
    return found


def begin(engine, count):
    watches = [Stopwatch() for _ in range(count)]
    return watches, [asyncio.ensure_future(watch.run(one(engine, (i + 1,)))) for i, watch in enumerate(watches)]


async def test_the_wait_for_one_of_our_places_is_not_counted(make, servers, clock):
    servers[0].gate.clear()
    watches, callers = begin(make(concurrency=1), 3)
    await soon(lambda: servers[0].active)
    clock[0] += 10
    servers[0].gate.set()
    await asyncio.gather(*callers)
    assert sorted(watch.seconds for watch in watches) == [0, 0, 10]


@pytest.mark.parametrize(("told", "seconds"), [(3.0, 7.0), (99.0, 0.0), (None, 10.0), ("no", 10.0), (-1.0, 10.0)])
async def test_the_servers_own_queue_is_not_counted_where_it_tells(make, servers, clock, told, seconds):
    servers[0].gate.clear()
    servers[0].faults.append(changed(lambda answer, meta, rows: meta.update(queue_time=told)))
    (watch,), callers = begin(make(), 1)
    await soon(lambda: servers[0].active)
    clock[0] += 10
    servers[0].gate.set()
    await asyncio.gather(*callers)
    assert watch.seconds == seconds


async def test_new_weights_are_nobodys_work(make, servers, clock):
    class SlowSync(StubWeightSync):
        async def sync(self, servers, params, version):
            clock[0] += 100  # not paused yet: the server goes on generating
            for server in servers:
                await server.post("/pause_generation", {"mode": "retract"})
            clock[0] += 1000
            return await super().sync(servers, params, version)

    engine = make(weight_sync=SlowSync())
    servers[0].gate.clear()
    (watch,), callers = begin(engine, 1)
    await soon(lambda: servers[0].active)
    clock[0] += 10
    await engine.update_weights("new", 1)
    clock[0] += 1
    servers[0].faults.append(changed(lambda answer, meta, rows: meta.update(weight_version="1")))
    servers[0].gate.set()
    await asyncio.gather(*callers)
    assert watch.seconds == 111


async def test_what_a_lost_server_did_is_not_counted(make, servers, clock):
    servers[0].gate.clear()
    servers[0].faults.append(stub.reset)
    (watch,), callers = begin(make(), 1)
    await soon(lambda: servers[0].active)
    clock[0] += 10
    servers[0].gate.set()
    await asyncio.gather(*callers)
    assert len(servers[0].bodies) == 2
    assert watch.seconds == 0
