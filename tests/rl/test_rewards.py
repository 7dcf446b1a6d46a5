import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra_jax.rl.rewards import feature_matrix, normalize_features, preference_reward, preference_score

# Outside jit, JAX compiles a program for every operation and shape.
features = jax.jit(feature_matrix, static_argnames="tool_feature")
reward_of = jax.jit(preference_reward, static_argnames="normalize_outcome")


def brute_force_reward(M, preference, solved, valid, tool_mask, normalize_outcome=True):
    """Eq. 2 with plain loops, in float64."""
    G, N, F = M.shape
    out = np.zeros((G, N))
    for g in range(G):
        members = [n for n in range(N) if valid[g, n]]
        for n in members:
            if not solved[g, n]:
                continue
            for k in range(F):
                if not tool_mask[g, k]:
                    continue
                column = [float(M[g, m, k]) for m in members]
                low, high = min(column), max(column)
                norm = 0.0 if high == low else (float(M[g, n, k]) - low) / (high - low)
                if k == F - 3 and not normalize_outcome:
                    norm = float(M[g, n, k])
                out[g, n] += norm * float(preference[g, k])
    return out


def random_batch(seed, G=5, N=6, K=4):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, (G, N, K))
    counts[0, :, 1] = 2  # a constant feature
    solved = rng.random((G, N)) < 0.6
    cost, latency = rng.random((G, N)).astype(np.float32), (100 * rng.random((G, N))).astype(np.float32)
    cost[1] = 0.25
    valid = rng.random((G, N)) < 0.7
    valid[2] = False  # a group without a valid member
    valid[3] = np.arange(N) == 1  # a group with one
    solved[4] = valid[4] = True  # all right
    tool_mask = np.concatenate([rng.random((G, K)) < 0.7, np.ones((G, 3), bool)], axis=-1)
    M = np.array(features(counts, solved, cost, latency))
    return M, rng.random((G, K + 3)).astype(np.float32), solved, valid, tool_mask


def one_group(normalize_outcome=True):
    """Three valid members and one that is not; preference for tool 0, the outcome and low cost."""
    M = np.asarray(
        features(
            np.array([[[4, 1], [2, 1], [0, 1], [9, 9]]]),
            np.array([[True, True, False, True]]),
            np.array([[0.3, 0.1, 0.5, 9.0]]),
            np.array([[10.0, 20.0, 30.0, 1.0]]),
        )
    )
    return reward_of(
        M,
        np.array([[0.5, 1.0, 1.0, 0.4, 0.0]]),
        M[..., -3] > 0,
        np.array([[True, True, True, False]]),
        np.ones((1, 5), bool),
        normalize_outcome=normalize_outcome,
    )


def test_feature_matrix_order_and_signs():
    M = feature_matrix(jnp.array([[[3, 0, 1]]]), jnp.array([[True]]), jnp.array([[0.5]]), jnp.array([[7.0]]))
    np.testing.assert_array_equal(M, [[[3.0, 0.0, 1.0, 1.0, -0.5, -7.0]]])
    assert M.dtype == jnp.float32


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("count", [[3, 0, 1], [0, 0, 0], [0, 2, 0]]),
        ("used", [[1, 0, 1], [0, 0, 0], [0, 1, 0]]),
        ("share", [[0.75, 0, 0.25], [0, 0, 0], [0, 1, 0]]),
    ],
)
def test_tool_features(kind, expected):
    counts, zeros = np.array([[[3, 0, 1], [0, 0, 0], [0, 2, 0]]]), np.zeros((1, 3))
    M = features(counts, zeros > 0, zeros, zeros, tool_feature=kind)
    np.testing.assert_array_equal(np.asarray(M)[0, :, :3], np.array(expected, np.float32))


def test_unknown_tool_feature():
    zeros = jnp.zeros((1, 2))
    with pytest.raises(ValueError, match="count, used, share"):
        feature_matrix(jnp.zeros((1, 2, 1)), zeros > 0, zeros, zeros, tool_feature="squared")


def test_reward_worked_by_hand():
    # Member 0: tool 0 is (4-0)/4 = 1, tool 1 constant -> 0, outcome 1, cost (-.3+.5)/.4 = .5: .5 + 1 + .4*.5 = 1.7.
    # Member 1: tool 0 is 2/4, outcome 1, cost (-.1+.5)/.4 = 1: .25 + 1 + .4 = 1.65. Member 2 unsolved, 3 invalid.
    np.testing.assert_allclose(one_group(), [[1.7, 1.65, 0.0, 0.0]], rtol=1e-6)


def test_all_right_group_loses_or_keeps_the_outcome():
    ones = np.ones((1, 2), bool)
    M = features(np.zeros((1, 2, 1)), ones, np.zeros((1, 2)), np.zeros((1, 2)))
    args = M, np.array([[0.0, 0.8, 0.0, 0.0]]), ones, ones, np.ones((1, 4), bool)
    np.testing.assert_array_equal(reward_of(*args), [[0.0, 0.0]])
    np.testing.assert_allclose(reward_of(*args, normalize_outcome=False), [[0.8, 0.8]])
    np.testing.assert_allclose(one_group(normalize_outcome=False), one_group())  # a mixed group is the same


def test_invalid_members_hold_anything():
    M, preference, solved, valid, tool_mask = random_batch(0)
    clean = reward_of(M, preference, solved, valid, tool_mask)
    M[~valid] = np.nan
    for normalize_outcome in (True, False):
        norm = np.asarray(normalize_features(M, valid, normalize_outcome=normalize_outcome))
        assert not norm[~valid].any()
        assert norm[valid].any()
    for anything in (np.inf, np.nan):
        every_other = (np.arange(M.shape[1]) % 2 == 0)[:, None]
        M[~tool_mask[:, None, :] & every_other] = preference[~tool_mask] = anything
        np.testing.assert_array_equal(reward_of(M, preference, solved, valid, tool_mask), clean)


@pytest.mark.parametrize("normalize_outcome", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_reward_matches_plain_loops(seed, normalize_outcome):
    batch = random_batch(seed)
    reward = reward_of(*batch, normalize_outcome=normalize_outcome)
    np.testing.assert_allclose(reward, brute_force_reward(*batch, normalize_outcome), atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 50))
def test_permuting_a_group_permutes_its_rewards(order, seed):
    M, preference, solved, valid, tool_mask = random_batch(seed)
    order = np.array(order)
    reward = np.asarray(reward_of(M, preference, solved, valid, tool_mask))
    moved = reward_of(M[:, order], preference, solved[:, order], valid[:, order], tool_mask)
    np.testing.assert_allclose(moved, reward[:, order], rtol=1e-6)


def test_preference_score_worked_by_hand():
    # Example 0: tool 6/3 = 2, outcome 1/1, cost .8/max(1, .2) = .8, latency 30/10 = 3: 2 + .5 + .8 + .1*3 = 3.6.
    # Example 1: the start never called the tool: 2/max(1, 0) = 2; latency 5/20 = .25. Example 2 is unsolved.
    M_s = np.array([[6.0, 1, -0.2, -10], [2.0, 1, 0, -20], [9.0, 0, -1, -1]])
    M_0 = np.array([[3.0, 1, -0.8, -30], [0.0, 0, 0, -5], [1.0, 1, -9, -9]])
    preference = np.array([[1.0, 0.5, 1.0, 0.1], [1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    score = jax.jit(preference_score)(M_s, M_0, preference, np.array([True, True, False]))
    np.testing.assert_allclose(score, [3.6, 2.25, 0.0], rtol=1e-6)


def test_preference_score_matches_plain_loops():
    rng = np.random.default_rng(1)
    E, F = 7, 6
    M_s, M_0 = 3 * rng.random((2, E, F))
    M_s[:, -2:] *= -5
    M_0[:, -2:] *= -5
    preference, solved = rng.random((E, F)), rng.random(E) < 0.6
    expected = np.zeros(E)
    for e in range(E):
        for k in range(F):
            gain = M_s[e, k] / max(1, M_0[e, k]) if k <= F - 3 else abs(M_0[e, k]) / max(1, abs(M_s[e, k]))
            expected[e] += solved[e] * gain * preference[e, k]
    np.testing.assert_allclose(jax.jit(preference_score)(M_s, M_0, preference, solved), expected, rtol=1e-5)
