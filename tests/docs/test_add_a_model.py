"""The model family of docs/add_a_model.md, from a folder outside the repository."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from orchestra_jax.config.schema import ModelConfig
from orchestra_jax.models import checkpoint
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.decoder import empty_cache, forward, init_params, logits, write_cache
from orchestra_jax.models.families import FAMILIES, preset_config, run_settings
from orchestra_jax.models.lora import LoRA, attach, init_adapters
from orchestra_jax.models.sharding import make_mesh
from tests.docs.pages import begin_with


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelConfig:
    begin_with("add_a_model.md", "my_model.py", tmp_path, monkeypatch)
    return ModelConfig(family="my_model:ArceeConfig")


def noisy_params(config: DecoderConfig) -> dict:
    """Parameters without the zeros that biases start from."""
    rng = np.random.default_rng(1)  # made by jax.random, each shape would be a program to compile
    return jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf) + np.float32(0.3) * rng.standard_normal(leaf.shape, np.float32)),
        init_params(config, jax.random.key(0)),
    )


@functools.partial(jax.jit, static_argnums=1)
def run(params, config, tokens, positions, **past):
    """Return logits and the cache's entries: compiled as a whole, where each operation would be compiled by itself."""
    hidden, kv = forward(params, config, tokens, positions, **past)
    return logits(params, config, hidden), kv


@pytest.mark.slow
def test_the_example_is_a_family_like_ours(model: ModelConfig, tmp_path: Path) -> None:
    sizes = {"num_layers": 2, "hidden_size": 16, "intermediate_size": 16, "head_dim": 8}
    config = preset_config(model, vocab_size=32, bias=("q", "k", "v", "o")).replace(**sizes)
    params = noisy_params(config)
    tokens = np.random.default_rng(2).integers(0, 32, (2, 6), np.int32)
    positions = np.broadcast_to(np.arange(6, dtype=np.int32), (2, 6))

    full, kv = run(params, config, tokens, positions)
    full, rows = np.asarray(full), np.arange(2)
    front = jax.tree.map(lambda leaf: np.asarray(leaf)[..., :4, :], kv)
    cache = jax.jit(write_cache)(empty_cache(config, 2, 8), front, rows, np.zeros(2, np.int32), np.full(2, 4))
    rest, _ = run(params, config, tokens[:, 4:], positions[:, 4:], past=cache, past_lengths=np.full(2, 4))
    np.testing.assert_allclose(rest, full[:, 4:], atol=1e-4)

    without = {**params, "layers_0": {**params["layers_0"], "q": {"kernel": params["layers_0"]["q"]["kernel"]}}}
    with pytest.raises(Exception, match="bias"):
        run(without, config, tokens, positions)

    checkpoint.save(tmp_path / "saved", config, params)
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["architectures"] == ["ArceeForCausalLM"]
    with pytest.raises(ValueError, match=r"model_type 'arcee' of .* is not supported; give a model of one of llama"):
        checkpoint.load(tmp_path / "saved")
    mesh = make_mesh(1, 2, 4)
    loaded, placed = checkpoint.load(tmp_path / "saved", mesh, **run_settings(model))
    assert loaded == config
    assert placed["layers_0"]["k"]["bias"].sharding.spec == PartitionSpec("tensor")
    jax.tree.map(np.testing.assert_array_equal, placed, params)

    with pytest.raises(ValueError, match=r"has no gate; set model\.lora\.targets to some of q, k, v, o, up, down"):
        init_adapters(jax.random.key(3), config, LoRA(rank=2, alpha=4.0))
    lora = LoRA(rank=2, alpha=4.0, targets=("q", "up", "down"))
    adapted = attach(params, init_adapters(jax.random.key(3), config, lora), lora)
    np.testing.assert_array_equal(run(adapted, config, tokens, positions)[0], full)
    assert "arcee" not in FAMILIES.names()
