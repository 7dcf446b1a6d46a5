"""A real SGLang server on a tiny random checkpoint, started once for all tests that share it."""

import asyncio
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.engines.sglang.process import ServerConfig, ServerProcess
from orchestra_jax.models import qwen3
from orchestra_jax.models.checkpoint import safetensors

CONFIG = qwen3.Qwen3Config(
    vocab_size=512, hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16,
    rope_theta=1e4, max_position_embeddings=1024,
)  # fmt: skip
LENGTH = 512  # tokens of the longest sequence: one that is to be disturbed takes a second or more
ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = float(os.environ.get("SGLANG_START_S", 600))


def random_params(seed: int):
    """Weights that are neither sure nor unsure at temperature 1 or 2; made without compiling."""
    random = np.random.default_rng(seed)

    def draw(leaf):
        values = 1 + 0.1 * random.normal(size=leaf.shape) if leaf.ndim == 1 else 0.25 * random.normal(size=leaf.shape)
        return jnp.asarray(values, leaf.dtype)

    return jax.tree.map(draw, dict(qwen3.abstract_params(CONFIG)))


PARAMS = [random_params(seed) for seed in (0, 1)]


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    """Interpreter of an environment that has SGLang."""
    python = Path(os.environ.get("SGLANG_PYTHON", ROOT / ".venv-sglang" / "bin" / "python")).absolute()
    if not python.is_file():
        pytest.skip(f"no SGLang at {python}; make sglang-cpu, or set SGLANG_PYTHON")
    return python


@pytest.fixture(scope="session")
def make_server(tmp_path_factory, sglang_python):
    """Starts servers that hold version 0 of `PARAMS[0]`; stops them at the end."""
    folder = tmp_path_factory.mktemp("sglang")
    safetensors.save(folder / "model", CONFIG, PARAMS[0])
    started = []

    def start(port: int = 0) -> ServerProcess:
        server = ServerProcess(
            ServerConfig(
                sglang_python, folder / "model", folder / f"server{len(started)}.log", port=port, device="cpu",
                max_length=LENGTH, ready_s=START_SECONDS,
            )
        )  # fmt: skip
        started.append(server)
        asyncio.run(server.start())
        return server

    yield start
    for server in started:
        asyncio.run(server.stop())


@pytest.fixture(scope="session")
def server(make_server) -> ServerProcess:
    return make_server()


@pytest.fixture(scope="session")
def victim(make_server) -> ServerProcess:
    """A second server, for tests that kill it."""
    return make_server()
