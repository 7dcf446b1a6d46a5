"""Corrections for an engine whose log-probs differ from the learner's, by hand and at the size of a real trajectory."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.rl.losses import LOSSES, LossConfig, policy_loss, recomputes_old

from .test_losses import SHAPE, padded

# Log of learner / engine of two sequences of three and two tokens.
GAPS = np.log(np.array([[2.0, 2.0, 0.5], [0.1, 1.0, 1.0]], np.float32))
MASK = np.array([[True, True, True], [True, True, False]])
OLD = np.full((2, 3), -1.0, np.float32)
ONES = np.ones(2, np.float32)


def loss_of(cfg: LossConfig, advantages=ONES):
    """Loss and gradient of the on-policy update."""

    rollout = np.where(padded(MASK), padded(OLD - GAPS), np.float32(np.nan))

    def loss(new):
        return policy_loss(new, padded(OLD), padded(advantages), padded(MASK), cfg, rollout_logprobs=rollout)

    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(padded(OLD))
    return float(value), metrics, np.asarray(gradient)[:2, :3]


@pytest.mark.parametrize(
    ("level", "weights"),
    [
        ("token", [[2, 2, 0.5], [0.1, 1, 0]]),
        ("sequence", [[2, 2, 2], [0.1, 0.1, 0]]),
        ("geometric", [[2 ** (1 / 3)] * 3, [0.1**0.5] * 2 + [0]]),
    ],
)
def test_levels_of_the_weights(level, weights):
    value, metrics, gradient = loss_of(LossConfig(importance="tis", importance_cap=3.0, importance_level=level))
    np.testing.assert_allclose(value, -np.sum(weights) / 5, rtol=1e-5)
    np.testing.assert_allclose(gradient, -np.array(weights) / 5, rtol=1e-5, atol=1e-9)
    assert metrics["sequence_masked"] == 0


@pytest.mark.parametrize(
    ("bounds", "kept", "by"),
    [
        ({"mask_geometric_high": 1.2}, [0, 1], "geometric"),  # 2^(1/3) = 1.26 and .1^(1/2) = .32
        ({"mask_geometric_low": 0.5}, [1, 0], "geometric"),
        ({"mask_product_high": 1.5}, [0, 1], "product"),  # 2 and .1
        ({"mask_product_low": 0.5, "mask_product_high": 3.0}, [1, 0], "product"),
        ({"mask_veto": 0.2}, [1, 0], "veto"),
        ({"mask_veto": 0.05}, [1, 1], "veto"),
        ({"mask_veto": 0.2, "mask_product_high": 1.5}, [0, 0], "veto"),
    ],
)
@pytest.mark.parametrize("importance", ["none", "tis"])
def test_masks_by_hand(bounds, kept, by, importance):
    """A masked sequence has no policy gradient; it still counts where the rest is averaged."""
    plain = loss_of(LossConfig(importance=importance))[2]
    _, metrics, gradient = loss_of(LossConfig(importance=importance, **bounds))
    np.testing.assert_allclose(gradient, plain * np.array(kept)[:, None], rtol=1e-6)
    assert metrics["sequence_masked"] == 1 - sum(kept) / 2
    assert (metrics[f"sequence_masked_{by}"] > 0) == (metrics["sequence_masked"] > 0)
    others = {"geometric", "product", "veto"} - {by}
    if len(bounds) == 1:
        assert all(metrics[f"sequence_masked_{other}"] == 0 for other in others)


@pytest.mark.parametrize("cfg", [LossConfig(), LossConfig(mask_veto=1e-4)])
def test_figures_are_finite_where_engine_and_learner_are_worlds_apart(cfg):
    _, metrics = policy_loss(OLD, OLD, ONES, MASK, cfg, rollout_logprobs=OLD - 200)
    assert all(np.isfinite(figure) for figure in metrics.values())
    assert metrics["mismatch_max"] == 200


def test_the_share_that_icepop_takes_out_is_of_the_sampled_tokens():
    _, metrics, _ = loss_of(LossConfig(importance="icepop", importance_cap=1.5))  # 2, 2, .5 and .1, and not 1
    assert metrics["icepop_fraction"] == pytest.approx(4 / 5)


def test_a_mask_leaves_the_kl():
    cfg = LossConfig(kl_coef=0.5, mask_product_high=1e-9)
    value, metrics = policy_loss(
        padded(OLD), padded(OLD), padded(ONES), padded(MASK), cfg,
        rollout_logprobs=padded(OLD - np.where(MASK, GAPS, 0)), ref_logprobs=padded(OLD - 1),
    )  # fmt: skip
    assert metrics["sequence_masked"] == 1
    assert value == pytest.approx(0.5 * 0.5)


@pytest.mark.parametrize("loss", ["sequence", "gspo"])
@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_the_token_form_is_the_same_loss_until_tokens_weigh(loss, aggregation):
    rng = np.random.default_rng(0)
    old = -rng.random(SHAPE).astype(np.float32)
    mask = rng.random(SHAPE) < 0.8
    new, advantages = old + 0.05 * rng.standard_normal(SHAPE).astype(np.float32), jnp.array([1.0, -1.0, 0.5, -2.0])

    def call(rollout, **cfg):
        def value(new):
            chosen = LossConfig(loss, aggregation=aggregation, clip_low=0.9, clip_high=9.0, **cfg)
            return policy_loss(new, old, advantages, mask, chosen, rollout_logprobs=rollout)[0]

        return jax.value_and_grad(value)(jnp.asarray(new))

    plain, formed = call(old), call(old, token_form=True)
    np.testing.assert_allclose(formed[0], plain[0], rtol=1e-5)
    np.testing.assert_allclose(formed[1], plain[1], rtol=1e-4, atol=1e-7)
    # One token that the engine thought twice as likely: in token form its own gradient halves, in the plain form all do
    # alike, by the mean.
    row, column = np.argwhere(mask)[0]
    rollout = old.copy()
    rollout[row, column] += math.log(2)
    weighed = call(rollout, importance="tis", token_form=True)[1] / np.where(mask, plain[1], 1)
    expected = mask.astype(float)
    expected[row, column] = 0.5
    np.testing.assert_allclose(weighed, expected, rtol=1e-4)
    smeared = np.asarray(call(rollout, importance="tis")[1] / np.where(mask, plain[1], 1))
    np.testing.assert_allclose(smeared[row][mask[row]], 1 - 0.5 / mask[row].sum(), rtol=1e-4)


def test_who_recomputes_old():
    over_sequences = {name for name in LOSSES.names() if recomputes_old(LossConfig(name))}
    assert over_sequences == {"sequence", "gspo"}
    for correction in ({"importance": "tis"}, {"mask_veto": 1e-4}, {"mask_geometric_low": 0.9}):
        assert recomputes_old(LossConfig("grpo", **correction))


@pytest.mark.slow
def test_rounding_of_a_real_trajectory_no_longer_silences_it():
    """4,000 tokens, noise of sd .02 a token: with the engine's log-probs as old, and with the learner's."""
    rng = np.random.default_rng(0)
    engine = -rng.exponential(1.0, (400, 4000)).astype(np.float32)
    learner = engine + 0.02 * rng.standard_normal(engine.shape).astype(np.float32)
    advantages = jnp.asarray(np.where(np.arange(400) % 2, 1.0, -1.0))

    def of(old, **cfg):
        def value(new):
            chosen = LossConfig("sequence", **cfg)
            return policy_loss(new, old, advantages, np.ones(engine.shape, bool), chosen, rollout_logprobs=engine)

        (_, metrics), gradient = jax.value_and_grad(value, has_aux=True)(jnp.asarray(learner))
        size = np.abs(np.asarray(gradient)).mean(axis=1) * 400  # of each trajectory; 1 is the policy gradient's
        return metrics, (size == 0).mean(), size[size > 0]

    _, silent, sizes = of(engine)
    assert 0.38 < silent < 0.48
    assert sizes.min() < 0.1
    assert sizes.max() > 2
    corrected = {"token_form": True, "importance": "tis", "mask_geometric_low": 0.99, "mask_geometric_high": 1.01}
    for cfg in ({}, corrected):
        metrics, silent, sizes = of(learner, **cfg)
        assert silent == metrics["sequence_masked"] == 0
        assert 0.99 < sizes.min() <= sizes.max() < 1.01
