"""The update of trajectories that forked: their sequences know of each other from the second optimizer step on."""

from itertools import chain

import jax
import numpy as np
import pytest

from orchestra_jax.config.algorithm import AlgorithmConfig, LossConfig, OptimizerConfig
from orchestra_jax.config.choices import History
from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.rl import forks
from orchestra_jax.rl.packing import policy_shapes
from orchestra_jax.rl.setup import policy_learner, ratio_spans_rows
from orchestra_jax.training.update import _minibatches, update
from orchestra_jax.types import Preference, Turn
from tests.rl.trajectories import MODEL, task, trajectory, weights


def forked(count):
    """Two sequences of eight sampled ids each, so that every micro-batch has one of them."""
    rng = np.random.default_rng(0)

    def turn():
        return Turn((1, 2, 3), tuple(rng.integers(1, 32, 8).tolist()), (-3.4,) * 8, 0, "stop")

    return [trajectory(task("t", "", Preference("", "")), turn(), forks=[(turn(),)]) for _ in range(count)]


@pytest.mark.parametrize("history", [History.keep, History.drop_thinking])
def test_later_optimizer_steps_have_the_ratio_of_whole_trajectories(monkeypatch, history):
    algorithm = AlgorithmConfig(
        loss=LossConfig(loss="sequence", clip_low=0.9, clip_high=9.0), tasks_per_step=2, group_size=2, epochs=2,
        packing=True, micro_tokens=16, optimizer=OptimizerConfig(learning_rate=0.05, warmup_steps=0),
    )  # fmt: skip
    limits = RolloutLimits(max_turns=2, max_length=16, max_new_tokens=8)
    cfg = RunConfig(algorithm=algorithm, rollout=RolloutConfig(limits=limits, history=history))
    related = []
    relate = forks.with_other_log_ratios

    def told(*args, **options):
        related.append(relate(*args, **options))
        return related[-1]

    monkeypatch.setattr(forks, "with_other_log_ratios", told)
    learner = policy_learner(cfg.algorithm, cfg.rollout, cfg.steps, MODEL)
    state = learner.init(weights())
    advantages = np.array([1.0, -1.0, 0.5, -0.5], np.float32)
    shapes = policy_shapes(algorithm, cfg.model, limits.max_length, history)
    spans_rows = ratio_spans_rows(algorithm.loss, history)
    _, found = update(algorithm, shapes, learner, state, forked(4), advantages, spans_rows=spans_rows)
    assert [metrics["sequences"] for metrics in found] == [8, 8]  # rows
    assert found[0]["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert len(related) == (history is not History.keep)
    for batches in related:
        others = np.concatenate(
            [np.asarray(batch.other_log_ratios)[np.asarray(batch.mask).any(1)] for batch in batches]
        )
        assert (np.abs(others) > 1e-4).all()
        assert found[1]["ratio_max"] >= np.exp(others.min())


def test_no_two_trajectories_of_a_step_have_one_number_where_processes_have_unlike_shares(monkeypatch):
    """Three groups of two for two processes: four trajectories and two."""
    algorithm, numbers = AlgorithmConfig(tasks_per_step=3, group_size=2, packing=True), []
    shapes = policy_shapes(algorithm, RunConfig().model, 16, History.drop_thinking)
    for index, count in enumerate((4, 2)):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        advantages = np.ones(count, np.float32)
        for batch in chain(*_minibatches(algorithm, shapes, forked(count), advantages, 1, with_kl=False)):
            numbers += set(np.asarray(batch.trajectory)[np.asarray(batch.mask).any(1)].tolist())
    assert len(set(numbers)) == len(numbers) == 6


def test_an_update_that_shares_beginnings_is_the_one_that_does_not():
    """Two turns that thought: the second sees the call and the result of the first, and a prompt of twelve."""
    rng = np.random.default_rng(3)
    prompt = tuple(rng.integers(1, 32, 12).tolist())

    def turn(seen):
        return Turn(seen, tuple(rng.integers(1, 32, 6).tolist()), (-3.4,) * 6, 0, "stop")

    trajectories = [
        trajectory(task("t", "", Preference("", "")), turn(prompt), forks=[(turn((*prompt, 7, 8, 9)),)])
        for _ in range(4)
    ]
    gradients, tokens = [], []
    for share in (False, True):
        algorithm = AlgorithmConfig(
            loss=LossConfig(loss="grpo"), tasks_per_step=2, group_size=2, packing=True, row_length=64, micro_tokens=64,
            share_prefix=share,
        )  # fmt: skip
        cfg = RunConfig(algorithm=algorithm)
        learner = policy_learner(algorithm, cfg.rollout, 1, MODEL)
        state = learner.init(weights())
        shapes = policy_shapes(algorithm, cfg.model, 64, History.drop_thinking)
        state, (found,) = update(algorithm, shapes, learner, state, trajectories, np.array([1.0, -1.0, 0.5, -0.5]))
        gradients.append(found["grad_norm"])
        tokens.append((found["positions"], found["shared"]))
    assert gradients[1] == pytest.approx(gradients[0], rel=1e-5)
    whole = sum(
        len(t.prompt_ids) + len(t.sampled_ids) for each in trajectories for part in each.sequences for t in part
    )
    assert tokens == [(3 * 64, 0), (2 * 64, tokens[1][1])]
    assert 6 * 10 < tokens[1][1] < whole  # twelve tokens of the prompt for each sequence but the first
