"""Qwen3-MoE against a layer by hand, on one device and on eight, and its files."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from orchestra_jax.models import checkpoint
from orchestra_jax.models.decoder import abstract_params, forward
from orchestra_jax.models.experts import expert_mlps, route
from orchestra_jax.models.lora import LoRA, abstract_adapters
from orchestra_jax.models.qwen3_moe import Qwen3MoeConfig
from orchestra_jax.models.sharding import MeshSharding, make_mesh
from orchestra_jax.models.sizes import num_params
from tests.models.trees import drawn_params, to_params, to_tensors

CONFIG = Qwen3MoeConfig.preset(
    "tiny", vocab_size=40, hidden_size=16, expert_size=8, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4,
    scan_layers=True, remat="full", initializer_range=0.3,
)  # fmt: skip
E, K, D, F = 6, 2, 8, 5


def layer(seed: int, tokens: int, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Tokens, the router's matrix and the experts'."""
    shapes = {"y": (tokens, D), "router": (D, E), "gate": (E, D, F), "up": (E, D, F), "down": (E, F, D)}
    rng = np.random.default_rng(seed)  # made by jax.random, each shape would be a program to compile
    return {name: rng.standard_normal(shape, np.float32).astype(jnp.dtype(dtype)) for name, shape in shapes.items()}


def baselines(at: dict[str, np.ndarray], normalise: bool) -> np.ndarray:
    """Token by token, expert by expert."""
    out = np.zeros_like(at["y"])
    for row, x in enumerate(at["y"]):
        scores = np.exp(x @ at["router"] - (x @ at["router"]).max())
        scores /= scores.sum()
        best = np.argsort(-scores)[:K]
        for e in best:
            share = scores[e] / scores[best].sum() if normalise else scores[e]
            gate = x @ at["gate"][e]
            out[row] += share * ((gate / (1 + np.exp(-gate)) * (x @ at["up"][e])) @ at["down"][e])
    return out


def ours(at: dict[str, jax.Array], normalise: bool, own: slice = slice(0, E)) -> jax.Array:
    """What the experts `own` add."""
    shares, chosen = route(at["y"] @ at["router"], K, normalise=normalise)
    matrices = (at[name][own] for name in ("gate", "up", "down"))
    return expert_mlps(at["y"], shares, chosen, jnp.arange(E)[own], *matrices, num_experts=E)


def dense(at: dict[str, jax.Array], normalise: bool) -> jax.Array:
    """All experts on all tokens: what JAX differentiates without our help."""
    shares, chosen = route(at["y"] @ at["router"], K, normalise=normalise)
    share = (jax.nn.one_hot(chosen, E) * shares[..., None]).sum(1)
    hidden = jax.nn.silu(jnp.einsum("nd,edf->nef", at["y"], at["gate"])) * jnp.einsum("nd,edf->nef", at["y"], at["up"])
    return jnp.einsum("ne,nef,efd->nd", share, hidden, at["down"])


# Experts without a token, and experts of several blocks.
@pytest.mark.parametrize(("tokens", "normalise"), [(3, True), (120, False)])
def test_layer_and_gradients_are_those_by_hand(tokens: int, normalise: bool) -> None:
    at = layer(tokens, tokens)
    want = baselines({name: np.asarray(value, np.float64) for name, value in at.items()}, normalise)
    direction = np.random.default_rng(9).standard_normal((tokens, D), np.float32)

    def halves(at: dict[str, jax.Array]) -> jax.Array:
        return ours(at, normalise, slice(0, E // 2)) + ours(at, normalise, slice(E // 2, E))

    @functools.partial(jax.jit, static_argnums=1)
    def both(at, function):
        return function(at), jax.grad(lambda at: (function(at) * direction).sum())(at)

    value, expected = both(at, functools.partial(dense, normalise=normalise))
    np.testing.assert_allclose(value, want, atol=2e-5)
    for function in (functools.partial(ours, normalise=normalise), halves):  # one device, and the sum of two
        got, grads = both(at, function)
        np.testing.assert_allclose(got, want, atol=2e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), grads, expected)
    assert all(np.abs(leaf).max() > 1e-2 for leaf in expected.values())


def test_no_token_is_dropped_and_each_is_alone() -> None:
    at = layer(3, 70)
    one = np.tile(at["y"][:1], (70, 1))  # all go to the same two experts, whatever room these have
    same = jax.jit(ours, static_argnums=1)(at | {"y": one}, True)
    same = np.asarray(same)
    np.testing.assert_allclose(same, np.tile(same[:1], (70, 1)), atol=1e-6)
    np.testing.assert_allclose(same[:1], baselines({k: np.asarray(v) for k, v in at.items()}, True)[:1], atol=2e-5)


TOKENS = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (8, 6), np.int32)
POSITIONS = np.broadcast_to(np.arange(6, dtype=np.int32), TOKENS.shape)


@functools.cache
def weights() -> dict:
    return drawn_params(CONFIG)


def value(params, config, tokens, constrain=None):
    hidden, _ = forward(params, config, tokens, POSITIONS, constrain=constrain)
    return (hidden * jnp.cos(jnp.arange(hidden.size)).reshape(hidden.shape)).mean(), hidden


GRADIENTS = jax.jit(jax.value_and_grad(value, has_aux=True), static_argnums=(1, 3))


@pytest.mark.slow
@pytest.mark.skipif(jax.device_count() != 8, reason="needs the 8 virtual devices of conftest.py")
def test_experts_split_over_devices_give_the_same() -> None:
    (_, want), expected = GRADIENTS(weights(), CONFIG, TOKENS)
    sharding = MeshSharding(make_mesh(2, 2, 2))
    placed = jax.device_put(weights(), sharding.params(abstract_params(CONFIG), axes=CONFIG.axes))
    up = placed["layers"]["experts_up"]["kernel"]
    assert up.sharding.shard_shape(up.shape) == (2, 4, 8, 8)
    tokens = jax.device_put(TOKENS, sharding.batch)
    compiled = GRADIENTS.lower(placed, CONFIG, tokens, sharding).compile()
    (_, got), grads = compiled(placed, tokens)
    np.testing.assert_allclose(got, want, atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, expected)
    gathered = set(re.findall(r"f32(\[[\d,]+\])\S* all-gather", compiled.as_text()))
    assert "[1,4,16,8]" in gathered  # of a layer's own four experts, the two halves of the model's width
    assert not any(shape.startswith("[1,8,") for shape in gathered)  # nobody gathers the experts of another


def test_padding_changes_nothing_and_scanned_layers_are_the_unrolled_ones() -> None:
    ids = jnp.array([[1, 1, 1, 1, 0, 0]] * 8)
    run = jax.jit(forward, static_argnums=1)
    want, _ = run(weights(), CONFIG, TOKENS, POSITIONS, segment_ids=ids)
    unrolled = CONFIG.replace(scan_layers=False, remat="none")
    params = to_params(to_tensors(weights(), CONFIG), unrolled)
    got, _ = run(params, unrolled, jnp.asarray(TOKENS).at[:, 4:].set(3), POSITIONS, segment_ids=ids)
    np.testing.assert_allclose(got[:, :4], want[:, :4], atol=1e-5)


def test_tensors_have_the_hubs_names_and_come_back_equal(tmp_path) -> None:
    checkpoint.save(tmp_path, CONFIG, weights())
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        assert len(file.keys()) == 2 + 2 * (2 + 6 + 1 + 3 * 8)
        up = file.get_tensor("model.layers.1.mlp.experts.7.up_proj.weight")
        assert file.get_tensor("model.layers.0.mlp.gate.weight").shape == (8, 16)
    np.testing.assert_array_equal(up, weights()["layers"]["experts_up"]["kernel"][1, 7].T)
    for mesh in (None, make_mesh(fsdp=jax.device_count() // 2, tensor=2) if jax.device_count() == 8 else None):
        config, params = checkpoint.load(tmp_path, mesh, scan_layers=True, remat="full")
        assert config == CONFIG
        jax.tree.map(np.testing.assert_array_equal, params, dict(weights()))


def test_what_is_not_computed_is_refused_by_name() -> None:
    hf = CONFIG.to_hf()
    assert Qwen3MoeConfig.from_hf(hf | {"mlp_only_layers": None}, scan_layers=True, remat="full") == CONFIG
    renamed = {key: value for key, value in hf.items() if key != "num_experts"} | {"num_local_experts": 8}
    assert Qwen3MoeConfig.from_hf(renamed, scan_layers=True, remat="full") == CONFIG  # as transformers 5 writes it
    for name, found in (("mlp_only_layers", [0]), ("decoder_sparse_step", 2)):
        with pytest.raises(ValueError, match=rf"{name}=.* is not supported; this decoder has only {name}="):
            Qwen3MoeConfig.from_hf(hf | {name: found})
    with pytest.raises(ValueError, match=r"experts_per_token \(9\) must be 1 to num_experts \(8\)"):
        CONFIG.replace(experts_per_token=9)
    assert set(abstract_adapters(CONFIG, LoRA(2, 4.0, ("q", "v")))["layers"]) == {"q", "v"}
    with pytest.raises(ValueError, match=r"has no gate, up, down; set model\.lora\.targets to some of q, k, v, o\."):
        abstract_adapters(CONFIG, LoRA(2, 4.0))


@pytest.mark.parametrize(
    ("name", "billions", "active"), [("qwen3-30b-a3b", 30.53, 3.35), ("qwen3-235b-a22b", 235.09, 22.19)]
)
def test_released_sizes(name: str, billions: float, active: float) -> None:
    config = Qwen3MoeConfig.preset(name, scan_layers=True)
    assert num_params(config) / 1e9 == pytest.approx(billions, abs=0.005)
    assert (num_params(config) - config.idle_params()) / 1e9 == pytest.approx(active, abs=0.005)
    assert 0 < config.idle_params(100) < config.idle_params(10) < config.idle_params()
