"""Servers on the trainer's GPUs: they release their memory for an update and have it back, in order, for rollouts."""

import asyncio

import pytest

pytest.importorskip("aiohttp")

from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.engines.sglang.engine import SGLangEngine
from tests.engines.sglang.stub import PROMPT, SECONDS, StubWeightSync, continuation, one, soon, start

PAUSE, CONTINUE, DISK = "/pause_generation", "/continue_generation", "/update_weights_from_disk"
RELEASE, RESUME, GENERATE = "/release_memory_occupation", "/resume_memory_occupation", "/generate"
WEIGHTS, CACHE = {"weights"}, {"kv_cache", "cuda_graph"}


async def release(engine: SGLangEngine) -> None:
    async with asyncio.timeout(SECONDS):
        await engine.release_memory()


async def update(engine: SGLangEngine, version: int) -> None:
    async with asyncio.timeout(SECONDS):
        await engine.update_weights(f"weights {version}", version)


def forget(servers) -> None:
    for server in servers:
        server.calls.clear()
        server.tags.clear()


async def test_a_step_releases_resumes_updates_and_generates_in_that_order(make, servers):
    engine = make(2)
    for version in (1, 2):
        await asyncio.gather(*start(engine, 4))
        forget(servers)
        await release(engine)
        for server in servers:
            assert server.calls == [PAUSE, RELEASE]
            assert server.released == WEIGHTS | CACHE
        await update(engine, version)
        found = await asyncio.gather(*start(engine, 4))
        assert {generation.weight_version for generation in found} == {version}
        for server in servers:
            # Weights first, for the update; the cache before anything may run.
            assert server.calls[2:-2] == [RESUME, PAUSE, DISK, RESUME, CONTINUE]
            assert server.calls[-2:] == [GENERATE] * 2
            assert server.tags == [WEIGHTS | CACHE, WEIGHTS, CACHE]
            assert not server.released


async def test_a_second_release_and_an_update_without_one_ask_for_no_memory(make, servers):
    engine = make()
    await release(engine)
    await release(engine)
    await update(engine, 1)
    await update(engine, 2)
    assert servers[0].tags == [WEIGHTS | CACHE, WEIGHTS, CACHE]


async def test_nothing_generates_without_memory_and_nothing_is_released_under_a_generation(make, servers):
    engine = make()
    servers[0].gate.clear()
    (caller,) = start(engine, 1)
    await soon(lambda: servers[0].active)
    with pytest.raises(RuntimeError, match=r"^1 generation\(s\) are under way; let them end.*\.$"):
        await release(engine)
    servers[0].gate.set()
    await caller
    await release(engine)
    with pytest.raises(RuntimeError, match=r"released their memory; update the weights .*\.$"):
        await one(engine)
    await update(engine, 1)
    assert list((await one(engine)).token_ids) == continuation(PROMPT, 5)


async def test_what_was_cancelled_is_aborted_before_the_release(make, servers):
    engine = make()
    servers[0].gate.clear()
    (caller,) = start(engine, 1)
    await soon(lambda: servers[0].active)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await release(engine)
    assert servers[0].aborted == [servers[0].bodies[0]["rid"]]


@pytest.mark.parametrize("path", [RELEASE, RESUME])
async def test_a_server_that_answers_with_an_error_ends_it_with_a_sentence(make, servers, path):
    engine = make(2)
    await one(engine)
    servers[1].sick[path] = 1
    act = release if path == RELEASE else lambda engine: update(engine, 1)
    if path == RESUME:
        await release(engine)
    told = "did not release its GPU memory" if path == RELEASE else "did not take its GPU memory back after the update"
    with pytest.raises(ConfigError, match=rf"^{servers[1].url} {told} \(.*status 500.*\); look at its log.*\.$"):
        await act(engine)
    assert DISK not in servers[1].calls
    if path == RESUME:
        with pytest.raises(RuntimeError, match="did not take its GPU memory back"):
            await one(engine)


async def test_a_cache_that_does_not_come_back_ends_it_too(make, servers):
    class SickLater(StubWeightSync):
        async def sync(self, clients, params, version):
            servers[0].sick[RESUME] = 1000
            return await super().sync(clients, params, version)

    engine = make(weight_sync=SickLater())
    await release(engine)
    with pytest.raises(RuntimeError, match=r"^No server took .*did not take its GPU memory back.*mem-fraction-static"):
        await update(engine, 1)
    assert CONTINUE not in servers[0].calls


async def test_a_server_that_died_in_the_update_is_restarted_and_gets_the_weights(make, servers):
    async def revive(url, hung):
        assert url == servers[0].url
        servers[0].reset("0")
        await servers[0].start()

    engine = make(2, revive=revive)
    await release(engine)
    await servers[0].kill()
    await update(engine, 1)
    await soon(lambda: len(engine.servers_up) == 2)
    found = await asyncio.gather(*start(engine, 6))
    assert {generation.weight_version for generation in found} == {1}
    assert RESUME not in servers[0].calls, "what was restarted has its memory"
    forget(servers)
    await release(engine)
    assert [server.calls for server in servers] == [[PAUSE, RELEASE]] * 2


async def test_the_only_server_may_die_in_the_update(make, servers):
    async def revive(url, hung):
        servers[0].reset("0")
        await servers[0].start()

    engine = make(revive=revive)
    await release(engine)
    await servers[0].kill()
    await update(engine, 1)
    assert (await one(engine)).weight_version == 1


async def test_a_server_that_is_being_started_is_waited_for_and_releases_too(make, servers):
    started = asyncio.Event()

    async def revive(url, hung):
        await started.wait()
        servers[0].reset("0")
        await servers[0].start()

    engine = make(2, revive=revive)
    await update(engine, 1)
    await servers[0].kill()
    await asyncio.gather(*start(engine, 4))
    releasing = asyncio.ensure_future(release(engine))
    await soon(lambda: servers[1].released)
    assert not releasing.done(), "it would load its model in the middle of the update"
    started.set()
    await releasing
    assert servers[0].version == "1"
    assert servers[0].released == servers[1].released == WEIGHTS | CACHE


async def test_a_server_that_stays_away_ends_the_release_with_a_sentence(make, servers):
    engine = make(2, down_timeout_s=0.3)
    await one(engine)
    await servers[0].kill()
    with pytest.raises(ConfigError, match=rf"^Not every server was up .* within 0\.3 s: {servers[0].url}: .*\.$"):
        await release(engine)
