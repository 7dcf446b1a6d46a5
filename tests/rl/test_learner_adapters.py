"""The learner trains adapters on a frozen base."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.models.lora import LoRA, abstract_adapters, attach, init_adapters
from orchestra_jax.rl.learner import Learner
from orchestra_jax.rl.optimizer import make_optimizer
from orchestra_jax.rl.packing import micro_batches

from .packed_rows import assert_trees_close, recorder
from .test_learner import FULL, KL, MICRO, as_bytes, learner, make_rows, naive_supervised_loss
from .trajectories import MODEL, weights

ADAPTERS = LoRA(rank=2, alpha=6.0, targets=("q", "v", "down"))


def some_adapters():
    """Adapters that change the policy: B is not zero."""
    rng = np.random.default_rng(5)  # made by jax.random, each shape would be a program to compile
    shapes = abstract_adapters(MODEL, ADAPTERS)
    return jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.standard_normal(leaf.shape, np.float32)), shapes)


def test_adapters_have_the_gradient_of_the_adapted_policy_and_the_base_stays():
    made = Learner(MODEL, learner(**KL).cfg, recorder(), adapters=ADAPTERS)
    rows, adapters = make_rows(), some_adapters()

    @jax.jit
    @jax.value_and_grad
    def expected(adapters):
        return naive_supervised_loss(attach(weights(), adapters, ADAPTERS), rows)

    before = as_bytes(weights())
    state, metrics = made.supervised_step(made.init(adapters), micro_batches(rows, MICRO), base=weights())
    assert as_bytes(weights()) == before
    loss, gradient = expected(adapters)
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert jax.tree.structure(state.params) == jax.tree.structure(adapters)
    assert_trees_close(state.opt_state, gradient)


def test_adapters_train_against_their_own_base():
    made = Learner(MODEL, learner(**KL).cfg, make_optimizer(OptimizerConfig(1e-2)), adapters=ADAPTERS)
    (batch,) = micro_batches(make_rows(), FULL)
    state = made.init(jax.jit(init_adapters, static_argnums=(1, 2))(jax.random.key(4), MODEL, ADAPTERS))
    batch = made.with_ref_logprobs(weights(), made.with_old_logprobs(state.params, batch, base=weights()))
    np.testing.assert_allclose(batch.ref_logprobs, batch.old_logprobs, atol=1e-6)  # fresh adapters change nothing
    before = as_bytes(state.params)
    state, metrics = made.policy_step(state, [batch], base=weights())
    assert metrics["kl_loss"] == pytest.approx(0, abs=1e-9)
    assert metrics["update_norm"] > 0
    assert as_bytes(state.params) != before
    state, metrics = made.policy_step(state, [batch], base=weights())
    assert metrics["kl_loss"] > 0
    with pytest.raises(ValueError, match="Pass base=, the frozen parameters, when the learner has adapters"):
        made.policy_step(state, [batch])


def test_a_reference_may_be_other_adapters_on_the_base():
    made = Learner(MODEL, learner(**KL).cfg, make_optimizer(OptimizerConfig(1e-2)), adapters=ADAPTERS)
    (batch,) = micro_batches(make_rows(), FULL)
    state, base = made.init(some_adapters()), weights()
    batch = made.with_old_logprobs(state.params, batch, base=base)
    on_base = made.with_ref_logprobs(jax.tree.map(np.asarray, some_adapters()), batch, base=base)
    np.testing.assert_array_equal(on_base.ref_logprobs, batch.old_logprobs)
    assert np.abs(made.with_ref_logprobs(base, batch).ref_logprobs - batch.old_logprobs).max() > 0.01
