"""The term of docs/rewards.md, from a folder outside the repository."""

import sys
from pathlib import Path

import numpy as np
import pytest

from orchestra_jax.api import play
from orchestra_jax.config.compose import compose
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.rl import groups as step
from orchestra_jax.rl.groups import GroupRewards
from tests.docs.pages import blocks

POLICIES = ("preference_oracle", "strongest_expert", "random", "do_nothing")


def test_the_term_is_in_the_rewards_and_its_weight_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (code,) = [text for language, text in blocks("rewards.md") if language == "python"]
    (tmp_path / "my_reward.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_reward", raising=False)
    monkeypatch.setattr(step, "reward_groups", step.reward_groups)  # the environment replaces it
    cfg = compose("env.seed=37")
    group = [play(cfg, policy) for policy in POLICIES]  # the README's: the oracle alone is right, by three calls

    def figures(*overrides: str) -> list[np.ndarray]:
        if overrides:
            make_environment(compose("env.seed=37", "env.name=my_reward:FewCalls", *overrides))
        ours = GroupRewards(cfg.reward, cfg.algorithm.advantage, 4, 1, None)
        return [np.asarray(each) for each in ours.reward_and_advantage(group)]

    usual, without, dearer = figures(), figures("+env.options.calls=0"), figures("+env.options.calls=0.1")
    for before, after in zip(usual, without, strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_allclose(usual[0] - dearer[0], [[0.1 * len(group[0].tool_names), 0, 0, 0]], atol=1e-6)
    assert dearer[1][0, 0] > 0
    assert dearer[2].all()
