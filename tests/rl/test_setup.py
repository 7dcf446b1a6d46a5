"""Rewards and advantages are compiled once for a run, whatever the menus of its batches."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import WarmStartConfig
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.rl import setup
from orchestra_jax.rl.groups import group_arrays
from orchestra_jax.types import Task
from tests.training.test_trainer import config

from .trajectories import MODEL, trajectory, turn


def members(task: Task) -> list:
    """A group of three, of which two solve the task by the first tool."""
    calls = task.tools[0].name
    return [trajectory(task, turn([1], [2], calls * solved), solved=bool(solved)) for solved in (1, 1, 0)]


async def test_menus_of_all_sizes_are_scored_by_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cfg = config(tmp_path)

    def rewarded(group: list, max_tools: int | None = None) -> tuple:
        return setup.reward_groups(group_arrays(group, 3, max_tools), cfg.reward, cfg.algorithm.advantage)

    environment = make_environment(cfg)
    stream = environment.train_tasks(8)
    tasks = [task for _ in range(4) for task in next(stream)]
    sizes = {len(task.tools) for task in tasks}
    assert len(sizes) > 2, "the test needs menus of several sizes"
    assert max(sizes) <= environment.largest_menu()
    traced, original = [], setup.reward_groups.__wrapped__

    def counted(arrays, reward, advantage):
        traced.append(arrays.tool_counts.shape)
        return original(arrays, reward, advantage)

    # A function of its own: what other tests have traced is none of it.
    monkeypatch.setattr(setup, "reward_groups", jax.jit(counted, static_argnames=("reward", "advantage")))
    found = []
    for task in tasks:
        found.append(rewarded(members(task), environment.largest_menu()))
    assert len(traced) == 1
    # Padding changes nothing but the number of programs.
    for task, padded in zip(tasks, found, strict=True):
        for wide, narrow in zip(padded, rewarded(members(task)), strict=True):
            np.testing.assert_allclose(wide, narrow, rtol=1e-6)
    assert len(traced) == len(sizes | {environment.largest_menu()})
    await environment.close()


def test_a_micro_batch_has_a_prompt_for_each_group_of_its_rows(tmp_path: Path):
    cfg = config(tmp_path)
    width = cfg.algorithm.row_widths[0]
    for size, alike, prompts in ((4, 1, 8), (8, 1, 8), (16, 1, 4), (8, 2, 16), (16, 4, 16)):
        given = replace(cfg.algorithm, group_size=size, micro_tokens=64 * 32, sequences_per_row=alike)
        shapes = setup.policy_shapes(given, cfg.model, 128)
        assert shapes.sizes(width) == (64 * 32 // width, max(1, 64 * 32 // width * prompts // 64))


@pytest.mark.parametrize(
    ("fade", "expected"),
    [(1.0, [1, 0.8, 0.6, 0.4]), (0.5, [1, 0.6, 0.2, 0.2]), (0.01, [1, 0.2, 0.2, 0.2]), (0.0, [0.2] * 4)],
)
def test_the_kl_fades_and_without_a_fade_it_begins_at_its_end(fade: float, expected: list[float]):
    algorithm = AlgorithmConfig(kl_fade=fade, kl_final=0.2)
    assert [setup.kl_scale(algorithm, step, 4) for step in range(4)] == pytest.approx(expected)


def test_the_rate_falls_over_all_optimizer_steps_of_a_run(monkeypatch: pytest.MonkeyPatch):
    """In 5 steps of two epochs of three minibatches, and in a warm start of 7 steps."""
    found = []
    monkeypatch.setattr(setup, "make_optimizer", lambda cfg, steps: found.append(steps) or optax.sgd(0.1))
    setup.policy_learner(AlgorithmConfig(epochs=2, minibatches=3), RolloutConfig(), 5, MODEL)
    setup.warm_learner(WarmStartConfig(steps=7), MODEL)
    assert found == [30, 7]
