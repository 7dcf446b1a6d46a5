import dataclasses
import functools
import itertools
import re
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.models.decoder import forward, logits
from orchestra_jax.rl.batch_logprobs import batch_logprobs
from orchestra_jax.rl.batching import MicroShapes, TokenSequence
from orchestra_jax.rl.learner import Learner, LearnerConfig, _whole_batch
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.objectives import Normalisers
from orchestra_jax.rl.optimizer import make_optimizer
from orchestra_jax.rl.packing import micro_batches

from .packed_rows import assert_trees_close, recorder
from .trajectories import MODEL, weights

WIDTH, ROWS = 16, 8
# One micro-batch; many small ones; one that shares prompts. Few shapes, so few compilations.
FULL = MicroShapes(WIDTH * ROWS, (WIDTH,), ())
MICRO = MicroShapes(WIDTH * 2, (WIDTH,), ())
SHARED = MicroShapes(WIDTH * ROWS, (WIDTH,), (6,), rows_per_prefix=2)

PERCENTILES = ("ratio_p01", "ratio_p50", "ratio_p99", "importance_p01", "importance_p99")


def make_rows(seed: int = 0, count: int = 7, members: int = 3) -> list[TokenSequence]:
    """Groups of `members` rows with a common prompt, then sampled and observed ids by turns."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        if i % members == 0:
            prompt = rng.integers(1, 32, 2 + (i // members + 2) % 5).tolist()
        extra = int(rng.integers(3, WIDTH - 7))
        tokens = (*prompt, *rng.integers(1, 32, extra).tolist())
        sampled = (False,) * len(prompt) + tuple(j % 4 != 2 for j in range(extra))
        behaviour = tuple(float(rng.normal(-3.3, 0.3)) if s else 0.0 for s in sampled)
        rows.append(TokenSequence(tokens, sampled, behaviour, len(prompt) - 1, float(rng.normal())))
    return rows


def padded(rows) -> tuple[np.ndarray, np.ndarray]:
    tokens, mask = np.zeros((ROWS, WIDTH), np.int32), np.zeros((ROWS, WIDTH), np.float32)
    for b, row in enumerate(rows):
        tokens[b, : len(row.tokens)], mask[b, : len(row.tokens)] = row.tokens, row.sampled
    return tokens, mask


@functools.partial(jax.jit, static_argnames="temperature")
def naive_scores(params, tokens, mask, temperature=1.0):
    """Log-probs and entropies of masked tokens by log_softmax of all logits of the whole rows."""
    hidden, _ = forward(params, MODEL, tokens, jnp.broadcast_to(jnp.arange(WIDTH), tokens.shape))
    table = jax.nn.log_softmax(logits(params, MODEL, hidden)[:, :-1] / temperature)
    chosen = jnp.take_along_axis(table, tokens[:, 1:, None], axis=-1)[..., 0]
    entropy = -(jnp.exp(table) * table).sum(-1)
    return tuple(jnp.pad(x, ((0, 0), (1, 0))) * mask for x in (chosen, entropy))


def naive_supervised_loss(params, rows):
    """The mean over sampled tokens, to which a row adds as often as its weight says."""
    tokens, mask = padded(rows)
    weights = np.pad([row.advantage for row in rows], (0, ROWS - len(rows)))
    return -(naive_scores(params, tokens, mask)[0] * weights[:, None]).sum() / mask.sum()


@functools.cache
def learner(**loss) -> Learner:
    cfg = LearnerConfig(LossConfig(**{"clip_low": 0.6, "clip_high": 3.0} | loss), entropy_coef=0.02, temperature=0.8)
    return Learner(MODEL, cfg, recorder())


KL = {"kl_coef": 0.3, "kl": "k3", "importance": "tis"}


def policy_gradient(made: Learner, rows, shapes):
    batches = micro_batches(rows, shapes)
    if made.cfg.loss.kl_coef:
        batches = [made.with_ref_logprobs(weights(1), batch) for batch in batches]
    state, metrics = made.policy_step(made.init(weights()), batches)
    return state.opt_state, metrics


# --- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shapes", "chunk"), [(FULL, None), (SHARED, 7)])
def test_scores_equal_log_softmax_of_the_whole_rows(shapes, chunk):
    rows = make_rows()
    (batch,) = micro_batches(rows, shapes)
    score = jax.jit(functools.partial(batch_logprobs, config=MODEL, temperature=0.7, chunk=chunk))
    found = score(weights(), batch=batch)
    expected = naive_scores(weights(), *padded(rows), temperature=0.7)
    for values, wanted in zip(found, expected, strict=True):
        assert values.shape == batch.tokens.shape
        np.testing.assert_array_equal(np.asarray(values) != 0, batch.mask > 0)  # 0 where nothing was sampled
        for b, row in enumerate(rows):
            start = row.prefix if shapes is SHARED else 0
            length = len(row.tokens) - start
            np.testing.assert_allclose(values[b, :length], wanted[b, start : start + length], atol=2e-5)


def test_the_learner_scores_at_its_temperature():
    rows = make_rows()
    (batch,) = micro_batches(rows, FULL)
    expected, _ = naive_scores(weights(), *padded(rows), temperature=0.8)
    np.testing.assert_allclose(learner(**KL).with_old_logprobs(weights(), batch).old_logprobs, expected, atol=2e-5)


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [MICRO, SHARED])
def test_policy_gradient_of_micro_batches_is_that_of_the_batch(shapes):
    made, rows = learner(**KL), make_rows()
    whole, metrics = policy_gradient(made, rows, FULL)
    parts, parts_metrics = policy_gradient(made, rows, shapes)
    assert_trees_close(parts, whole)
    assert len(micro_batches(rows, shapes)) == (4 if shapes is MICRO else 1)
    # Sums, extremes and token means of the parts are those of the whole; the effective sample size and percentiles are
    # no such things.
    assert parts_metrics.keys() == metrics.keys()
    for name in metrics.keys() - {"importance_ess", *PERCENTILES}:
        assert parts_metrics[name] == pytest.approx(metrics[name], rel=1e-4, abs=1e-6), name
    assert metrics["tokens"] == sum(sum(row.sampled) for row in rows)
    assert metrics["sequences"] == len(rows)


@pytest.mark.parametrize("sequence", [False, True])
def test_rollouts_of_the_same_tokens_share_a_row_and_change_nothing(sequence: bool):
    """Their advantages and the engine's log-probs are their own."""
    rng = np.random.default_rng(3)
    rows = [
        dataclasses.replace(
            row, advantage=float(rng.normal()), logprobs=tuple(p and p + rng.normal(0, 0.2) for p in row.logprobs)
        )
        for row in make_rows(count=3)
        for _ in range(int(rng.integers(1, 4)))
    ]
    made = learner(loss="sequence", **KL) if sequence else learner(**KL)
    shapes = dataclasses.replace(SHARED, tokens=WIDTH * 3, sequences_per_row=3)
    assert len(rows) > 4
    (batch,) = micro_batches(rows, shapes)
    assert (batch.tokens.shape, len(batch.mask)) == ((3, WIDTH), 9)
    alone, metrics = policy_gradient(made, rows, FULL)
    found, shared_metrics = policy_gradient(made, rows, shapes)
    assert_trees_close(found, alone)
    assert shared_metrics.keys() == metrics.keys()
    for name in metrics:
        assert shared_metrics[name] == pytest.approx(metrics[name], rel=1e-4, abs=1e-6), name


def test_percentiles_compare_the_policy_with_the_engine():
    rows, made = make_rows(), learner(**KL)
    (batch,) = micro_batches(rows, FULL)
    scores = made.with_old_logprobs(weights(), batch).old_logprobs
    ratios = np.exp(np.asarray(scores) - np.asarray(batch.rollout_logprobs))[np.asarray(batch.mask) > 0]
    _, metrics = policy_gradient(made, rows, FULL)
    # The engine's log-probs are the old ones here, so both are the same.
    found = [metrics[name] for name in PERCENTILES]
    np.testing.assert_allclose(found, np.percentile(ratios, (1, 50, 99, 1, 99)), rtol=1e-4)
    gaps, entropies = np.abs(np.log(ratios)), naive_scores(weights(), *padded(rows), temperature=0.8)[1]
    found = [metrics[name] for name in ("mismatch_mean", "mismatch_max", "entropy")]
    np.testing.assert_allclose(found, [gaps.mean(), gaps.max(), entropies.sum() / len(gaps)], rtol=1e-4)
    each = np.split(np.log(ratios), np.cumsum([sum(row.sampled) for row in rows])[:-1])
    logs, lengths = np.array([some.sum() for some in each]), np.array([len(some) for some in each])
    weights_of = np.exp(logs)
    assert metrics["sequence_ess"] == pytest.approx(weights_of.sum() ** 2 / (len(rows) * (weights_of**2).sum()), 1e-3)
    for name, values in (("product", logs), ("geometric", logs / lengths)):
        found = [metrics[f"sequence_{name}_p{percent}"] for percent in ("01", "50", "99")]
        np.testing.assert_allclose(found, np.exp(np.percentile(values, (1, 50, 99))), rtol=1e-3)
    # With another policy as the old one, only the ratio to it is another.
    batch = dataclasses.replace(batch, old_logprobs=batch.old_logprobs - 0.5 * batch.mask)
    _, others = made.policy_step(made.init(weights()), [batch])
    names = {"mismatch_mean", "mismatch_max", "importance_p01", "importance_p99", "sequence_ess"}
    assert {name: others[name] for name in names} == pytest.approx({name: metrics[name] for name in names}, rel=1e-5)
    assert others["ratio_p50"] == pytest.approx(np.exp(0.5) * metrics["ratio_p50"], rel=1e-4)


def test_metrics_of_micro_batches_together_by_hand():
    names = ("loss", "tokens", "sequences", "ratio_max", "entropy", "sequence_masked")
    parts = [dict(zip(names, map(np.float32, part), strict=True)) for part in ((1, 2, 3, 5, 1, 1), (2, 6, 1, 4, 5, 0))]
    whole = dict(zip(names, (3, 8, 4, 5, 4, 0.75), strict=True))
    assert _whole_batch(parts, [2.0, 6.0]) == pytest.approx(whole)
    logs = ({"sequence_log_ratios": np.log([1.0, 4.0, 9.0]), "sequence_tokens": np.array([1, 2, 0])} for _ in parts)
    found = _whole_batch([part | log for part, log in zip(parts, logs, strict=True)], [2.0, 6.0])
    # Twice the ratios 1 and 4 of one and two tokens; the third is padding.
    assert found["sequence_ess"] == pytest.approx(10**2 / (4 * 34))
    assert found["sequence_product_p50"] == pytest.approx(2.0)
    assert found["sequence_geometric_p99"] == pytest.approx(2.0)
    # Far beyond what float32 holds, and where nothing was sampled.
    far = {"sequence_log_ratios": np.float32([800, 800 - np.log(2), 90]), "sequence_tokens": np.array([1, 1, 1])}
    found = _whole_batch([parts[0] | far], [3.0])
    assert found["sequence_ess"] == pytest.approx(1.5**2 / (3 * 1.25), rel=1e-4)
    assert found["sequence_product_p01"] == pytest.approx(np.exp(90 + 0.02 * (710 - np.log(2))), rel=1e-3)
    assert found["sequence_product_p99"] == pytest.approx(np.exp(700))
    empty = _whole_batch([parts[0] | {"sequences": np.float32(0)} | {name: np.zeros(3) for name in far}], [0.0])
    assert (empty["entropy"], empty["sequence_masked"], "sequence_ess" in empty) == (1, 1, False)


def test_percentiles_of_micro_batches_are_averaged_by_tokens():
    made = learner(**KL)
    batches = [made.with_ref_logprobs(weights(1), batch) for batch in micro_batches(make_rows(), MICRO)]
    alone = [made.policy_step(made.init(weights()), [batch])[1] for batch in batches]
    _, together = made.policy_step(made.init(weights()), batches)
    tokens = [metrics["tokens"] for metrics in alone]
    assert len(set(tokens)) > 1
    for name in PERCENTILES:
        expected = np.average([metrics[name] for metrics in alone], weights=tokens)
        np.testing.assert_allclose(together[name], expected, rtol=1e-5)


def test_sequence_means_add_up_over_micro_batches():
    made, rows = learner(loss="gspo"), make_rows()
    assert_trees_close(policy_gradient(made, rows, MICRO)[0], policy_gradient(made, rows, FULL)[0])


def test_the_gradient_of_a_trajectory_ratio_is_a_mean_over_tokens_like_all_others():
    """At a ratio of 1 Eq. 4 has the gradient of grpo's mean over tokens, KL included: it grows neither with the length
    of trajectories nor with their number."""

    made = {
        loss: Learner(MODEL, LearnerConfig(LossConfig(loss, kl_coef=0.3), own_old=True), recorder())
        for loss in ("sequence", "grpo")
    }

    def gradient(loss, rows):
        return policy_gradient(made[loss], rows, MICRO)[0]

    rows = make_rows()
    assert len({sum(row.sampled) for row in rows}) > 2
    assert_trees_close(gradient("sequence", rows), gradient("grpo", rows))
    assert_trees_close(gradient("sequence", rows[:3] * 2), gradient("sequence", rows[:3]))


@functools.cache
def naive_supervised():
    """The loss of `make_rows()` and its gradient: the same for all shapes, compiled once."""
    value, gradient = jax.jit(jax.value_and_grad(lambda params: naive_supervised_loss(params, make_rows())))(weights())
    return float(value), gradient


@pytest.mark.parametrize("shapes", [FULL, MICRO, SHARED])
def test_supervised_gradient_is_that_of_the_weighted_mean_over_sampled_tokens(shapes):
    made = learner(**KL)
    state, metrics = made.supervised_step(made.init(weights()), micro_batches(make_rows(), shapes))
    loss, gradient = naive_supervised()
    assert_trees_close(state.opt_state, gradient)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    squares = sum(np.square(leaf).sum() for leaf in jax.tree.leaves(state.opt_state))
    assert metrics["grad_norm"] == pytest.approx(squares**0.5, rel=1e-5)


def test_what_was_not_sampled_carries_no_loss():
    def changed(row: TokenSequence) -> TokenSequence:
        """Other behaviour log-probs where nothing was sampled, and an observation at the end."""
        logprobs = tuple(p if s else -9.0 for p, s in zip(row.logprobs, row.sampled, strict=True))
        return TokenSequence(
            (*row.tokens, 5, 6), (*row.sampled, False, False), (*logprobs, 0.0, 0.0), row.prefix, row.advantage
        )

    made, rows = learner(**KL), make_rows()
    others = [changed(row) for row in rows]
    assert max(len(row.tokens) for row in others) <= WIDTH
    (found, metrics), (expected, wanted) = (policy_gradient(made, some, FULL) for some in (others, rows))
    assert_trees_close(found, expected, rtol=1e-6)
    assert metrics == pytest.approx(wanted, rel=1e-5, abs=1e-7)


# --- advantages ------------------------------------------------------------------------------------------------------


@functools.cache
def plain_learner() -> Learner:
    """Neither entropy bonus nor KL, and a normaliser that does not depend on the rows."""
    return Learner(MODEL, LearnerConfig(LossConfig("dr_grpo", constant=50.0)), recorder())


@functools.cache
def moving_learner() -> Learner:
    """The same with an optimizer that moves the parameters."""
    return Learner(MODEL, plain_learner().cfg, make_optimizer(OptimizerConfig(0.1, warmup_steps=3)))


def with_advantage(row: TokenSequence, advantage: float) -> TokenSequence:
    return TokenSequence(row.tokens, row.sampled, row.logprobs, row.prefix, advantage)


def test_rows_without_advantage_change_nothing():
    rows = make_rows()
    silent = [with_advantage(row, 0.0) for row in make_rows(seed=5, count=9)]
    shapes = {len(batch.tokens) for batch in micro_batches(rows, FULL) + micro_batches(rows + silent, FULL)}
    assert shapes == {ROWS}  # so that the sums have the same order
    some, _ = policy_gradient(plain_learner(), rows, FULL)
    assert_trees_close(policy_gradient(plain_learner(), rows + silent, FULL)[0], some, rtol=1e-6)
    none, _ = policy_gradient(plain_learner(), silent, FULL)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(none))


def test_a_step_makes_rewarded_tokens_likelier_and_others_rarer():
    rows = [with_advantage(row, 1.0 if i % 2 else -1.0) for i, row in enumerate(make_rows(members=1))]
    (batch,) = micro_batches(rows, FULL)
    made = Learner(MODEL, LearnerConfig(LossConfig()), make_optimizer(OptimizerConfig(1e-3)))
    scores = np.asarray(made.with_old_logprobs(weights(), batch).old_logprobs)
    # On-policy: behaviour log-probs are the policy's own.
    on_policy = [
        TokenSequence(r.tokens, r.sampled, tuple(scores[b, : len(r.tokens)].tolist()), r.prefix, r.advantage)
        for b, r in enumerate(rows)
    ]
    batches = micro_batches(on_policy, FULL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a donated buffer of no use would warn
        state, metrics = made.policy_step(made.init(weights()), batches)
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["mismatch_max"] == pytest.approx(0.0, abs=1e-5)
    assert int(state.step) == 1
    moves = jax.tree.leaves(jax.tree.map(lambda new, old: np.float64(new) - np.float64(old), state.params, weights()))
    assert metrics["update_norm"] == pytest.approx(sum((move**2).sum() for move in moves) ** 0.5, rel=1e-3)
    change = (np.asarray(made.with_old_logprobs(state.params, batch).old_logprobs) - scores).sum(1)
    good = np.array([row.advantage > 0 for row in rows])
    assert change[:7][good].mean() > 0 > change[:7][~good].mean()


def test_no_gradient_leaves_every_bit_of_the_parameters():
    made = moving_learner()
    rows = [with_advantage(row, 0.0) for row in make_rows()]
    state, metrics = made.policy_step(made.init(weights()), micro_batches(rows, MICRO))
    assert metrics["grad_norm"] == metrics["update_norm"] == 0
    chex.assert_trees_all_equal(state.params, weights(), strict=True)


def test_supervised_steps_lower_the_loss():
    made = Learner(MODEL, LearnerConfig(LossConfig()), make_optimizer(OptimizerConfig(1e-2)))
    state, batches = made.init(weights()), micro_batches(make_rows(), FULL)
    losses = []
    for _ in range(5):
        state, metrics = made.supervised_step(state, batches)
        losses.append(metrics["loss"])
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))
    assert losses[-1] < losses[0] - 0.3
    assert int(state.step) == 5


@pytest.mark.parametrize(("vocabulary", "tokens"), [(4096, ROWS * WIDTH // 2), (4104, 16)])
def test_supervised_steps_have_the_logits_of_a_chunk_where_a_vocabulary_is_large(vocabulary, tokens):
    model = MODEL.replace(vocab_size=vocabulary)
    made = Learner(model, LearnerConfig(LossConfig(), chunk=16), recorder())
    (batch,) = micro_batches(make_rows(), FULL)
    given = jax.eval_shape(made._zeros), made.state_shapes.params, None, batch, Normalisers(1.0, 1.0, 1.0)
    found = re.findall(rf"tensor<(\d+)x{vocabulary}xf32>", made._supervised.lower(*given).as_text())
    assert max(map(int, found)) == tokens


def test_a_step_needs_rows():
    made = learner(**KL)
    with pytest.raises(ValueError, match="at least one micro-batch"):
        made.supervised_step(made.init(weights()), [])
    with pytest.raises(ValueError, match="when the learner has adapters, and only then"):
        made.supervised_step(made.init(weights()), micro_batches(make_rows(), FULL), base=weights())


# --- state -----------------------------------------------------------------------------------------------------------


def as_bytes(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_a_step_that_is_not_finite_is_skipped_and_reported():
    made, rows = moving_learner(), make_rows()
    state, metrics = made.policy_step(made.init(weights()), micro_batches(rows, MICRO))
    assert metrics["skipped"] == 0
    before = as_bytes(state)
    broken = [*rows[:-1], with_advantage(rows[-1], float("nan"))]  # in one of several micro-batches
    state, metrics = made.policy_step(state, micro_batches(broken, MICRO))
    assert metrics["skipped"] == 1
    assert metrics["update_norm"] == 0
    assert not np.isfinite(metrics["grad_norm"])
    assert as_bytes(state) == before
    state, metrics = made.policy_step(state, micro_batches(rows, MICRO))
    assert metrics["skipped"] == 0
    assert int(state.step) == 2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def test_the_state_has_copies_unless_donated():
    made, batches = learner(**KL), micro_batches(make_rows(), FULL)
    params = jax.tree.map(jnp.copy, weights())
    made.supervised_step(made.init(params), batches)
    assert as_bytes(params) == as_bytes(weights())
    made.supervised_step(made.init(params, donate=True), batches)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_params_are_cast_to_the_stored_dtype_and_a_host_reference_is_scored():
    made = learner(**KL)
    host = jax.tree.map(lambda leaf: np.asarray(leaf, jnp.bfloat16), weights(1))
    assert {leaf.dtype for leaf in jax.tree.leaves(made.init(host).params)} == {jnp.dtype("float32")}
    (batch,) = micro_batches(rows := make_rows(), FULL)
    widened = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), host)
    expected, _ = naive_scores(widened, *padded(rows), temperature=0.8)
    scored = made.with_ref_logprobs(host, batch)
    np.testing.assert_allclose(scored.ref_logprobs, expected, atol=2e-2)
    assert scored.old_logprobs is batch.old_logprobs


def test_long_lists_of_widths_and_fractions_are_no_shapes_that_never_repeat():
    """Nine row widths, five prefix widths and three shares are 135 shapes, and the 65th ended a run."""
    function = learner()._jit(lambda x: x + 1)
    for length in range(1, 136):
        function.lower(np.zeros(length, np.float32))  # traced, and not compiled
