"""The parts of the update as settings describe them: rewards by hand and in one program, shapes, KL, rates."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from orchestra_jax.config.algorithm import AdvantageConfig, AlgorithmConfig
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import RewardConfig, RunConfig, WarmStartConfig
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.rl import setup
from orchestra_jax.rl.groups import GroupArrays, group_arrays
from orchestra_jax.types import Task
from tests.rl.test_advantages import brute_force_advantages
from tests.rl.test_rewards import brute_force_reward
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


def brute_force(cfg: RunConfig, a: GroupArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eq. 2 and 3 with the filters, one member after the other."""
    counts, advantage = a.tool_counts, cfg.algorithm.advantage
    share = counts / np.maximum(1, counts.sum(-1, keepdims=True))
    tools = {"count": counts, "used": counts > 0, "share": share}[cfg.reward.tool_feature]
    rest = np.stack([a.solved, -(a.cost_usd**cfg.reward.cost_power), -a.latency_s], axis=-1)
    scale = [cfg.reward.tools] * tools.shape[-1] + [cfg.reward.outcome, cfg.reward.compute, cfg.reward.latency]
    features = np.concatenate([tools, rest], axis=-1)
    rewards = brute_force_reward(
        features, a.preference * scale, a.solved, a.completed, a.tool_mask, cfg.reward.normalize_outcome
    )
    members = a.completed if advantage.invalid == "drop" else ~a.failed
    options = {name: getattr(advantage, name) for name in ("min_std", "centre", "normalize_std", "clip")}
    advantages = brute_force_advantages(rewards, members, **options)
    return rewards, advantages, advantages.any(axis=-1)


def hand_made() -> GroupArrays:
    """Three groups of five: everything happens in the first, the second is all right, the third all wrong."""
    counts = np.array(
        [
            [[1, 0, 0], [0, 2, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]],
            [[1, 0, 0], [0, 1, 0], [0, 0, 3], [0, 1, 1], [1, 0, 0]],
            [[1, 0, 0]] * 5,
        ],
        np.float32,
    )
    yes, no = True, False
    return GroupArrays(
        tool_counts=counts,
        solved=np.array([[yes, yes, no, no, no], [yes] * 5, [no] * 5]),
        completed=np.array([[yes, yes, yes, no, no], [yes] * 5, [yes, yes, no, yes, yes]]),
        failed=np.array([[no, no, no, no, yes], [no] * 5, [no] * 5]),
        cost_usd=np.array([[0.01, 0.08, 0.02, 9.0, 50.0], [0.0, 0.1, 0.2, 0.1, 0.0], [0.1] * 5], np.float32),
        latency_s=np.array([[3, 9, 4, 99, 999], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], np.float32),
        preference=np.array([[0.4, 0, 0, 0.5, 0.25, 0.25], [0, 0.3, 0.9, 0.5, 0.5, 0], [0, 0, 0, 1, 0, 0]], np.float32),
        tool_mask=np.array([[yes, yes, no, yes, yes, yes], [yes] * 6, [yes] * 6]),
    )


@pytest.mark.parametrize("invalid", ["drop", "zero_reward"])
@pytest.mark.parametrize(
    "reward",
    [
        RewardConfig(tool_feature="share"),
        RewardConfig(tool_feature="count", normalize_outcome=False),
        RewardConfig(outcome=0.5, compute=0.25, latency=0.0, tools=0.75, tool_feature="used"),
        RewardConfig(cost_power=0.5),
    ],
    ids=["share", "outcome as it is", "multipliers", "root of the cost"],
)
def test_reward_groups_is_the_paper_by_hand(invalid: str, reward: RewardConfig):
    advantage = AdvantageConfig(invalid=invalid, clip=1.25)
    cfg = replace(RunConfig(), reward=reward, algorithm=AlgorithmConfig(advantage=advantage))
    rewarded = setup.reward_groups(hand_made(), cfg.reward, advantage)
    for found, expected in zip(rewarded, brute_force(cfg, hand_made()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"min_std": 0.4}, {"centre": False, "normalize_std": False}])
def test_the_settings_of_the_advantage_are_those_of_the_groups(options: dict):
    """The std of the first two groups is .58 and .18."""
    cfg = replace(RunConfig(), algorithm=AlgorithmConfig(advantage=AdvantageConfig(**options)))
    expected = brute_force(cfg, hand_made())
    rewarded = setup.reward_groups(hand_made(), cfg.reward, cfg.algorithm.advantage)
    for found, wanted in zip(rewarded, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(expected[1], brute_force(RunConfig(), hand_made())[1])  # they differ from the defaults


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
