"""What is told of a run's time: it grows with the work, and is told of the policy alone that was measured."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.envs.recorded.environment import RecordedEnvironment

SMALL = ("+experiment=my_logs", "steps=100")


def minutes(*words: str) -> int:
    told = RecordedEnvironment.forecast(compose(*SMALL, *words))
    found = re.fullmatch(
        r"Time: about (\d+) minutes on two cores for \d+ supervised steps and \d+ of the policy, and [\d.]+ seconds "
        r"for each held-out question\.",
        told or "",
    )
    assert found, told
    return int(found[1])


@pytest.mark.parametrize(
    "more", ["steps=900", "algorithm.group_size=90", "algorithm.tasks_per_step=90", "warm_start.steps=9000"]
)
def test_more_work_takes_more_minutes(more: str):
    assert minutes(more) > minutes() > 0


def test_of_a_policy_that_was_not_measured_nothing_is_told(tmp_path: Path):
    assert RecordedEnvironment.forecast(compose(*SMALL, "model.tokenizer=somewhere")) is None
    cfg = compose(*SMALL)
    world = WorldConfig(env=cfg.env, model=cfg.model)
    assert RecordedEnvironment.forecast(world) is None  # no training run
    assert RecordedEnvironment.forecast(replace(cfg, model=replace(cfg.model, preset="small"))) is None
