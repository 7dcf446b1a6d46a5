"""New weights in a real server: what it samples with afterwards are the learner's weights, token by token."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.engines.base import Generation
from orchestra_jax.engines.sglang.process import SGLangProcess
from orchestra_jax.engines.sglang.weight_sync import DiskWeightSync
from orchestra_jax.io.http_json import JsonClient
from orchestra_jax.types import InfrastructureError
from tests.engines.contract import Subject, prompt_of
from tests.sglang.conftest import CONFIG, LENGTH, random_params

pytestmark = pytest.mark.sglang

LONG = LENGTH - 32  # tokens of a generation that is paused: it takes seconds
SECONDS = 600


def params_of(seed: int, dtype: str = "float32") -> dict[str, Any]:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), random_params(seed))


@pytest.fixture
async def client(server: SGLangProcess) -> AsyncIterator[JsonClient]:
    found = JsonClient(server.url)
    yield found
    await found.close()


@pytest.fixture
def sync(tmp_path: Path) -> DiskWeightSync:
    return DiskWeightSync(CONFIG, tmp_path)


@pytest.fixture(scope="module")
def learner() -> Subject:
    """Scores rows under any weights; it has no engine."""
    engine: Any = None
    return Subject(engine, CONFIG, params_of(0), params_of(1), LENGTH)


def request_of(prompt: Sequence[int], tokens: int, stream: bool = False) -> dict[str, Any]:
    sampling = {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
    return {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True, "stream": stream}


async def generate(client: JsonClient, prompt: Sequence[int], tokens: int) -> tuple[Generation, dict[str, Any]]:
    """One generation with what the server says about it."""
    answer = await client.post("/generate", request_of(prompt, tokens), timeout_s=SECONDS)
    info = answer["meta_info"]
    logprobs, ids = zip(*(row[:2] for row in info["output_token_logprobs"]), strict=True)
    assert list(ids) == answer["output_ids"]
    return Generation(ids, logprobs, "length", int(info["weight_version"]), info["cached_tokens"]), info


async def expect_weights(client: JsonClient, learner: Subject, params: Any, version: int) -> None:
    """Samples of known prompts have the log-probs of `params`, and nothing of an older cache."""
    prompts = [prompt_of(i, 4 + i, CONFIG.vocab_size) for i in range(6)]
    found = [generation for generation, _ in await asyncio.gather(*(generate(client, p, 8) for p in prompts))]
    assert {generation.weight_version for generation in found} == {version}
    assert {generation.cached_tokens for generation in found} == {0}
    learner.expect_learner(prompts, found, params=params)


async def update(sync: DiskWeightSync, client: JsonClient, params: Any, version: int) -> None:
    async with asyncio.timeout(SECONDS):
        report = await sync.sync([client], params, version)
    assert report.failures == {}
    assert report.bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(params))


async def test_after_each_of_three_updates_the_server_scores_like_the_learner(client, sync, learner):
    for version in (11, 12, 13):
        await update(sync, client, params_of(version), version)
        await expect_weights(client, learner, params_of(version), version)


async def test_parameters_in_bf16_reach_a_server_in_fp32(client, sync, learner):
    params = params_of(21, "bfloat16")
    await update(sync, client, params, 21)
    await expect_weights(client, learner, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params), 21)


async def test_a_generation_paused_across_an_update_says_which_tokens_are_whose(client, sync, learner):
    old, new = params_of(31), params_of(32)
    await update(sync, client, old, 31)
    prompt = prompt_of(7, 9, CONFIG.vocab_size)
    async with asyncio.timeout(SECONDS), aiohttp.ClientSession() as stream:
        running = asyncio.ensure_future(generate(client, prompt, LONG))
        # A second generation, whose tokens come one by one, shows how far the first is: they take steps together.
        async with stream.post(f"{client.url}/generate", json=request_of(prompt, LONG, stream=True)) as shown:
            lines = 0
            async for line in shown.content:
                lines += line.startswith(b"data: {")
                if lines == 20:
                    break
            await update(sync, client, new, 32)
        generation, info = await running
    assert len(generation.token_ids) == LONG
    spans = [(int(span["version"]), span["start"], span["end"]) for span in info["weight_versions"]]
    assert [version for version, _, _ in spans] == [31, 32]
    assert [spans[0][1], spans[0][2], spans[1][2]] == [0, spans[1][1], LONG]
    row = ((*prompt, *generation.token_ids), (False,) * len(prompt) + (True,) * LONG)
    (under_old,), (under_new,) = (learner.learner_logprobs(params, [row]) for params in (old, new))
    change = spans[0][2]
    np.testing.assert_allclose(generation.logprobs, under_old[:change] + under_new[change:], atol=1e-4, rtol=0)
    assert np.abs(np.subtract(under_old, under_new)).mean() > 0.5, "the test needs weights that differ"


async def test_a_failed_update_leaves_the_old_weights_and_the_server_alive(client, learner, tmp_path, monkeypatch):
    sync = DiskWeightSync(CONFIG, tmp_path / "weights")
    await update(sync, client, params_of(41), 41)
    monkeypatch.setattr(DiskWeightSync, "_save", lambda *args: None)
    with pytest.raises(InfrastructureError, match="No server took weight version 42"):
        await sync.sync([client], params_of(42), 42)
    await expect_weights(client, learner, params_of(41), 41)
    monkeypatch.undo()
    await update(sync, client, params_of(43), 43)
    await expect_weights(client, learner, params_of(43), 43)
