import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from orchestra_jax.models.decoder import abstract_params, forward, init_params, output_head
from orchestra_jax.models.logprobs import token_logprobs
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.models.sharding import MeshSharding, ShardingRules, make_mesh

CONFIG = Qwen3Config.preset("tiny", vocab_size=64, num_layers=2, hidden_size=32, intermediate_size=48, head_dim=8)
needs_8 = pytest.mark.skipif(jax.device_count() != 8, reason="needs the 8 virtual devices of conftest.py")


@needs_8
def test_mesh_sizes() -> None:
    assert dict(make_mesh(2, 2, 2).shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert make_mesh(fsdp=-1, tensor=2).shape["fsdp"] == 4
    assert make_mesh(devices=jax.devices()[:1]).size == 1
    for sizes in [(1, 1, 1), (3, -1, 1), (-1, -1, 1), (0, 1, 8)]:
        with pytest.raises(ValueError, match="does not cover 8 device"):
            make_mesh(*sizes)


@needs_8
def test_rules_by_name() -> None:
    sharding = MeshSharding(make_mesh(2, 2, 2))
    specs = jax.tree.map(lambda s: s.spec, sharding.params(abstract_params(CONFIG)))
    layer = specs["layers_0"]
    assert specs["embed"] == P("tensor", "fsdp")
    assert (layer["q"]["kernel"], layer["o"]["kernel"]) == (P("fsdp", "tensor"), P("tensor", "fsdp"))
    assert (layer["gate"]["kernel"], layer["down"]["kernel"]) == (P("fsdp", "tensor"), P("tensor", "fsdp"))
    assert layer["q_norm"] == specs["norm"] == P(None)
    stacked = sharding.params(abstract_params(CONFIG.replace(scan_layers=True)))
    assert stacked["layers"]["up"]["kernel"].spec == P(None, "fsdp", "tensor")
    odd = sharding.params(abstract_params(CONFIG.replace(vocab_size=63)))
    assert odd["embed"].spec == P(None, "fsdp")
    whole = MeshSharding(sharding.mesh, ShardingRules(embed=None)).params(abstract_params(CONFIG))
    assert whole["embed"].spec == P("tensor", None)


@needs_8
def test_optimizer_state_follows_the_parameters() -> None:
    optax = pytest.importorskip("optax")
    abstract = abstract_params(CONFIG)
    shardings = MeshSharding(make_mesh(1, 4, 2)).params(jax.eval_shape(optax.adamw(1e-3).init, abstract))
    assert shardings[0].mu["layers_1"]["up"]["kernel"].spec == P("fsdp", "tensor")
    assert shardings[0].count.spec == P()
    with pytest.raises(ValueError, match=r"No sharding rule for \['bias'\] of shape \(3,\)"):
        MeshSharding(make_mesh(8)).params({"bias": jnp.zeros(3)})


TOKENS = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (8, 6), np.int32)


@functools.cache
def value_and_gradients(config: Qwen3Config):
    """Of log-probs and entropies: a function of parameters, tokens and a constraint on activations."""

    def loss(params, tokens, constrain):
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        hidden, _ = forward(params, config, tokens, positions, constrain=constrain)
        logprobs, entropy = token_logprobs(
            hidden.reshape(-1, config.hidden_size),
            output_head(params, config),
            jnp.roll(tokens, -1, 1).reshape(-1),
            temperature=1.0,
            chunk=16,
        )
        return (logprobs + 0.1 * entropy).mean()

    return jax.value_and_grad(loss)


@functools.cache
def on_one_device(config: Qwen3Config):
    """Parameters, value and gradients, for the meshes to share."""
    local = init_params(config, jax.random.key(0))
    return local, *jax.jit(value_and_gradients(config), static_argnums=2)(local, TOKENS, None)


@needs_8
@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 2, 2), (1, 4, 2)])
@pytest.mark.parametrize("scan", [pytest.param(False, marks=pytest.mark.slow), True])
def test_sharded_loss_and_gradients_equal_one_device(sizes: tuple[int, int, int], scan: bool) -> None:
    # Without a scan a second layer is traced and compiled as the first one is.
    depth = {"num_layers": 2 if scan else 1, "scan_layers": scan, "remat": "full" if scan else "none"}
    config = CONFIG.replace(**depth, tie_word_embeddings=not scan)
    sharding = MeshSharding(make_mesh(*sizes))
    shardings = sharding.params(abstract_params(config))
    params = jax.jit(init_params, static_argnums=0, out_shardings=shardings)(config, jax.random.key(0))
    local, expected_value, expected = on_one_device(config)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), params, local)
    step = jax.jit(value_and_gradients(config), static_argnums=2, out_shardings=(None, shardings))
    value, grads = step(params, jax.device_put(TOKENS, sharding.batch), sharding)
    assert float(value) == pytest.approx(float(expected_value), abs=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, expected)
