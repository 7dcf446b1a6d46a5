"""The SGLang engine against stub servers: servers that are lost, come back, or miss new weights."""

import asyncio

import pytest

pytest.importorskip("aiohttp")

from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.engines.sglang.pool import NoServer
from orchestra_jax.io.http_json import ServerError
from tests.engines.sglang import stub
from tests.engines.sglang.stub import (
    PROMPT,
    SECONDS,
    StubWeightSync,
    continuation,
    one,
    soon,
    start,
)


async def test_what_a_dead_server_held_finishes_on_the_other_once_each(make, servers):
    engine = make(2)
    await one(engine)
    for server in servers:
        server.gate.clear()
    callers = start(engine, 8)
    await soon(lambda: [server.active for server in servers] == [4, 4])
    await servers[0].kill()
    servers[1].gate.set()
    found = await asyncio.gather(*callers)
    assert [list(g.token_ids) for g in found] == [continuation((i + 1,), 5) for i in range(8)]
    assert engine.servers_up == [servers[1].url]


async def test_a_returned_server_gets_the_weights_before_it_takes_work(make, servers):
    engine = make(2)
    await engine.update_weights("new", 3)
    await servers[0].kill()
    for _ in range(4):
        await one(engine)  # one of them finds out
    await soon(lambda: engine.servers_up == [servers[1].url])
    servers[0].reset("0")  # restarted from its model folder
    await servers[0].start()
    await soon(lambda: len(engine.servers_up) == 2)
    callers = start(engine, 6)
    found = await asyncio.gather(*callers)
    assert {generation.weight_version for generation in found} == {3}
    assert servers[0].calls.index("/update_weights_from_disk") < servers[0].calls.index("/generate")
    assert servers[0].version == "3"


async def test_a_server_that_missed_an_update_gets_it_whatever_version_it_tells(make, servers):
    engine = make(2)
    await servers[0].kill()
    await engine.update_weights("new", 3)
    servers[0].reset("3")  # of the run before, which came as far and had other weights
    await servers[0].start()
    await soon(lambda: len(engine.servers_up) == 2)
    assert "/update_weights_from_disk" in servers[0].calls


async def test_a_server_that_was_restarted_unseen_gives_no_sample_of_its_old_weights(make, servers):
    engine = make()
    await engine.update_weights("new", 3)
    servers[0].version = "0"
    with pytest.raises(ServerError, match=r"weight version '0', but the server has 3"):
        await one(engine)
    assert (await one(engine)).weight_version == 3


async def test_what_a_server_still_answers_after_it_came_back_with_its_weights_counts(make, servers):
    async def late(request, answer):
        await released.wait()
        return stub.web.json_response(answer)

    released, engine = asyncio.Event(), make()
    await engine.update_weights("new", 1)
    await engine.update_weights("newer", 2)
    servers[0].faults += [late, stub.reset]
    slow = asyncio.ensure_future(one(engine))
    await soon(lambda: servers[0].active)
    assert (await one(engine, (2,))).weight_version == 2  # its connection broke: the server was looked at again
    released.set()
    found = await slow
    assert (list(found.token_ids), found.weight_version) == (continuation(PROMPT, 5), 2)


async def test_a_server_that_takes_no_weights_is_dropped_with_what_it_held(make, servers):
    engine = make(2, concurrency=2)
    await one(engine)
    for server in servers:
        server.gate.clear()
    callers = start(engine, 8)  # half of them wait for a slot
    await soon(lambda: [server.active for server in servers] == [2, 2])
    servers[0].refuse_weights = 400
    asked = len(servers[0].bodies)
    await engine.update_weights("new", 1)
    assert engine.servers_up == [servers[1].url]
    for server in servers:
        server.gate.set()
    found = await asyncio.gather(*callers)
    # Nothing of the dropped one counts: whose weights it has is unknown.
    assert {generation.weight_version for generation in found} == {1}
    assert len(servers[0].bodies) == asked
    servers[0].refuse_weights = 0
    await soon(lambda: len(engine.servers_up) == 2)
    assert servers[0].version == "1"


async def test_an_answer_within_a_failing_update_is_not_taken_before_its_end(make, servers):
    class Slow(StubWeightSync):
        async def sync(self, clients, params, version):
            await clients[0].post("/pause_generation", {"mode": "retract"}, timeout_s=SECONDS)
            await release.wait()
            return await super().sync(clients, params, version)

    release, engine = asyncio.Event(), make(2, weight_sync=Slow())
    await one(engine)
    servers[0].gate.clear()
    callers = start(engine, 2)
    await soon(lambda: servers[0].active == 1)
    await callers[1]
    servers[0].refuse_weights = 400
    update = asyncio.ensure_future(engine.update_weights("new", 1))
    await soon(lambda: "/pause_generation" in servers[0].calls)
    servers[0].gate.set()  # it answers, perhaps from mixed weights
    await soon(lambda: servers[0].active == 0)
    await asyncio.sleep(0.05)
    assert not callers[0].done()
    release.set()
    await update
    found = await callers[0]
    assert (list(found.token_ids), found.weight_version) == (continuation((1,), 5), 1)


async def test_weights_that_no_server_takes_stop_the_engine_until_one_does(make, servers):
    engine = make()
    await one(engine)
    servers[0].refuse_weights = 400
    with pytest.raises(ConfigError, match=r"^No server took weight version 1: .*\.$"):  # the run ends in a sentence
        await engine.update_weights("new", 1)
    with pytest.raises(RuntimeError, match=r"^No server took weight version 1"):
        await one(engine)
    servers[0].refuse_weights = 0
    await engine.update_weights("newer", 2)
    assert (await one(engine)).weight_version == 2


async def test_servers_that_hold_other_weights_at_first_are_not_used(make, servers):
    servers[0].version = "default"
    with pytest.raises(NoServer, match=r"holds weight version 'default' instead of '0'; start it with .*\.$"):
        await one(make(down_timeout_s=0.2))
    engine = make()
    await engine.update_weights("first", 0)
    assert (await one(engine)).weight_version == 0


async def test_a_server_that_does_not_answer_is_revived(make, servers):
    asked = []

    async def revive(url, hung):
        asked.append((url, hung))
        await servers[0].start()

    await servers[0].kill()
    assert list((await one(make(revive=revive))).token_ids) == continuation(PROMPT, 5)
    assert asked == [(servers[0].url, False)]


async def test_nothing_is_written_while_no_server_is_there_to_read_it(make, servers):
    class Counted(StubWeightSync):
        given: list[int] = []  # noqa: RUF012 - of one test

        async def sync(self, clients, params, version):
            self.given.append(len(clients))
            return await super().sync(clients, params, version)

    engine = make(weight_sync=Counted())
    await one(engine)
    await servers[0].kill()
    update = asyncio.ensure_future(engine.update_weights("new", 1))
    await soon(lambda: not engine.servers_up)
    await asyncio.sleep(0.3)  # fifteen looks for a server
    servers[0].reset()
    await servers[0].start()
    await update
    assert (await one(engine)).weight_version == 1
    assert Counted.given == [1, 1]  # one that was gone by then, and the one that came back
