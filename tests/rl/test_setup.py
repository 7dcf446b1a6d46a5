"""The parts of the update as settings describe them: the KL, temperature, rates."""

import optax
import pytest

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import WarmStartConfig
from orchestra_jax.rl import setup

from .trajectories import MODEL


@pytest.mark.parametrize(
    ("fade", "expected"),
    [(1.0, [1, 0.8, 0.6, 0.4]), (0.5, [1, 0.6, 0.2, 0.2]), (0.01, [1, 0.2, 0.2, 0.2]), (0.0, [0.2] * 4)],
)
def test_the_kl_fades_and_without_a_fade_it_begins_at_its_end(fade: float, expected: list[float]):
    algorithm = AlgorithmConfig(kl_fade=fade, kl_final=0.2)
    assert [setup.kl_scale(algorithm, step, 4) for step in range(4)] == pytest.approx(expected)
    assert [setup.kl_scale(algorithm, step, 8) for step in range(0, 8, 2)] == pytest.approx(expected)
    assert setup.kl_scale(AlgorithmConfig(), 7, 8) == 1.0
    assert setup.kl_scale(AlgorithmConfig(kl_final=0.0, kl_fade=0.0), 1, 8) == 0.0


def test_the_learner_scores_at_the_temperature_of_the_rollouts():
    for temperature in (1.0, 0.5):
        made = setup.learner_config(AlgorithmConfig(), RolloutConfig(temperature=temperature), MODEL)
        assert made.temperature == temperature


def test_the_rate_falls_over_all_optimizer_steps_of_a_run(monkeypatch: pytest.MonkeyPatch):
    """In 5 steps of two epochs of three minibatches, and in a warm start of 7 steps."""
    found = []
    monkeypatch.setattr(setup, "make_optimizer", lambda cfg, steps: found.append(steps) or optax.sgd(0.1))
    setup.policy_learner(AlgorithmConfig(epochs=2, minibatches=3), RolloutConfig(), 5, MODEL)
    setup.warm_learner(WarmStartConfig(steps=7), MODEL)
    assert found == [30, 7]
