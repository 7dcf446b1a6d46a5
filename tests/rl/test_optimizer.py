"""What an optimizer does: schedules, clipping, decay, moments and parameters in bf16, and what Muon orthogonalises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.models.decoder import abstract_params
from orchestra_jax.models.lora import LoRA, abstract_adapters
from orchestra_jax.rl.objectives import apply_gradients, init_state
from orchestra_jax.rl.optimizer import layer_matrices, learning_rate, make_optimizer
from tests.models.trees import drawn_params

from .trajectories import MODEL

CONFIG = MODEL.replace(vocab_size=40, num_layers=2, tie_word_embeddings=False)
MUON = OptimizerConfig(0.1, "muon", b2=0.95, max_grad_norm=1e9, adam_learning_rate=0.01)


def stacked(tree):
    """The unstacked tree in the layout of scan_layers, on the host: JAX would compile a program for every shape."""
    layers = [tree[f"layers_{i}"] for i in range(CONFIG.num_layers)]
    rest = {name: value for name, value in tree.items() if not name.startswith("layers")}
    return rest | {"layers": jax.tree.map(lambda *leaves: np.stack(leaves), *layers)}


def updates_of(params, gradients, cfg=MUON, total_steps=1):
    """The updates of some steps, of which all but the first have moments."""
    optimizer = make_optimizer(cfg, total_steps)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    found = []
    for gradient in gradients:
        moved, state = update(gradient, state, params)
        found.append(moved)
    return found


def by_path(tree) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


@pytest.fixture(scope="module")
def moved():
    """Updates of the unstacked and of the stacked policy, on the same gradients."""
    params = drawn_params(CONFIG)
    gradients = [drawn_params(CONFIG, seed) for seed in (1, 2)]
    return updates_of(params, gradients), updates_of(stacked(params), [stacked(g) for g in gradients])


def test_stacked_layers_move_as_layers_of_their_own(moved):
    plain, scanned = moved
    for wanted, found in zip(plain, scanned, strict=True):
        wanted, found = by_path(stacked(wanted)), by_path(found)
        assert wanted.keys() == found.keys()
        for path in wanted:
            np.testing.assert_allclose(found[path], wanted[path], rtol=1e-5, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("layout", [0, 1], ids=["unstacked", "stacked"])
def test_matrices_of_layers_are_orthogonalised_and_all_else_gets_adam(moved, layout):
    first = by_path(moved[layout][0])
    for path, update in first.items():
        names = path.split("/")
        if names[-1] == "kernel" and names[0].startswith("layers"):
            for matrix in update.reshape(-1, *update.shape[-2:]):
                singular = np.linalg.svd(matrix / 0.1, compute_uv=False)
                singular /= max(1, matrix.shape[1] / matrix.shape[0]) ** 0.5
                assert 0.5 < singular.min() < singular.max() < 1.5, path
        else:
            # Adam's first step moves every weight by its whole rate; Nesterov's momentum more than that.
            np.testing.assert_allclose(np.abs(update), np.abs(update).max(), rtol=1e-3, err_msg=path)
            assert 0.01 <= np.abs(update).max() < 0.02, path
    kinds = {path.split("/")[0].split("_")[0] for path in first}
    assert kinds == {"embed", "lm", "norm", "layers"}


@pytest.mark.parametrize("scan", [False, True])
def test_what_muon_takes_is_known_by_path(scan):
    config = CONFIG.replace(scan_layers=scan)
    layers = ["layers"] if scan else [f"layers_{i}" for i in range(2)]
    matrices = [f"{layer}/{name}/kernel" for layer in layers for name in ("q", "k", "v", "o", "gate", "up", "down")]
    assert sorted(by_path(layer_matrices(abstract_params(config)))) == sorted(
        f"{path}/{axis}" for path in matrices for axis in ("reduction_axis", "output_axis")
    )
    adapters = abstract_adapters(config, LoRA(2, 4.0, ("q",)))
    assert len(jax.tree.leaves(layer_matrices(adapters))) == 2 * len(jax.tree.leaves(adapters))
    biased = {"layers": {"q": {"bias": jnp.zeros((3, 8)), "kernel": jnp.zeros((3, 4, 8))}}}
    assert layer_matrices(biased)["layers"]["q"]["bias"] is None


def test_the_rate_of_adam_beside_muon_follows_the_same_schedule():
    cfg = OptimizerConfig(0.1, "muon", warmup_steps=4, schedule="linear", max_grad_norm=1e9, adam_learning_rate=0.002)
    params = {"norm": jnp.ones(5), "layers_0": {"q": {"kernel": jnp.ones((4, 4))}}}
    gradient = {"norm": jnp.ones(5), "layers_0": {"q": {"kernel": jnp.eye(4)}}}
    optimizer, alike = (make_optimizer(c, 8) for c in (cfg, OptimizerConfig(**vars(cfg) | {"adam_learning_rate": 0.1})))
    states = [optimizer.init(params), alike.init(params)]
    update, alike_update = jax.jit(optimizer.update), jax.jit(alike.update)
    for _ in range(6):
        small, states[0] = update(gradient, states[0], params)
        large, states[1] = alike_update(gradient, states[1], params)
        np.testing.assert_allclose(small["norm"], 0.02 * large["norm"], rtol=1e-5)
        np.testing.assert_array_equal(small["layers_0"]["q"]["kernel"], large["layers_0"]["q"]["kernel"])


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_adam_by_hand_at_the_rates_of_its_schedule(name):
    """Muon's has Nesterov's momentum."""
    cfg = OptimizerConfig(
        0.4, name, 2, "linear", final_fraction=0.2, weight_decay=0.1, b1=0.7, b2=0.8, max_grad_norm=1e9
    )
    weight, gradients = np.array([2.0, -4.0, 0.5]), np.random.default_rng(0).standard_normal((5, 3))
    params, given = {"norm": jnp.asarray(weight, jnp.float32)}, [{"norm": jnp.asarray(g)} for g in gradients]
    mean, square = np.zeros(3), np.zeros(3)
    for t, (found, g) in enumerate(zip(updates_of(params, given, cfg, total_steps=6), gradients, strict=True)):
        mean, square = 0.7 * mean + 0.3 * g, 0.8 * square + 0.2 * g**2
        ahead = mean / (1 - 0.7 ** (t + 1))
        if name == "muon":
            ahead = 0.7 * mean / (1 - 0.7 ** (t + 2)) + 0.3 * g / (1 - 0.7 ** (t + 1))
        step = ahead / np.sqrt(square / (1 - 0.8 ** (t + 1))) + 0.1 * weight
        np.testing.assert_allclose(found["norm"], -0.4 * [0.5, 0.75, 1.0, 0.8, 0.6][t] * step, rtol=1e-4)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_parameter_decays_by_its_own_rate(name):
    params = drawn_params(CONFIG.replace(num_layers=1))
    cfg = OptimizerConfig(0.1, name, weight_decay=0.5, adam_learning_rate=0.01)
    (moved,) = updates_of(params, [jax.tree.map(jnp.zeros_like, params)], cfg)
    wanted, by_muon = by_path(params), by_path(layer_matrices(params))
    for path, update in by_path(moved).items():
        rate = 0.01 if name == "muon" and f"{path}/output_axis" not in by_muon else 0.1
        np.testing.assert_allclose(update, -rate * 0.5 * wanted[path], rtol=1e-6, err_msg=path)


def test_a_step_needs_a_finite_loss_and_a_finite_gradient():
    optimizer = make_optimizer(OptimizerConfig(0.1))
    state = init_state({"w": jnp.ones(2)}, optimizer)
    apply = jax.jit(functools.partial(apply_gradients, optimizer))
    for gradient, loss, skipped in ((1.0, 2.0, 0), (1.0, np.nan, 1), (np.nan, 2.0, 1), (1.0, np.inf, 1)):
        found, figures = apply(state, ({"w": np.full(2, gradient)}, np.float32(loss)))
        assert (figures["skipped"], int(found.step)) == (skipped, 1 - skipped)
        assert (found.params["w"] == 1).all() == (skipped == 1)


def test_bf16_parameters_take_steps_that_are_smaller_than_their_last_bit():
    """To nearest they would not: a weight of 1 has neighbours .004 and .008 away."""
    optimizer = make_optimizer(OptimizerConfig(1e-5))
    params = {"w": jnp.ones(65536, jnp.bfloat16), "exact": jnp.ones(4)}
    state = init_state(params, optimizer)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(state.opt_state)} == {"float32", "int32"}
    apply = jax.jit(functools.partial(apply_gradients, optimizer))
    grads = {"w": jnp.ones(65536), "exact": jnp.ones(4)}
    for _ in range(20):
        state, _ = apply(state, (grads, jnp.zeros(())))
    moved = {name: 1 - float(leaf.astype(jnp.float32).mean()) for name, leaf in state.params.items()}
    assert state.params["w"].dtype == jnp.bfloat16
    assert moved["exact"] == pytest.approx(2e-4, rel=1e-2)
    assert moved["w"] == pytest.approx(2e-4, rel=0.1)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", {0: 0.25, 1: 0.4375, 4: 1.0, 9: 1.0, 14: 1.0, 99: 1.0}),
        ("linear", {0: 0.25, 2: 0.625, 4: 1.0, 9: 0.6, 14: 0.2, 99: 0.2}),
        ("cosine", {0: 0.25, 3: 0.8125, 4: 1.0, 9: 0.6, 14: 0.2, 99: 0.2}),
    ],
)
def test_learning_rate_warms_up_then_follows_its_schedule(schedule, expected):
    cfg = OptimizerConfig(2.0, warmup_steps=4, schedule=schedule, final_fraction=0.2)
    rate = learning_rate(cfg, 14)
    for step, share in expected.items():
        assert float(rate(step)) == pytest.approx(2.0 * share, rel=1e-6), step
    assert float(learning_rate(OptimizerConfig(2.0, schedule=schedule), 14)(0)) == pytest.approx(2.0)
    assert float(learning_rate(cfg, 2)(1)) == pytest.approx(2.0 * 0.4375)  # the run ends before its warm-up


def test_the_optimizer_clips_the_global_norm_and_decays_weights():
    cfg = OptimizerConfig(0.1, weight_decay=0.5, max_grad_norm=1.0)
    optimizer = make_optimizer(cfg)
    params, update = {"w": np.array([2.0, -4.0], np.float32)}, jax.jit(optimizer.update)
    big, _ = update({"w": np.array([300.0, 400.0])}, optimizer.init(params), params)
    clipped, _ = update({"w": np.array([0.6, 0.8])}, optimizer.init(params), params)
    np.testing.assert_allclose(big["w"], clipped["w"], rtol=1e-6)
    idle, _ = update({"w": np.zeros(2)}, optimizer.init(params), params)
    np.testing.assert_allclose(idle["w"], -0.1 * 0.5 * params["w"], rtol=1e-6)


def test_bf16_moments_follow_fp32_ones():
    params = {"w": jax.random.normal(jax.random.key(0), (64, 64))}
    exact, stored = (make_optimizer(OptimizerConfig(0.1, moment_dtype=kind)) for kind in ("float32", "bfloat16"))
    states, moved = [exact.init(params), stored.init(params)], []
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(states[1])} == {"bfloat16", "int32"}
    for step in range(10):
        grads = {"w": jax.random.normal(jax.random.key(step), (64, 64))}
        for i, optimizer in enumerate((exact, stored)):
            updates, states[i] = jax.jit(optimizer.update)(grads, states[i], params)
            moved.append(updates["w"])
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(states[1])} == {"bfloat16", "int32"}
    wanted, found = moved[-2], moved[-1]
    assert found.dtype == jnp.float32
    assert float(jnp.linalg.norm(found - wanted) / jnp.linalg.norm(wanted)) < 0.02


def test_a_bf16_second_moment_decays_as_its_b2_says():
    """To nearest it would not: 0.999 * nu rounds back to nu."""
    optimizer = make_optimizer(OptimizerConfig(0.1, b1=0.9, b2=0.999, moment_dtype="bfloat16"))
    params = {"w": jnp.ones(4096)}
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    _, state = update({"w": jnp.ones(4096) / 64}, state, params)

    def mean_nu() -> float:
        (nu,) = (
            leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state) if ".nu" in jax.tree_util.keystr(path)
        )
        return float(nu.astype(jnp.float32).mean())

    start = mean_nu()
    assert start == pytest.approx(0.001 / 64**2, rel=1e-3)
    for _ in range(500):
        _, state = update({"w": jnp.zeros(4096)}, state, params)
    assert mean_nu() / start == pytest.approx(0.999**500, rel=0.02)


def test_an_unknown_moment_dtype_is_an_error():
    with pytest.raises(ValueError, match="moment_dtype=float16 is unknown: use bfloat16, or one of float32"):
        OptimizerConfig(0.1, moment_dtype="float16")
