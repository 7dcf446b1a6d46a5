"""What a step's update is divided by, which rows it runs, and whose log-probs are `old`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.algorithm import AlgorithmConfig, LossConfig, OptimizerConfig
from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.rl.batching import MicroShapes, sequences
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.packing import micro_batches, policy_shapes
from orchestra_jax.rl.setup import learner_config, ratio_spans_rows
from orchestra_jax.training import update as update_module
from orchestra_jax.training.metrics import update_metrics
from orchestra_jax.training.update import update
from orchestra_jax.types import Preference, Status, Trajectory, Turn
from tests.config.test_checks import compose
from tests.rl.packed_rows import recorder
from tests.rl.trajectories import MODEL, task, trajectory, weights

TASK = task("task", "", Preference("", "", {}))
GROUPS, MEMBERS = 8, 2
ADVANTAGES = np.zeros(GROUPS * MEMBERS, np.float32)
ADVANTAGES[:MEMBERS] = 1.0, -1.0  # of eight groups one is kept


def trajectories(count: int, lengths: tuple[int, int] = (6, 20), seed: int = 0) -> list[Trajectory]:
    """Random ids after a prompt of three, with made-up log-probs of the engine."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        sampled = rng.integers(1, 32, int(rng.integers(*lengths, endpoint=True))).tolist()
        found.append(trajectory(TASK, Turn((1, 2, 3), tuple(sampled), (-3.4,) * len(sampled), 0, "stop", "", (), ())))
    return found


def with_logprobs(made: list[Trajectory], scores: np.ndarray) -> list[Trajectory]:
    """The trajectories with these log-probs of the engine, [N, T] from the first sampled token on."""
    found = []
    for item, values in zip(made, scores, strict=True):
        (turn,) = item.turns
        found.append(
            trajectory(TASK, dataclasses.replace(turn, logprobs=tuple(values[: len(turn.sampled_ids)].tolist())))
        )
    return found


def run_config(loss: LossConfig, longest: int = 32, **algorithm) -> RunConfig:
    algorithm = {
        "tasks_per_step": GROUPS,
        "group_size": MEMBERS,
        "packing": True,
        "micro_tokens": 4 * longest,
        "response_fractions": [],
    } | algorithm
    rollout = RolloutConfig(limits=RolloutLimits(max_turns=2, max_length=longest, max_new_tokens=longest))
    return RunConfig(algorithm=AlgorithmConfig(loss=loss, **algorithm), rollout=rollout)


@functools.cache
def recording_learner(cfg: LearnerConfig) -> Learner:
    """One for all tests with these settings: each compiles its programs anew."""
    return Learner(MODEL, cfg, recorder())


def one_update(cfg: RunConfig, made: list[Trajectory], advantages: np.ndarray, reference=None, **options):
    """Metrics of each optimizer step, without moving a parameter."""
    learner = recording_learner(learner_config(cfg.algorithm, cfg.rollout, MODEL))
    with jax.transfer_guard("allow"):
        state, metrics = update(
            cfg.algorithm,
            policy_shapes(cfg.algorithm, cfg.model, cfg.rollout.limits.max_length),
            learner,
            learner.init(weights()),
            made,
            advantages,
            spans_rows=ratio_spans_rows(cfg.algorithm.loss, cfg.rollout.history),
            reference=learner.place_params(reference or weights()),
            **options,
        )
    return state.opt_state, metrics


def scores_of(params, made: list[Trajectory]) -> np.ndarray:
    """The learner's log-probs of the sampled tokens, [N, T]."""
    rows = [row for item in made for row in sequences(item, 1.0)]
    width = max(len(row.tokens) for row in rows)
    (batch,) = micro_batches(rows, MicroShapes(width * len(rows), (width,), (), response_fractions=()))
    learner = recording_learner(LearnerConfig(LossConfig()))
    return np.asarray(learner.with_old_logprobs(params, batch).old_logprobs)[:, 3:]


# --- whose log-probs are old -----------------------------------------------------------------------------------------

LONG = 400
SAMPLES = 12


@pytest.fixture(scope="module")
def engines():
    """Trajectories of LONG tokens with the log-probs of engines that compute what the learner does, up to rounding."""
    made = trajectories(SAMPLES, (LONG, LONG))
    exact = scores_of(weights(), made)
    rounded = jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.bfloat16).astype(np.float32), weights())
    noise = np.random.default_rng(1).standard_normal(exact.shape)
    return {
        # Summed over a trajectory, that of .02 a token over 4,000 tokens: sd 1.26.
        "noise": with_logprobs(made, exact + 0.02 * (4000 / LONG) ** 0.5 * noise),
        "bf16": with_logprobs(made, scores_of(rounded, made)),
    }


def signs() -> np.ndarray:
    return np.where(np.arange(SAMPLES) % 2, 1.0, -1.0).astype(np.float32)


def paper_loss(**changed) -> LossConfig:
    """The loss of conf/algorithm/paper.yaml."""
    return dataclasses.replace(compose(["algorithm=paper"]).algorithm.loss, **changed)


@pytest.mark.parametrize("engine", ["noise", "bf16"])
@pytest.mark.parametrize(("loss", "epochs"), [("sequence", 1), ("sequence", 2), ("gspo", 2)])
def test_no_trajectory_is_silenced_by_the_engines_rounding(engines, engine, loss, epochs):
    """The first update is on-policy: every ratio is 1 and nothing is clipped, whatever the engine rounds."""
    tight = {"clip_low": 3e-4, "clip_high": 4e-4} if loss == "gspo" else {}
    cfg = run_config(paper_loss(loss=loss, **tight), LONG + 3, tasks_per_step=SAMPLES // 2, epochs=epochs)
    _, metrics = one_update(cfg, engines[engine], signs())
    assert len(metrics) == epochs
    for found in metrics:  # the recorder moves nothing, so the second update is on-policy too
        assert found["clip_fraction_low"] == found["clip_fraction_high"] == 0
        assert found["ratio_p01"] == pytest.approx(1, abs=1e-4 if epochs > 1 else 0)
        assert found["ratio_p99"] == pytest.approx(1, abs=1e-4 if epochs > 1 else 0)
        # The engine is measured all the same, and is no other policy.
        assert found["mismatch_mean"] > 1e-3
        assert found["sequence_masked"] == 0
    if engine == "noise":
        assert metrics[0]["sequence_product_p01"] < 0.3
        assert metrics[0]["sequence_product_p99"] > 3
        assert metrics[0]["sequence_ess"] < 0.7
        assert 0.99 < metrics[0]["sequence_geometric_p01"] < metrics[0]["sequence_geometric_p99"] < 1.01


def test_a_trajectory_of_another_policy_is_masked(engines):
    """One engine in 12 had other weights: its trajectory's geometric mean is far off, and only that is masked."""
    made = list(engines["bf16"])
    (turn,) = made[5].turns
    (made[5],) = with_logprobs([made[5]], np.array([turn.logprobs]) - 0.05)
    cfg = run_config(paper_loss(), LONG + 3, tasks_per_step=SAMPLES // 2)
    gradient, (metrics,) = one_update(cfg, made, signs())
    assert metrics["sequence_masked"] == pytest.approx(1 / SAMPLES)
    assert metrics["sequence_masked_geometric"] == pytest.approx(1 / SAMPLES)
    assert metrics["sequence_masked_veto"] == 0
    alone = np.where(np.arange(SAMPLES) == 5, 1.0, 0.0).astype(np.float32)
    gradient, (metrics,) = one_update(cfg, made, alone)
    assert metrics["sequence_masked"] == 1
    assert metrics["policy_loss"] == 0
    assert sum(np.square(leaf).sum() for leaf in jax.tree.leaves(gradient)) < 1e-12


# --- what the terms are divided by -----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["grpo", "sequence", "gspo", "dr_grpo"])
def test_the_entropy_bonus_is_a_mean_over_tokens(loss):
    made, advantages = trajectories(GROUPS * MEMBERS), np.tile([1.0, -0.5], GROUPS).astype(np.float32)
    _, (metrics,) = one_update(run_config(LossConfig(loss), entropy_coef=0.5), made, advantages)
    assert metrics["policy_loss"] - metrics["loss"] == pytest.approx(0.5 * metrics["entropy"], rel=1e-4)


def test_padding_is_no_part_of_the_constant():
    rows = [row for i, item in enumerate(trajectories(6)) for row in sequences(item, 1.0 - i % 2)]
    learner = recording_learner(LearnerConfig(LossConfig("dr_grpo")))
    found = []
    for tokens, width in ((64 * 8, 64), (23, 23)):
        state = learner.init(weights())
        state, metrics = learner.policy_step(state, micro_batches(rows, MicroShapes(tokens, (width,), ())))
        found.append((metrics["loss"], metrics["grad_norm"]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)
    # At a ratio of 1 the loss is the sum of advantages over tokens, divided by six times the longest trajectory.
    batches = micro_batches(rows, MicroShapes(23, (23,), ()))
    _, metrics = learner.policy_step(state, [learner.with_old_logprobs(state.params, batch) for batch in batches])
    lengths = [sum(row.sampled) for row in rows]
    assert metrics["loss"] == pytest.approx(-sum(lengths[::2]) / (6 * max(lengths)), rel=1e-4)


def test_the_constant_of_a_run_is_its_sequences_times_the_longest_response():
    cfg = run_config(LossConfig("dr_grpo"), minibatches=2)
    assert learner_config(cfg.algorithm, cfg.rollout, MODEL).loss.constant == GROUPS * MEMBERS / 2 * 32
    short = dataclasses.replace(cfg, rollout=RolloutConfig(limits=RolloutLimits(2, 2, 32, max_new_tokens=5)))
    assert learner_config(short.algorithm, short.rollout, MODEL).loss.constant == GROUPS * MEMBERS / 2 * 10
    for loss in (LossConfig("dr_grpo", constant=7.0), LossConfig("grpo")):
        settings = run_config(loss)
        assert learner_config(settings.algorithm, settings.rollout, MODEL).loss.constant == loss.constant


@pytest.mark.parametrize("filtered", ["drop", "regularise", "count"])
@pytest.mark.parametrize("loss", ["grpo", "sequence"])
def test_filtered_rows_do_not_thin_the_gradient(loss, filtered, monkeypatch):
    """A KL of no weight changes nothing; only `count` divides by all rows, and only `drop` does not run them."""
    made, run = trajectories(GROUPS * MEMBERS, (12, 12)), []

    def recorded(rows, *others, original=update_module.policy_batches):
        run.append(len(rows))
        return original(rows, *others)

    monkeypatch.setattr(update_module, "policy_batches", recorded)
    cfg = run_config(LossConfig(loss))
    _, (plain,) = one_update(cfg, made, ADVANTAGES)
    cfg = run_config(LossConfig(loss, kl_coef=1e-9), filtered_rows=filtered)
    _, (pulled,) = one_update(cfg, made, ADVANTAGES)
    assert run == [MEMBERS, MEMBERS if filtered == "drop" else GROUPS * MEMBERS]
    thinner = GROUPS if filtered == "count" else 1
    assert pulled["grad_norm"] == pytest.approx(plain["grad_norm"] / thinner, rel=1e-4)
    assert pulled["policy_loss"] == pytest.approx(plain["policy_loss"] / thinner, rel=1e-4, abs=1e-6)
    # The KL is a mean over the rows that are run.
    assert pulled["sequences"] == run[1]


def test_the_kl_is_a_mean_over_the_rows_that_are_run_and_weighs_as_its_schedule_says():
    cfg = run_config(LossConfig("grpo", kl_coef=0.5, kl="k3"), filtered_rows="regularise")
    for scale in (1.0, 0.25, 0.0):
        made = trajectories(GROUPS * MEMBERS)
        _, (found,) = one_update(cfg, made, ADVANTAGES, weights(1), kl_scale=scale)
        assert found["loss"] - found["policy_loss"] == pytest.approx(0.5 * scale * found["kl_loss"], rel=1e-4, abs=1e-7)
        # Faded to nothing it is not scored, and no row is run for it.
        assert found["sequences"] == (GROUPS * MEMBERS if scale else MEMBERS)
        assert ("kl_ref" in found) is (scale > 0)
        if scale:
            assert found["kl_loss"] == pytest.approx(found["kl_ref"], rel=1e-4)  # not divided by the kept rows alone
            assert found["kl_ref"] > 0.01


def test_rows_of_a_minibatch_have_their_own_advantages_and_those_of_0_a_bonus_unless_they_failed():
    made = trajectories(6)
    made[1], made[4] = (dataclasses.replace(made[number], status=Status.FAILED, solved=False) for number in (1, 4))
    advantages = np.array([0.5, 0.0, 0.0, -1.0, 0.0, 2.0], np.float32)
    for entropy_coef, with_kl, filtered, expected in (
        (0.0, False, "count", [[0.5], [-1.0, 2.0]]),
        (0.0, True, "drop", [[0.5], [-1.0, 2.0]]),
        (0.1, False, "count", [[0.5, 0.0], [-1.0, 2.0]]),
        (0.0, True, "regularise", [[0.5, 0.0], [-1.0, 2.0]]),
    ):
        cfg = run_config(LossConfig(), entropy_coef=entropy_coef, filtered_rows=filtered, minibatches=2)
        shapes = policy_shapes(cfg.algorithm, cfg.model, 32)
        found = update_module._minibatches(cfg.algorithm, shapes, made, advantages, 1, with_kl=with_kl)
        rows = [[float(a) for batch in each for a in batch.advantages[batch.mask.any(1)]] for each in found]
        assert [sorted(each) for each in rows] == [sorted(each) for each in expected]


def test_an_update_whose_gradient_is_clipped_is_counted():
    made, found = trajectories(GROUPS * MEMBERS, (12, 12)), []
    for most in (1e-3, 1e3):
        cfg = run_config(LossConfig("grpo"), optimizer=OptimizerConfig(max_grad_norm=most))
        found += one_update(cfg, made, ADVANTAGES)[1]
    assert 1e-3 < found[0]["grad_norm"] == found[1]["grad_norm"] < 1e3
    counts = [update_metrics(updates)["updates/clipped"] for updates in (found[:1], found[1:], found * 2)]
    assert counts == [1, 0, 2]


def test_what_compares_with_the_engine_is_of_the_first_update_and_all_else_of_the_last():
    names = ("mismatch_mean", "importance_p99", "sequence_ess", "loss", "ratio_max", "skipped", "clipped")
    found = update_metrics([dict(zip(names, range(first, first + 7), strict=True)) for first in (0, 10, 20)])
    assert found == {
        "mismatch/mean": 0, "importance/p99": 1, "importance/sequence_ess": 2, "loss": 23, "ratio/max": 24,
        "updates/skipped": 5 + 15 + 25, "updates/clipped": 6 + 16 + 26,
    }  # fmt: skip


def test_nothing_is_filtered_by_default_but_by_its_name():
    assert AlgorithmConfig().filtered_rows == "drop"
    assert compose([]).algorithm.filtered_rows == "count"  # the quickstart's pull acts on all rollouts
    assert compose(["algorithm=paper"]).algorithm.filtered_rows == "drop"
