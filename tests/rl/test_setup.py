"""The parts of the update as settings describe them: the KL, temperature, rates."""

import jax
import optax
import pytest

from orchestra_jax.config.algorithm import AlgorithmConfig, LossConfig
from orchestra_jax.config.choices import FilteredRows, History, Importance
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import LoraConfig, MeshConfig, WarmStartConfig
from orchestra_jax.models import sharding
from orchestra_jax.models.lora import LoRA
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


@pytest.mark.parametrize(
    ("loss", "epochs", "minibatches", "in_a_pass", "in_the_update"),
    [
        (LossConfig("sequence"), 1, 1, False, True),
        (LossConfig("gspo"), 2, 1, True, False),
        (LossConfig("gspo"), 1, 2, True, False),
        (LossConfig("grpo", importance=Importance.tis), 1, 1, False, True),
        (LossConfig("grpo", mask_veto=1e-4), 1, 3, True, False),
        (LossConfig("grpo"), 1, 1, False, False),  # the engine's are old
        (LossConfig("grpo"), 2, 2, False, False),
    ],
)
def test_old_is_of_the_policy_before_the_first_update(loss, epochs, minibatches, in_a_pass, in_the_update):
    """Of the policy that is differentiated on an only update alone: on a second one the ratio would always be 1."""
    algorithm = AlgorithmConfig(loss=loss, epochs=epochs, minibatches=minibatches)
    assert setup.separate_old_pass(algorithm) is in_a_pass
    assert setup.learner_config(algorithm, RolloutConfig(), MODEL).own_old is in_the_update


def test_a_ratio_spans_rows_where_trajectories_fork_and_the_loss_has_one_for_all():
    found = [(h.name, loss) for h in History for loss in ("sequence", "gspo", "grpo")
             if setup.ratio_spans_rows(LossConfig(loss, importance=Importance.tis), h)]  # fmt: skip
    forking = ("strip_thinking", "drop_thinking")
    assert sorted(found) == sorted((history, loss) for history in forking for loss in ("sequence", "gspo"))


def test_the_learner_has_the_settings_of_the_algorithm():
    for rows in FilteredRows:
        algorithm = AlgorithmConfig(filtered_rows=rows, entropy_coef=0.25, loss=LossConfig("dr_grpo", constant=7.0))
        made = setup.learner_config(algorithm, RolloutConfig(), MODEL)
        assert (made.count_all, made.entropy_coef) == (rows is FilteredRows.count, 0.25)
        assert made.loss.constant == 7.0  # what is given is kept


def test_logits_of_many_ids_are_in_blocks_on_one_cpu_and_else_of_some_tokens_at_once():
    mesh = sharding.make_mesh(1, 1, 1, devices=jax.devices("cpu")[:1])
    for ids, its_mesh, wanted in ((4096, None, (2048, None)), (4097, None, (None, 512)), (4097, mesh, (2048, None))):
        made = setup.learner_config(AlgorithmConfig(), RolloutConfig(), MODEL.replace(vocab_size=ids), its_mesh)
        assert (made.chunk, made.vocab_block) == wanted


def test_one_device_has_no_mesh(monkeypatch: pytest.MonkeyPatch):
    assert setup.device_mesh(MeshConfig()) is None
    devices = jax.devices()
    mesh = setup.device_mesh(MeshConfig(data=-1))
    assert (mesh and mesh.size) == (len(devices) if len(devices) > 1 else None)
    monkeypatch.setattr(jax, "devices", lambda: devices[:1])
    assert setup.device_mesh(MeshConfig(fsdp=-1)) is None


def test_adapters_are_those_of_the_settings():
    assert setup.adapters(LoraConfig()) is None
    lora = LoraConfig(rank=4, alpha=6.0, targets=["q"], layers=2)
    assert setup.adapters(lora) == LoRA(4, 6.0, ("q",), 2)
