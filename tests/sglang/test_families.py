"""Checkpoints of other families on real servers: they load what we save, and greedy they say what our engine says."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits
from orchestra_jax.engines.base import Engine, Generation, SamplingParams
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.engines.sglang.engine import SGLangEngine
from orchestra_jax.engines.sglang.process import ServerConfig, SGLangProcess
from orchestra_jax.engines.sglang.weight_sync import DiskWeightSync
from orchestra_jax.models import checkpoint, decoder, saved_tokenizer
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.llama import LlamaConfig, MistralConfig, Qwen2Config
from orchestra_jax.models.qwen3_moe import Qwen3MoeConfig
from orchestra_jax.models.rope_scaling import RopeScaling
from orchestra_jax.rollout.chat import ChatFormat
from tests.engines.contract import prompt_of
from tests.sglang.conftest import START_SECONDS, random_params

pytestmark = pytest.mark.sglang
LENGTH = 256
SIZES: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
    "head_dim": 16, "rope_theta": 1e4, "max_position_embeddings": 1024,
}  # fmt: skip
STRETCHED = RopeScaling("llama3", 8.0, original_length=64, slow=1.0, fast=4.0)
CONFIGS = {
    "llama": LlamaConfig(**SIZES, rope_scaling=STRETCHED, tie_word_embeddings=True),
    "mistral": MistralConfig(**SIZES, tie_word_embeddings=False),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, expert_size=32, num_experts=8, experts_per_token=2),
}
CAPITAL = "What is the capital of France?"
QUESTIONS = (
    CAPITAL,
    "Write a Python function that returns the n-th Fibonacci number.",
    "Tell me in three sentences why the sky is blue.",
    "List five animals that live in the sea.",
)


async def said(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[Generation]:
    async with asyncio.timeout(START_SECONDS):
        try:
            return await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))
        finally:
            await engine.close()


async def both(
    folder: Path, python: Path, scratch: Path, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> list[Generation]:
    """What our engine says; a server that loaded the folder by itself says the same, with the same log-probs."""
    config, weights = checkpoint.load(folder)
    limits = RolloutLimits(max_length=LENGTH, max_new_tokens=params.max_new_tokens)
    engine = EmbeddedEngine(config, weights, RolloutConfig(slots=len(prompts), threads=1, limits=limits))
    ours = await said(engine, prompts, params)
    server = SGLangProcess(
        ServerConfig(python, folder, scratch / "log", device="cpu", max_length=LENGTH, ready_s=START_SECONDS)
    )
    try:
        await server.start()
        sync = DiskWeightSync(config, scratch)
        client = SGLangEngine([server.url], max_length=LENGTH, vocab_size=config.vocab_size, weight_sync=sync)
        theirs = await said(client, prompts, params)
    finally:
        await server.stop()
    for prompt, own, other in zip(prompts, ours, theirs, strict=True):
        assert own.token_ids == other.token_ids, difference(config, weights, prompt, own, other)
        np.testing.assert_allclose(own.logprobs, other.logprobs, atol=1e-4, rtol=0)
    return ours


def difference(config: DecoderConfig, weights: Any, prompt: Sequence[int], own: Generation, other: Generation) -> str:
    """Where the two part, and how far apart the two tokens' logits are there."""
    pairs = enumerate(zip(own.token_ids, other.token_ids, strict=False))
    at = next((place for place, (one, two) in pairs if one != two), None)
    if at is None:
        return f"{len(own.token_ids)} and {len(other.token_ids)} tokens"
    ids = jnp.asarray((*prompt, *own.token_ids[:at]))[None]
    hidden, _ = decoder.forward(weights, config, ids, jnp.arange(ids.shape[1])[None])
    last = decoder.logits(weights, config, hidden)[0, -1]
    one, two = own.token_ids[at], other.token_ids[at]
    return f"token {at} is {one} here and {two} there; its logit is {float(last[one] - last[two]):.2e} larger"


# SmolLM2 is a Llama, and a server needs half a minute of a core to start: the rest is for a release.
@pytest.mark.parametrize(
    "name", [name if name == "qwen2" else pytest.param(name, marks=pytest.mark.release) for name in CONFIGS]
)
async def test_a_server_says_what_we_say(name: str, sglang_python: Path, tmp_path: Path) -> None:
    config = CONFIGS[name]
    checkpoint.save(tmp_path / name, config, random_params(3, config))
    prompts = [prompt_of(seed, 90 * seed + 5, config.vocab_size) for seed in range(3)]
    found = await both(tmp_path / name, sglang_python, tmp_path, prompts, SamplingParams(32, 0.0))
    assert [len(generation.token_ids) for generation in found] == [32] * 3
    assert len({generation.token_ids for generation in found}) == 3


async def test_a_pretrained_policy_answers_a_question(smollm2_dir: Path, sglang_python: Path, tmp_path: Path) -> None:
    chat = ChatFormat(saved_tokenizer.load(smollm2_dir))
    prompts = [chat.prompt_ids([{"role": "user", "content": question}]) for question in QUESTIONS]
    found = await both(smollm2_dir, sglang_python, tmp_path, prompts, SamplingParams(40, 0.0, chat.stop_ids))
    texts = dict(zip(QUESTIONS, (chat.decode(generation.token_ids) for generation in found), strict=True))
    assert texts.pop(CAPITAL) == "The capital of France is Paris."
    assert all(len(generation.token_ids) >= 24 for generation in found[1:]), texts
