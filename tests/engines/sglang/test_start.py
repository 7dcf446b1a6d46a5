"""The servers that a run starts or finds: what they are started with, hold, compute in, and what is said of it."""

import asyncio
import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits, ServerOptions
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.engines.sglang import start as engines
from orchestra_jax.engines.sglang.process import ServerConfig
from orchestra_jax.engines.sglang.start import start_servers
from orchestra_jax.models import decoder
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.processes import Processes
from tests.engines.sglang.stub import soon
from tests.engines.sglang.stub import start as begun

CONFIG = Qwen3Config.preset("tiny", vocab_size=50, hidden_size=8, intermediate_size=12, num_layers=1, head_dim=4)
LIMITS = RolloutLimits(max_length=64, max_new_tokens=8)


def masters():
    """Policy weights in fp32."""
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype("f4"), dict(decoder.abstract_params(CONFIG)))


def flags(**options) -> list[str]:
    return ServerConfig(python="python", model="model", log="log", **options).command(1)


def test_a_server_never_chooses_its_dtype():
    assert "--dtype=bfloat16" in flags()
    assert "--enable-fp32-lm-head" in flags()
    # On a CPU the tests compare it with an fp32 learner.
    assert "--dtype=float32" in flags(device="cpu")
    assert "--enable-fp32-lm-head" not in flags(device="cpu")
    assert "--dtype=float32" in flags(dtype="float32")
    assert flags(flags=("--dtype=float16",))[-1] == "--dtype=float16"  # the user's flags win


@pytest.mark.parametrize(
    ("rollout", "dtype"),
    [
        (RolloutConfig(), "bfloat16"),
        (RolloutConfig(server=ServerOptions(device="cpu")), "float32"),
        (RolloutConfig(server=ServerOptions(device="cpu"), urls=["http://a:1"]), "bfloat16"),
        (RolloutConfig(weight_dtype="float32"), "float32"),
    ],
)
def test_the_serving_dtype_follows_the_device(rollout, dtype):
    assert rollout.serving_dtype == dtype


class Started:
    """A server of the run whose process is a stub; keeps what it was started with."""

    seen: list = []  # noqa: RUF012

    def __init__(self, config: ServerConfig) -> None:
        self.url = Started.seen[0].url
        Started.seen.append(config)

    def launch(self) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


async def test_a_run_starts_exports_and_pushes_in_bf16(servers, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(engines, "SGLangProcess", Started)
    monkeypatch.setattr(Started, "seen", [servers[0]])
    servers[0].details = {"dtype": "bfloat16", "enable_fp32_lm_head": True}
    rollout = RolloutConfig(
        engine="sglang", limits=LIMITS, server=ServerOptions(python="p"), weight_folder=str(tmp_path / "push")
    )
    params = masters()
    running = await start_servers(rollout, CONFIG, params, 1, 50, tmp_path, Processes())
    await running.close()
    config = Started.seen[1]
    assert (config.dtype, "--dtype=bfloat16" in config.command(1)) == ("bfloat16", True)
    exported, pushed = Path(config.model), Path(servers[0].updates[0]["model_path"])
    for folder in (exported, pushed):
        assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
        tensors = load_file(folder / "model.safetensors")
        assert {str(array.dtype) for array in tensors.values()} == {"bfloat16"}
        assert (
            sum(array.nbytes for array in tensors.values()) == sum(leaf.nbytes for leaf in jax.tree.leaves(params)) / 2
        )
    assert "1 SGLang server samples in bfloat16, its LM head in float32." in capsys.readouterr().out


async def test_a_context_that_sglang_refuses_is_told_with_one_that_it_takes(servers, tmp_path: Path, monkeypatch):
    """It starts with --context-length at most the model's own, of which it leaves some tokens unused."""
    monkeypatch.setattr(engines, "SGLangProcess", Started)
    monkeypatch.setattr(Started, "seen", [servers[0]])
    model = CONFIG.replace(max_position_embeddings=64)
    rollout = RolloutConfig(engine="sglang", limits=LIMITS, server=ServerOptions(python="p", device="cpu"))
    with pytest.raises(ConfigError, match=r"was made for 64 .*: set rollout\.limits\.max_length=58 or less\.$"):
        await start_servers(rollout, model, masters(), 1, 50, tmp_path, Processes())
    assert Started.seen == [servers[0]]
    rollout = dataclasses.replace(rollout, limits=RolloutLimits(max_length=58, max_new_tokens=8))
    await (await start_servers(rollout, model, masters(), 1, 50, tmp_path, Processes())).close()
    assert "--context-length=64" in Started.seen[1].command(1)


async def found(servers, tmp_path: Path, **details) -> None:
    for server in servers:
        server.details = details
    rollout = RolloutConfig(
        engine="sglang", limits=LIMITS, urls=[server.url for server in servers], weight_folder=str(tmp_path)
    )
    running = await start_servers(rollout, CONFIG, masters(), 1, 50, tmp_path, Processes())
    await running.close()


@pytest.mark.parametrize("said", ["float16", "half", "float32"])
async def test_a_server_that_computes_in_another_dtype_is_refused(servers, tmp_path, said):
    wrong = {"half": "float16"}.get(said, said)
    with pytest.raises(ConfigError, match=rf"samples in {wrong}, but .* bfloat16 .*start it with --dtype bfloat16\.$"):
        await found(servers, tmp_path, dtype=said)


async def test_auto_is_what_sglang_makes_of_the_models_folder(servers, tmp_path, monkeypatch, capsys):
    model = CONFIG.replace(param_dtype="float32").to_hf()
    (tmp_path / "config.json").write_text(json.dumps(model))
    info = servers[0].info = servers[1].info = {"model_path": str(tmp_path)}
    with pytest.raises(ConfigError, match="samples in float16"):
        await found(servers, tmp_path, dtype="auto")
    (tmp_path / "config.json").write_text(json.dumps(model | {"torch_dtype": "bfloat16"}))
    await found(servers, tmp_path, dtype="auto")
    assert "2 SGLang servers sample in bfloat16." in capsys.readouterr().out
    info.clear()
    await found(servers, tmp_path, dtype="auto")
    assert "2 SGLang servers sample in a dtype that is not told." in capsys.readouterr().out


async def test_a_generation_may_wait_for_new_weights_longer_than_its_work_may_take(servers, tmp_path: Path):
    """A push of 16 GB over a shared disk to many servers takes minutes, and is no work of what is under way."""
    limits = dataclasses.replace(LIMITS, deadline_s=0.5)
    rollout = RolloutConfig(engine="sglang", limits=limits, urls=[servers[0].url], weight_folder=str(tmp_path))
    running = await start_servers(rollout, CONFIG, masters(), 1, 50, tmp_path, Processes())
    servers[0].gate.clear()
    (caller,) = begun(running.engine, 1)
    await soon(lambda: servers[0].active)
    servers[0].hangs = ["/update_weights_from_disk"]
    update = asyncio.ensure_future(running.engine.update_weights(masters(), 2))
    await asyncio.sleep(1)
    servers[0].hangs = []
    await update
    servers[0].gate.set()
    assert (await caller).weight_version == 2
    assert len(servers[0].bodies) == 1
    await running.close()
