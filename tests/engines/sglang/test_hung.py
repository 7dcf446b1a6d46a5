"""Servers that hang or fail: noticed in time, left by their generations, killed if they are ours, given the weights."""

import asyncio
import contextlib

import pytest

pytest.importorskip("aiohttp")

from orchestra_jax.engines.sglang.pool import NoServer
from orchestra_jax.io.http_json import JsonClient, ServerError
from orchestra_jax.io.stopwatch import Stopwatch
from tests.engines.sglang import stub
from tests.engines.sglang.stub import (
    LOOKS,
    PROMPT,
    SECONDS,
    StubWeightSync,
    changed,
    continuation,
    drop_tokens,
    one,
    soon,
)


async def test_what_a_hung_server_held_moves_to_the_other_within_seconds(make, servers):
    """It takes connections and says nothing; another one whose queue is long answers /health and is left alone."""
    engine = make(2, beat_s=0.05, request_timeout_s=SECONDS)
    sessions = [engine.open_session() for _ in range(4)]
    await asyncio.gather(*(one(engine, session=session) for session in sessions))
    for server in servers:
        server.gate.clear()
    callers = [asyncio.create_task(one(engine, session=session)) for session in sessions]
    await soon(lambda: [server.active for server in servers] == [2, 2])
    servers[0].hangs = LOOKS
    await soon(lambda: engine.servers_up == [servers[1].url])
    servers[1].gate.set()
    found = await asyncio.gather(*callers)
    assert [list(g.token_ids) for g in found] == [continuation(PROMPT, 5)] * 4
    servers[0].hangs = ()  # it wakes up, and was given the weights that it lacks
    servers[0].gate.set()
    await soon(lambda: len(engine.servers_up) == 2)


@pytest.mark.parametrize("down_timeout_s", [0.2])
async def test_one_hung_server_alone_ends_in_a_sentence(make, servers, down_timeout_s):
    engine = make(beat_s=0.03, request_timeout_s=SECONDS)
    await one(engine)  # under the usual limit: a busy machine takes longer than the short one
    servers[0].hangs = LOOKS
    servers[0].faults.append(stub.hang)
    engine._pool._down_timeout_s = down_timeout_s
    with pytest.raises(NoServer, match=r"No SGLang server was ready for 0\.2 s: .*(/health|no whole answer)"):
        await one(engine)


async def test_a_close_ends_where_a_cancellation_was_taken_for_a_time_out(make, servers, monkeypatch):
    """As by aiohttp, whose own time-out may come in the same moment."""
    asked, taken = [], []

    async def get(path, timeout_s=None):
        asked.append(path)
        try:
            await asyncio.sleep(SECONDS)
        except asyncio.CancelledError:
            if taken:
                raise
            taken.append(path)
            raise ServerError("late", "timeout") from None

    engine = make(beat_s=0.03, request_timeout_s=SECONDS)
    await one(engine)
    monkeypatch.setattr(engine._pool.servers[0], "get", get)
    await soon(lambda: asked)
    async with asyncio.timeout(SECONDS / 2):
        await engine.close()
    assert taken


async def test_a_hung_server_of_the_runs_own_is_killed_and_gets_the_weights(make, servers):
    asked = []

    async def revive(url, hung):
        asked.append((url, hung))
        if hung:
            await servers[0].kill()
            servers[0].reset("0")
            servers[0].hangs = ()
            await servers[0].start()

    engine = make(beat_s=0.03, request_timeout_s=SECONDS, revive=revive)
    await engine.update_weights("new", 3)
    servers[0].faults.append(stub.hang)
    servers[0].hangs = LOOKS
    assert (await one(engine)).weight_version == 3
    assert asked == [(servers[0].url, True)]
    assert servers[0].calls.index("/update_weights_from_disk") < servers[0].calls.index("/generate")


async def test_a_server_that_is_given_weights_or_has_no_memory_is_not_taken_for_hung(make, servers):
    engine = make(beat_s=0.02, releases=True)
    await one(engine)
    before = servers[0].calls.count("/health")
    await soon(lambda: servers[0].calls.count("/model_info") > 5)
    assert servers[0].calls.count("/health") == before  # that samples a token: no release could come meanwhile
    await engine.release_memory()
    servers[0].hangs = LOOKS  # as the real one, whose scheduler stands still
    await asyncio.sleep(0.3)
    servers[0].hangs = ()
    assert engine.servers_up == [servers[0].url]
    await engine.update_weights("new", 1)
    assert (await one(engine)).weight_version == 1


async def test_generations_on_a_host_that_vanished_move_to_the_other(make, servers, monkeypatch):
    """Nothing closes their connections, and new ones are not accepted."""
    engine = make(2, beat_s=0.05, request_timeout_s=SECONDS)
    await one(engine)
    servers[0].gate.clear()
    callers = [asyncio.create_task(one(engine)) for _ in range(2)]
    await soon(lambda: servers[0].active == 1)
    gone, get = servers[0].url, JsonClient.get

    async def vanished(self, path, *, timeout_s=None):
        if self.url == gone:
            raise ServerError("It did not accept a connection.", "transport", sent=False)
        return await get(self, path, timeout_s=timeout_s)

    monkeypatch.setattr(JsonClient, "get", vanished)
    assert [list(g.token_ids) for g in await asyncio.gather(*callers)] == [continuation(PROMPT, 5)] * 2
    assert engine.servers_up == [servers[1].url]


async def test_one_of_the_runs_own_that_hangs_after_it_was_lost_is_killed_too(make, servers):
    asked = []

    async def revive(url, hung):
        asked.append(hung)
        if hung:
            servers[0].hangs = ()

    engine = make(beat_s=0.03, request_timeout_s=SECONDS, revive=revive)
    await one(engine)
    servers[0].faults.append(stub.hang)
    servers[0].hangs = LOOKS
    engine._timeout_s = 0.1  # for the one request that hangs: a busy machine takes longer for the others
    with pytest.raises(ServerError, match="no whole answer"):
        await one(engine)  # this loses it, before any look at it
    engine._timeout_s = SECONDS
    servers[0].faults.clear()  # where the request did not get there in time
    assert list((await one(engine)).token_ids) == continuation(PROMPT, 5)
    assert asked == [True]


async def test_a_hang_is_noticed_while_another_server_is_given_weights(make, servers):
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(StubWeightSync):
        async def sync(self, found, params, version):
            if len(found) == 1:
                begun.set()
                await go_on.wait()
            return await super().sync(found, params, version)

    engine = make(2, beat_s=0.03, weight_sync=Slow())
    await engine.update_weights("new", 1)
    servers[1].version = "0"  # it was restarted
    engine._pool.lose(engine._pool.servers[1], "gone")
    await begun.wait()
    servers[0].hangs = LOOKS
    await soon(lambda: not engine.servers_up)
    go_on.set()
    await soon(lambda: engine.servers_up == [servers[1].url])


async def test_a_server_restarted_unseen_gets_the_weights_before_it_is_asked_anything(make, servers):
    engine = make(beat_s=0.03)
    await engine.update_weights("new", 3)
    servers[0].version = "default"  # healthy, and restarted by somebody else
    await soon(lambda: servers[0].version == "3")
    assert (await one(engine)).weight_version == 3
    assert len(servers[0].updates) == 2


async def test_a_server_that_is_releasing_its_memory_is_not_taken_for_hung(make, servers, monkeypatch):
    engine, post, looks = make(beat_s=0.02), JsonClient.post, []

    async def slow(self, path, body, *, timeout_s=None):
        if path == "/release_memory_occupation":
            servers[0].hangs = LOOKS  # as the real one, which is paused
            await asyncio.sleep(0.3)
            servers[0].hangs = ()
        return await post(self, path, body, timeout_s=timeout_s)

    await one(engine)
    monkeypatch.setattr(JsonClient, "post", slow)
    monkeypatch.setattr(engine._pool, "lose", lambda server, problem: looks.append(problem))
    await engine.release_memory()
    assert looks == []


async def test_one_that_hangs_in_the_release_of_its_memory_is_started_again_and_releases(make, servers, monkeypatch):
    asked = []

    async def revive(url, hung):
        asked.append(hung)
        servers[0].reset(servers[0].version)
        monkeypatch.undo()

    async def silent(self, path, body, *, timeout_s=None):
        if path == "/release_memory_occupation":
            raise ServerError("no whole answer in 120 s.", "timeout")
        return await post(self, path, body, timeout_s=timeout_s)

    engine, post = make(revive=revive), JsonClient.post
    await engine.update_weights("new", 1)
    monkeypatch.setattr(JsonClient, "post", silent)
    await engine.release_memory()
    assert asked == [True]
    assert servers[0].released


async def test_the_only_server_may_hang_in_the_update_if_it_is_the_runs_own(make, servers):
    class Hangs(StubWeightSync):
        async def sync(self, found, params, version):
            if version == 1 and not asked:
                servers[0].hangs = LOOKS
                raise ServerError("no whole answer in 60 s.", "timeout")
            return await super().sync(found, params, version)

    async def revive(url, hung):
        asked.append(hung)
        await servers[0].kill()
        servers[0].reset("0")
        await servers[0].start()

    engine, asked = make(beat_s=0.03, weight_sync=Hangs(), revive=revive), []
    await one(engine)
    await engine.update_weights("new", 1)
    assert asked == [True]
    assert (await one(engine)).weight_version == 1


def aborted(answer, meta, rows) -> None:
    meta["finish_reason"] = {"type": "abort", "message": "Aborted"}


@pytest.mark.parametrize("fault", [stub.status(500), stub.status(503), drop_tokens(3), changed(aborted)])
async def test_a_session_leaves_a_server_that_fails_at_every_request(make, servers, fault):
    engine = make(2)
    await one(engine)
    session = engine.open_session()
    pinned = engine._sessions[session].url
    bad, good = sorted(servers, key=lambda server: server.url != pinned)
    bad.faults.extend([fault] * 9)
    bad.bodies.clear()
    good.bodies.clear()
    with contextlib.suppress(ServerError):  # the player of the episode tries again
        await one(engine, session=session)
    found = await one(engine, session=session)
    assert list(found.token_ids) == continuation(PROMPT, 5)
    assert len(bad.bodies) == 1
    engine.close_session(session)
    assert [server.sessions for server in engine._pool.servers] == [0, 0]


async def test_a_request_that_is_wrong_itself_moves_no_session(make, servers):
    engine = make(2)
    await one(engine)
    session = engine.open_session()
    pinned = engine._sessions[session]
    for server in servers:
        server.faults.append(stub.status(400))
    with pytest.raises(ServerError, match="status 400"):
        await one(engine, session=session)
    assert engine._sessions[session] is pinned


async def test_a_session_leaves_a_server_that_is_too_slow_for_its_deadline(make, servers):
    """It answers health checks, so nothing else would take it away before the last try."""
    engine = make(2)
    servers[0].gate.clear()
    session = engine.open_session()
    watch = Stopwatch(0.3)
    with pytest.raises(TimeoutError):
        await watch.run(one(engine, session=session))
    await soon(lambda: servers[0].aborted)
    assert (await one(engine, session=session)).token_ids
    assert (len(servers[0].bodies), len(servers[1].bodies)) == (1, 1)
    assert len(engine.servers_up) == 2


async def test_a_session_that_is_cancelled_in_time_stays_where_its_prefix_is_cached(make, servers):
    engine = make(2)
    servers[0].gate.clear()
    session = engine.open_session()
    caller = asyncio.ensure_future(Stopwatch(SECONDS).run(one(engine, session=session)))
    await soon(lambda: servers[0].active)
    caller.cancel()
    await soon(lambda: servers[0].aborted)
    servers[0].gate.set()
    await one(engine, session=session)
    assert (len(servers[0].bodies), len(servers[1].bodies)) == (2, 0)
