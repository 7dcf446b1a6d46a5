"""A trajectory that forked has one ratio (Eq. 4): its rows give the loss and the gradient that one row would give."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.rl import forks
from orchestra_jax.rl.batching import MicroShapes, PackShapes, TokenSequence, sequences
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig, policy_loss
from orchestra_jax.rl.optimizer import make_optimizer
from orchestra_jax.rl.packing import micro_batches, pack
from orchestra_jax.types import Preference

from .trajectories import MODEL, task, trajectory, turn, weights

# Tokens of each row, and the trajectory that it is of: 0 and 2 forked.
LENGTHS, OWNERS = np.array([3, 5, 4, 2, 6, 1]), np.array([0, 0, 1, 2, 2, 2])
T = 12  # of the longest trajectory and more
ADVANTAGES = np.array([1.0, -1.5, 0.7], np.float32)


def rows(scale, seed=0):
    """Log-probs [6, T] of policy, old policy, engine and reference, and the mask."""
    rng = np.random.default_rng(seed)
    mask = np.arange(T) < LENGTHS[:, None]
    old = -rng.random(mask.shape) - 0.1
    names = ("logprobs", "rollout_logprobs", "ref_logprobs")
    return {name: (old + scale * rng.standard_normal(mask.shape)).astype(np.float32) for name in names} | {
        "old_logprobs": old.astype(np.float32),
        "mask": mask,
    }


def joined(values):
    """The same values with one row for each trajectory, [6, T]; the last three rows are empty."""
    found = np.zeros((len(LENGTHS), T), np.asarray(values).dtype)
    for owner in range(3):
        whole = np.concatenate([values[i, : LENGTHS[i]] for i in np.flatnonzero(owner == OWNERS)])
        found[owner, : len(whole)] = whole
    return found


def gradient(data, cfg, advantages, **options):
    def loss(new):
        return policy_loss(
            new, data["old_logprobs"], advantages, data["mask"], cfg, rollout_logprobs=data["rollout_logprobs"],
            ref_logprobs=data["ref_logprobs"], **options,
        )[0]  # fmt: skip

    return jax.value_and_grad(loss)(jnp.asarray(data["logprobs"]))


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
@pytest.mark.parametrize(
    ("name", "form"), [("sequence", False), ("sequence", True), ("gspo", False), ("gspo", True), ("grpo", False)]
)
def test_the_rows_of_a_trajectory_give_what_one_row_would(name, form, aggregation):
    options = {"clip_low": 0.3, "clip_high": 0.4, "dual_clip": 2.0, "kl_coef": 0.1, "constant": 40.0}
    cfg = LossConfig(
        loss=name, aggregation=aggregation, token_form=form, importance="tis" if form else "none", **options
    )
    share = LENGTHS / np.bincount(OWNERS, LENGTHS)[OWNERS]
    for scale in (0.02, 0.3):  # within the clip range, and mostly outside
        data = rows(scale)
        totals = ((data["logprobs"] - data["old_logprobs"]) * data["mask"]).sum(1)
        others = np.bincount(OWNERS, totals)[OWNERS] - totals
        related = {"share": np.float32(share), "other_log_ratios": np.float32(others)}
        whole = {field: joined(values) for field, values in data.items()}
        loss, wanted = gradient(whole, cfg, np.pad(ADVANTAGES, (0, 3)))
        found = gradient(data, cfg, ADVANTAGES[OWNERS], **related)
        np.testing.assert_allclose(found[0], loss, rtol=2e-5)
        np.testing.assert_allclose(joined(np.asarray(found[1])), wanted, rtol=2e-4, atol=1e-7)
        assert np.abs(wanted).max() > 1e-3


def test_without_forks_nothing_changes_to_the_bit():
    data = rows(0.1)
    for name, form in itertools.product(("sequence", "gspo", "grpo"), (False, True)):
        cfg = LossConfig(loss=name, aggregation="sequence", token_form=form)
        alone = {"share": np.ones(6, np.float32), "other_log_ratios": np.zeros(6, np.float32)}
        for one, other in zip(
            gradient(data, cfg, ADVANTAGES[OWNERS]), gradient(data, cfg, ADVANTAGES[OWNERS], **alone), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_a_trajectorys_sequences_know_whose_they_are_and_how_large():
    asked = task("a", "x", Preference("", ""))
    forked = trajectory(asked, turn([1, 2], [3, 4]), forks=[(turn([1, 5], [6]), turn([7], [8, 9, 10]))])
    found = sequences(forked, 0.5, 7)
    assert [(row.trajectory, row.share) for row in found] == [(7, 2 / 6), (7, 4 / 6)]
    assert [(row.trajectory, row.share) for row in sequences(trajectory(asked, turn([1], [2])), 0.5)] == [(0, 1.0)]


def token_rows():
    """Rows of random ids after a prompt of two."""
    rng = np.random.default_rng(1)
    found = []
    for length, owner in zip(LENGTHS.tolist(), OWNERS.tolist(), strict=True):
        ids = (1, 2, *rng.integers(3, 32, length).tolist())
        share = length / LENGTHS[owner == OWNERS].sum()
        sampled, logprobs = (False, False, *[True] * length), (0.0, 0.0, *[-3.4] * length)
        found.append(TokenSequence(ids, sampled, logprobs, 1, float(ADVANTAGES[owner]), owner, float(share)))
    return found


@pytest.mark.parametrize(
    "make", [lambda r: micro_batches(r, MicroShapes(8, (8,), ())), lambda r: pack(r, PackShapes(8, 1, 2))]
)
def test_rows_in_several_micro_batches_learn_of_each_other(make):
    """The trajectories' rows are longer than a micro-batch; two updates, the second with another policy than `old`."""
    cfg = LearnerConfig(LossConfig(loss="sequence", clip_low=0.9, clip_high=9.0))
    learner = Learner(MODEL, cfg, make_optimizer(OptimizerConfig(learning_rate=0.05, warmup_steps=0)))
    state = learner.init(weights())
    batches = [learner.with_old_logprobs(state.params, batch) for batch in make(token_rows())]
    assert len(batches) > 2
    assert sum(batch.num_sequences for batch in batches) == pytest.approx(3)
    state, metrics = learner.policy_step(state, batches)
    # At a ratio of 1 each trajectory adds its advantage once, however many rows it has.
    assert metrics["policy_loss"] == pytest.approx(-ADVANTAGES.sum() / LENGTHS.sum(), rel=1e-4)
    related = forks.with_other_log_ratios(learner, state.params, batches)
    own, owner = [], []
    for batch in batches:
        new = learner.with_old_logprobs(state.params, batch).old_logprobs
        there = np.asarray(batch.mask).any(1)
        own += np.asarray(((new - batch.old_logprobs) * batch.mask).sum(1))[there].tolist()
        owner += np.asarray(batch.trajectory)[there].tolist()
    own, owner = np.array(own), np.array(owner)
    assert np.abs(own).min() > 1e-3
    wanted = np.bincount(owner, own)[owner] - own
    found = np.concatenate([np.asarray(batch.other_log_ratios)[np.asarray(batch.mask).any(1)] for batch in related])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    for batch in related:
        assert not np.asarray(batch.other_log_ratios)[~np.asarray(batch.mask).any(1)].any()
    # One trajectory, one ratio: that of the sum.
    _, metrics = learner.policy_step(state, related)
    ratios = np.exp(np.bincount(owner, own))
    assert metrics["ratio_max"] == pytest.approx(ratios.max(), rel=1e-4)
