"""The SGLang engine on real servers: the contract of every engine, exact log-probs, a server killed in mid-flight."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestra_jax.engines.base import SamplingParams
from orchestra_jax.engines.sglang.process import reviver
from orchestra_jax.io.http_json import JsonClient
from tests.engines.contract import EngineContract, Subject, prompt_of
from tests.sglang.conftest import CONFIG, LENGTH, PARAMS, START_SECONDS, engine_on

pytestmark = pytest.mark.sglang
TOKENS = LENGTH - 12  # of a generation that something happens to


def subject_of(engine):
    return Subject(engine, CONFIG, PARAMS[0], PARAMS[1], LENGTH, seeded=False)


@pytest.fixture
async def subject(server, tmp_path):
    """An engine on the shared server, which gets the first weights again: the last test may have left others."""
    engine = engine_on([server], tmp_path)
    await engine.update_weights(PARAMS[0], 0)
    yield subject_of(engine)
    await engine.close()


class TestSGLangContract(EngineContract):
    """What a server without seeds shows otherwise, and on top of the contract what it is asked to hold."""

    async def test_the_server_is_the_policys_model(self, subject):
        await subject.engine.check(CONFIG, CONFIG.vocab_size)
        with pytest.raises(ValueError, match=r"hidden_size=64 .*, but the policy has 32; .*\.$"):
            await subject.engine.check(replace(CONFIG, hidden_size=32), CONFIG.vocab_size)
        with pytest.raises(ValueError, match=r"tokenizer has 600 ids.*\.$"):
            await subject.engine.check(CONFIG, 600)
        subject.engine.max_length = LENGTH + 1
        with pytest.raises(ValueError, match=rf"takes sequences of {LENGTH} tokens, .*\.$"):
            await subject.engine.check(CONFIG, CONFIG.vocab_size)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_of_a_thousand_tokens_are_the_learners(subject, temperature):
    prompts = [prompt_of(i, 4 + i % 9, CONFIG.vocab_size) for i in range(24)]
    found = await subject.generate_all(prompts, SamplingParams(48, temperature))
    assert sum(len(generation.token_ids) for generation in found) >= 1000
    subject.expect_learner(prompts, found, temperature)


async def until_it_runs(server):
    """Waits until a server runs what it was sent: a few tokens asked for later are there when the others run."""
    async with asyncio.timeout(START_SECONDS):
        while not server.load:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        sampling = {"max_new_tokens": 4, "temperature": 1.0}
        await JsonClient.post(
            server, "/generate", {"input_ids": [3], "sampling_params": sampling}, timeout_s=START_SECONDS
        )


async def test_a_cancelled_generation_stops_on_the_server(subject, monkeypatch):
    engine, answers = subject.engine, []
    (server,) = engine._pool.servers
    post = server.post

    async def post_and_keep(path, body, *, timeout_s):
        # The request outlives its caller, so that its connection stays open: only the abort can end it.
        answer = asyncio.ensure_future(post(path, body, timeout_s=timeout_s))
        if path == "/generate":
            answers.append(answer)
        return await asyncio.shield(answer)

    await subject.generate_all([(1, 2)], SamplingParams(2))
    monkeypatch.setattr(server, "post", post_and_keep)
    callers = [asyncio.ensure_future(engine.generate((i + 1,), SamplingParams(TOKENS))) for i in range(8)]
    await until_it_runs(server)
    for caller in callers:
        caller.cancel()
    assert await asyncio.gather(*callers, return_exceptions=True)
    async with asyncio.timeout(START_SECONDS):
        found = [answer["meta_info"] for answer in await asyncio.gather(*answers)]
    assert len(found) == 8
    assert {meta["finish_reason"]["type"] for meta in found} == {"abort"}
    assert 0 < max(meta["completion_tokens"] for meta in found) < TOKENS


async def test_a_server_killed_in_mid_flight_loses_nothing_and_comes_back_with_the_weights(server, victim, tmp_path):
    engine = engine_on([server, victim], tmp_path, revive=reviver([server, victim]), down_timeout_s=START_SECONDS)
    subject = subject_of(engine)
    await engine.update_weights(PARAMS[1], 5)
    assert len(engine.servers_up) == 2
    prompts = [prompt_of(200 + i, 5, CONFIG.vocab_size) for i in range(12)]
    callers = [asyncio.ensure_future(engine.generate(prompt, SamplingParams(TOKENS))) for prompt in prompts]
    (held,) = (one for one in engine._pool.servers if one.url == victim.url)
    await until_it_runs(held)
    async with asyncio.timeout(START_SECONDS):
        lost = held.load
        kill_server(victim)
        found = await asyncio.gather(*callers)
        assert lost > 0
        assert {(g.weight_version, g.finish_reason, len(g.token_ids)) for g in found} == {(5, "length", TOKENS)}
        assert len({g.token_ids for g in found}) == 12
        subject.expect_learner(prompts, found, params=PARAMS[1])
        # It is restarted from its folder, with version 0.
        while len(engine.servers_up) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    await engine.close()
    # An engine on this server alone finds version 5 there, and the server works with it.
    alone = engine_on([victim], tmp_path / "alone", version=5)
    (again,) = await subject_of(alone).generate_all(prompts[:1], SamplingParams(20))
    assert again.weight_version == 5
    subject.expect_learner(prompts[:1], [again], params=PARAMS[1])
    assert np.isfinite(again.logprobs).all()
    await alone.close()


def kill_server(process):
    """SIGKILL to the server itself, the one child of its guard."""
    guard = process._process.pid
    (child,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize("part", ["the HTTP process", "the scheduler"])
async def test_a_server_that_hangs_in_mid_flight_is_left_killed_and_comes_back_with_the_weights(
    server, victim, tmp_path, capsys, part
):
    """The other one is as busy as it gets, and is not taken for hung."""
    engine = engine_on(
        [server, victim], tmp_path, revive=reviver([server, victim]), down_timeout_s=START_SECONDS, beat_s=4.0
    )
    subject = subject_of(engine)
    await engine.update_weights(PARAMS[1], 6)
    prompts = [prompt_of(300 + i, 5, CONFIG.vocab_size) for i in range(48)]
    callers = [asyncio.ensure_future(engine.generate(prompt, SamplingParams(TOKENS))) for prompt in prompts]
    (held,) = (one for one in engine._pool.servers if one.url == victim.url)
    await until_it_runs(held)
    lost, (main, scheduler) = held.load, parts_of(victim)
    os.kill(main if part == "the HTTP process" else scheduler, signal.SIGSTOP)
    async with asyncio.timeout(START_SECONDS):
        found = await asyncio.gather(*callers)
        assert lost > 0
        assert {(g.weight_version, g.finish_reason, len(g.token_ids)) for g in found} == {(6, "length", TOKENS)}
        subject.expect_learner(prompts[:12], found[:12], params=PARAMS[1])
        while len(engine.servers_up) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert not {str(main), str(scheduler)} & set(os.listdir("/proc"))
    assert (await JsonClient(victim.url).get("/model_info"))["weight_version"] == "6"
    await engine.close()
    told = [line for line in capsys.readouterr().out.splitlines() if "hangs; its generations" in line]
    assert told == [f"SGLang server {victim.url} hangs; its generations move to others."]


def parts_of(process):
    """The process ids of a server's HTTP process, the one child of its guard, and of its scheduler."""

    def children(parent: int) -> list[int]:
        return [
            int(child)
            for thread in Path(f"/proc/{parent}/task").iterdir()
            for child in (thread / "children").read_text().split()
        ]

    (main,) = children(process._process.pid)
    (scheduler,) = (pid for pid in children(main) if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return main, scheduler
