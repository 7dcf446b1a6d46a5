"""Rewards and advantages are compiled once for a run, whatever the menus of its batches."""

from pathlib import Path

import numpy as np

from orchestra_jax.envs.registry import make_environment
from orchestra_jax.rl.groups import group_arrays
from orchestra_jax.rl.setup import _score_groups, score_groups
from orchestra_jax.types import Task
from tests.training.test_trainer import config

from .trajectories import trajectory, turn


def members(task: Task) -> list:
    """A group of three, of which two solve the task by the first tool."""
    calls = task.tools[0].name
    return [trajectory(task, turn([1], [2], calls * solved), solved=bool(solved)) for solved in (1, 1, 0)]


async def test_menus_of_all_sizes_are_scored_by_one_program(tmp_path: Path):
    cfg = config(tmp_path)
    environment = make_environment(cfg)
    stream = environment.train_tasks(8)
    tasks = [task for _ in range(4) for task in next(stream)]
    sizes = {len(task.tools) for task in tasks}
    assert len(sizes) > 2, "the test needs menus of several sizes"
    assert max(sizes) <= environment.largest_menu()
    _score_groups.clear_cache()  # what other tests have compiled
    found = []
    for task in tasks:
        found.append(score_groups(cfg, group_arrays(members(task), 3, environment.largest_menu())))
    assert _score_groups._cache_size() == 1
    # Padding changes nothing but the number of programs.
    for task, padded in zip(tasks, found, strict=True):
        for wide, narrow in zip(padded, score_groups(cfg, group_arrays(members(task), 3)), strict=True):
            np.testing.assert_allclose(wide, narrow, rtol=1e-6)
    assert _score_groups._cache_size() == len(sizes | {environment.largest_menu()})
    await environment.close()
