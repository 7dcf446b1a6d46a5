import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra_jax.rl.advantages import group_advantages, informative_groups, member_masks
from tests.rl.test_rewards import features, reward_of

advantages_of = jax.jit(group_advantages, static_argnames=("min_std", "centre", "normalize_std", "clip"))
informative = jax.jit(informative_groups, static_argnames="min_std")


def brute_force_advantages(rewards, valid, min_std=0.1, centre=True, normalize_std=True, clip=None):
    """Eq. 3 with plain loops, in float64."""
    out = np.zeros(rewards.shape)
    for g in range(rewards.shape[0]):
        members = [n for n in range(rewards.shape[1]) if valid[g, n]]
        if not members:
            continue
        values = [float(rewards[g, n]) for n in members]
        mean = sum(values) / len(values)
        std = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
        if std < min_std or max(values) == min(values):
            continue
        for n in members:
            advantage = (float(rewards[g, n]) - (mean if centre else 0.0)) / (std if normalize_std else 1.0)
            out[g, n] = advantage if clip is None else min(max(advantage, -clip), clip)
    return out


def random_groups(seed, G=6, N=8):
    rng = np.random.default_rng(seed)
    rewards = rng.random((G, N)).astype(np.float32) * rng.choice([0.05, 1.0, 2.0], (G, 1)).astype(np.float32)
    valid = rng.random((G, N)) < 0.7
    valid[0] = False
    valid[1] = np.arange(N) == 3
    rewards[2] = 0.3
    return rewards, valid


def test_worked_by_hand():
    # Members 0-2 hold 1, 0, .5: mean .5, std sqrt(.5/3) = .408248, so A = +-1.224745 and 0; member 3 is not valid.
    advantages = advantages_of(np.array([[1.0, 0.0, 0.5, 7.0]]), np.array([[True, True, True, False]]))
    np.testing.assert_allclose(advantages, [[1.2247449, -1.2247449, 0.0, 0.0]], rtol=1e-6)


def test_population_std_decides_the_filter():
    # [0, .19] has population std .095 < .1 although its sample std is .134; [0, .2] is exactly at the limit and stays.
    rewards, valid = np.array([[0.0, 0.19], [0.0, 0.2], [0.6, 0.8]]), np.ones((3, 2), bool)
    assert informative(rewards, valid).tolist() == [False, True, True]
    np.testing.assert_allclose(advantages_of(rewards, valid), [[0, 0], [-1, 1], [-1, 1]], rtol=1e-5)


def test_equal_rewards_give_exact_zeros_without_a_filter():
    # The float32 mean of some equal numbers is another number: rounding must not become +-1.
    rewards = np.full((64, 7), np.linspace(0.1, 0.9, 64)[:, None], np.float32)
    assert (rewards.sum(1) / 7 != rewards[:, 0]).any()
    valid = np.ones(rewards.shape, bool)
    np.testing.assert_array_equal(advantages_of(rewards, valid, min_std=0.0), np.zeros(rewards.shape))
    assert not informative(rewards, valid, min_std=0.0).any()
    rewards[:] = np.eye(7)[0] * 1e-30  # they differ by less than a float32 has squares for: their std is 0
    assert np.isfinite(advantages_of(rewards, valid, min_std=0.0)).all()


def test_options():
    rewards, valid = np.array([[0.0, 0.0, 0.0, 0.0, 1.0]]), np.ones((1, 5), bool)
    np.testing.assert_allclose(advantages_of(rewards, valid), [[-0.5] * 4 + [2.0]], rtol=1e-6)
    plain = advantages_of(rewards, valid, normalize_std=False)
    np.testing.assert_allclose(plain, [[-0.2] * 4 + [0.8]], rtol=1e-6)
    np.testing.assert_allclose(advantages_of(rewards, valid, clip=1.5), [[-0.5] * 4 + [1.5]], rtol=1e-6)


def test_invalid_members_hold_anything():
    rewards, valid = random_groups(0)
    clean = advantages_of(rewards, valid)
    rewards[~valid] = np.nan
    np.testing.assert_array_equal(advantages_of(rewards, valid), clean)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_std": 0.0},
        {"min_std": 0.5},
        {"normalize_std": False},
        {"centre": False},
        {"clip": 0.7, "min_std": 0.0},
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_matches_plain_loops(seed, options):
    rewards, valid = random_groups(seed)
    advantages = advantages_of(rewards, valid, **options)
    np.testing.assert_allclose(advantages, brute_force_advantages(rewards, valid, **options), atol=2e-5)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(8)), st.integers(0, 50))
def test_permuting_a_group_permutes_its_advantages(order, seed):
    rewards, valid = random_groups(seed)
    order = np.array(order)
    moved = advantages_of(rewards[:, order], valid[:, order])
    np.testing.assert_allclose(moved, np.asarray(advantages_of(rewards, valid))[:, order], atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 3, width=32), min_size=6, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_kept_groups_have_mean_zero_and_std_one(rewards, valid):
    members = np.array([valid])
    advantages = np.asarray(advantages_of(np.array([rewards], np.float32), members))
    assert np.isfinite(advantages).all()
    assert (advantages[~members] == 0).all()
    if advantages.any():
        np.testing.assert_allclose([advantages[members].mean(), advantages[members].std()], [0, 1], atol=1e-4)


def test_member_masks():
    completed, failed = np.array([[True, False, False, True]]), np.array([[False, False, True, True]])
    assert member_masks(completed, failed).tolist() == [[True, False, False, False]]
    assert member_masks(completed, failed, invalid="zero_reward").tolist() == [[True, True, False, False]]
    with pytest.raises(ValueError, match="drop, zero_reward"):
        member_masks(completed, failed, invalid="punish")


def test_drop_and_zero_reward_end_to_end():
    # Members: two solved (cost .1 and .3), one malformed with an absurd cost, one infrastructure failure.
    completed, failed = np.array([[True, True, False, False]]), np.array([[False, False, False, True]])
    M = features(np.zeros((1, 4, 1)), completed, np.array([[0.1, 0.3, 99.0, 77.0]]), np.array([[1.0, 1.0, 9.0, 9.0]]))
    preference, exists = np.array([[0.0, 1.0, 1.0, 0.0]]), np.ones((1, 4), bool)
    rewards = reward_of(M, preference, completed, completed, exists, normalize_outcome=False)
    np.testing.assert_allclose(rewards, [[2.0, 1.0, 0.0, 0.0]], rtol=1e-6)  # 99 dollars did not stretch the min-max
    drop = advantages_of(rewards, member_masks(completed, failed))
    np.testing.assert_allclose(drop, [[1.0, -1.0, 0.0, 0.0]], rtol=1e-5)
    zero = advantages_of(rewards, member_masks(completed, failed, invalid="zero_reward"))
    np.testing.assert_allclose(zero, [[1.2247449, 0.0, -1.2247449, 0.0]], atol=1e-6)
