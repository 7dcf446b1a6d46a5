import io

import numpy as np
import pytest
from rich.console import Console

from orchestra_jax.training.loggers.progress import ProgressBar, show_step, why_no_gradient
from orchestra_jax.training.metrics import rollout_metrics
from orchestra_jax.types import Preference, Status
from tests.rl.trajectories import task, trajectory, turn


def test_progress_prints_plain_lines_without_a_terminal():
    out, seconds = io.StringIO(), iter([0.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    console = Console(file=out, force_terminal=False)
    with ProgressBar(9, phase="[update]", start=4, every=3, console=console, clock=lambda: next(seconds)) as progress:
        for done in range(5, 8):
            progress.update(done, {"reward": 0.5, "cost": 0.0123})
        progress.update(8)
        progress.update(9, {"reward": 1.0})
    assert out.getvalue().splitlines() == [
        "[update] 6/9  eta 0:00:03  reward 0.5  cost 0.0123",  # 1 s a step after the first, 3 are left
        "[update] 9/9  eta 0:00:00  reward 1",
    ]


def test_slow_steps_are_told_after_half_a_minute():
    out, seconds = io.StringIO(), iter([0.0, 20.0, 40.0, 60.0, 80.0])
    console = Console(file=out, force_terminal=False)
    with ProgressBar(100, phase="warm start", every=50, console=console, clock=lambda: next(seconds)) as progress:
        for done in range(1, 5):
            progress.update(done, {"loss": 0.5})
    assert [line.split("  ")[0] for line in out.getvalue().splitlines()] == ["warm start 2/100", "warm start 4/100"]


def test_progress_draws_on_a_terminal():
    out = io.StringIO()
    with ProgressBar(4, phase="update", console=Console(file=out, force_terminal=True, width=120)) as progress:
        progress.update(1, {"reward": 0.5})
        progress.print("saved [step 1]")
        progress.update(4, {"accuracy": 0.75})
    text = out.getvalue()
    assert all(part in text for part in ("update", "4/4", "accuracy 0.75", "saved [step 1]"))


FIGURES = {"accuracy": 0.5, "valid_rate": 1.0, "reward/std": 0.0, "groups/kept": 0.0}


def shown(*steps: dict[str, float]) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=False)
    with ProgressBar(len(steps), phase="policy", console=console) as progress:
        for number, metrics in enumerate(steps, start=1):
            show_step(progress, number, metrics)
    return [line for line in out.getvalue().splitlines() if not line.startswith("policy ")]


def test_a_step_without_a_gradient_says_so_and_why():
    assert shown(FIGURES | {"groups/kept": 0.5}, FIGURES | {"accuracy": 0.0}, FIGURES | {"groups/kept": 1.0}) == [
        "Step 2: no group had a gradient: no rollout was right; if most steps are so, take easier questions or raise "
        "warm_start.steps."
    ]


SOLVED, WRONG, NO_ANSWER, FAILED = (
    {"solved": True}, {"solved": False}, {"solved": False, "status": Status.NO_ANSWER}, {"status": Status.FAILED}
)  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "rewards", "said"),
    [
        ([[SOLVED, SOLVED], [SOLVED, SOLVED]], 0.7, "every rollout was right, and alike"),
        ([[WRONG, WRONG], [WRONG, NO_ANSWER]], 0.0, "no rollout was right"),
        ([[SOLVED, SOLVED], [WRONG, WRONG]], 0.0, "each group was all right or all wrong"),
        ([[NO_ANSWER, NO_ANSWER]], 0.0, "no rollout ended with an answer"),
        ([[FAILED, FAILED]], 0.0, "every rollout failed for infrastructure reasons"),
        ([[SOLVED, SOLVED]], [[0.5, 0.6]], "differed by less than algorithm.advantage.min_std"),
    ],
)
def test_the_reason_is_that_of_the_figures(groups: list[list[dict[str, object]]], rewards: object, said: str):
    asked, one = task("t", "python", Preference("right", "")), turn([1], [2])
    members = [trajectory(asked, one, **member) for group in groups for member in group]
    spread = np.broadcast_to(np.array(rewards, np.float32), (len(groups), 2))
    assert said in why_no_gradient(rollout_metrics(members, spread, np.zeros(len(groups), bool)))
