"""Two real SGLang servers on a tiny random checkpoint, started once for all tests."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.engines.sglang.engine import SGLangEngine
from orchestra_jax.engines.sglang.process import ServerConfig, SGLangProcess
from orchestra_jax.engines.sglang.weight_sync import DiskWeightSync
from orchestra_jax.models import decoder
from orchestra_jax.models.checkpoint import safetensors
from orchestra_jax.models.qwen3 import Qwen3Config
from tests.sglang.talker import save_tokenizer

CONFIG = Qwen3Config(
    vocab_size=512, hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16,
    rope_theta=1e4, max_position_embeddings=1024,
)  # fmt: skip
LENGTH = 512  # tokens of the longest sequence: one that is to be disturbed takes a second or more
TALKING_LENGTH = 4000  # of the server with a tokenizer: prompts of text are longer
ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = float(os.environ.get("SGLANG_START_S", 600))


class Talking(ServerConfig):
    """A server that has its tokenizer and finds calls in texts, unlike those that only take ids."""

    def command(self, port: int) -> list[str]:
        found = [part for part in super().command(port) if part != "--skip-tokenizer-init"]
        return [*found, "--tool-call-parser=qwen25"]


def random_params(seed: int, config=CONFIG):
    """Weights that are neither sure nor unsure at temperature 1 or 2; made without compiling."""
    random = np.random.default_rng(seed)

    def draw(leaf):
        values = 1 + 0.1 * random.normal(size=leaf.shape) if leaf.ndim == 1 else 0.25 * random.normal(size=leaf.shape)
        return jnp.asarray(values, leaf.dtype)

    return jax.tree.map(draw, dict(decoder.abstract_params(config)))


PARAMS = [random_params(seed) for seed in (0, 1)]


def engine_on(servers, folder, **options) -> SGLangEngine:
    """An engine on servers that hold `CONFIG`, whose new weights travel through the folder."""
    settings = {"max_length": LENGTH, "vocab_size": CONFIG.vocab_size, "weight_sync": DiskWeightSync(CONFIG, folder)}
    return SGLangEngine([server.url for server in servers], **(settings | options))


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    """Interpreter of an environment that has SGLang."""
    python = Path(os.environ.get("SGLANG_PYTHON", ROOT / ".venv-sglang" / "bin" / "python")).absolute()
    if not python.is_file():
        pytest.skip(f"no SGLang at {python}; make sglang-cpu, or set SGLANG_PYTHON")
    return python


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """The checkpoint of `PARAMS[0]`, with a tokenizer."""
    folder = tmp_path_factory.mktemp("sglang") / "model"
    safetensors.save(folder, replace(CONFIG, max_position_embeddings=4096), PARAMS[0])
    save_tokenizer(folder, CONFIG.vocab_size)
    return folder


@pytest.fixture(scope="session")
def servers(folder, sglang_python):
    """Holding version 0 at first; the second one has its tokenizer."""

    async def start() -> None:
        for server in found:  # the second one finds the bytecode that the first one made
            await server.start()

    async def stop() -> None:
        await asyncio.gather(*(server.stop() for server in found))

    found = [
        SGLangProcess(
            config(
                python=sglang_python, model=folder, log=folder.parent / f"{config.__name__}.log", device="cpu",
                max_length=length, ready_s=START_SECONDS,
            )
        )
        for config, length in ((ServerConfig, LENGTH), (Talking, TALKING_LENGTH))
    ]  # fmt: skip
    try:
        asyncio.run(start())
        yield found
    finally:
        asyncio.run(stop())


@pytest.fixture
def server(servers) -> SGLangProcess:
    """Nothing kills it."""
    return servers[0]


@pytest.fixture
async def victim(servers) -> SGLangProcess:
    """For tests that kill it; the next test gets it back."""
    await servers[1].revive()
    return servers[1]
