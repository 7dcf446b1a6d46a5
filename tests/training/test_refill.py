"""What a step with more groups trains on, and what it reports; and such a run stopped and resumed."""

import dataclasses
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.schema import LoggerConfig, RunConfig
from orchestra_jax.money.budgets import Budget, Spending
from orchestra_jax.processes import Processes
from orchestra_jax.processes.lifeline import GONE
from orchestra_jax.rl.groups import GroupRewards, group_arrays, reward_groups
from orchestra_jax.rl.packing import policy_shapes
from orchestra_jax.training import trainer as trainer_module
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.trainer import Trainer
from orchestra_jax.types import Preference, Trajectory, Usage
from tests.rl.trajectories import task, trajectory, turn
from tests.training import test_processes, test_trainer
from tests.training.test_processes import assert_ended
from tests.training.test_trainer import DRIVER, MICRO, assert_same_arrays, complaints, train, transcripts, untimed

MEMBERS = 2
CFG = RunConfig(
    algorithm=AlgorithmConfig(tasks_per_step=3, group_size=MEMBERS, refill=2), logger=LoggerConfig(speed=False)
)


def group(number: int, teaches: bool) -> list[Trajectory]:
    """One of two members called the tool that the user prefers, or both did."""
    asked = task(f"task {number}", "web python", Preference("", "", {"web": 0.3 + 0.1 * number}))
    paid = [Usage("orchestrator", "orchestrator", cost_usd=0.25 * (1 + number), seconds=1.0)]
    members = [trajectory(asked, turn([1], [2] * 5, "web"), ledger=paid) for _ in range(MEMBERS)]
    if teaches:
        members[1] = trajectory(asked, turn([1], [2] * 3, "python"), ledger=paid)
    return [dataclasses.replace(t, group=number, member=m) for m, t in enumerate(members)]


def collected(*teaching: bool) -> list[Trajectory]:
    return [member for number, teaches in enumerate(teaching) for member in group(number, teaches)]


class Parts(Trainer):
    """A trainer whose rollouts are made by hand, and that does not update."""

    def __init__(self, trajectories: list[Trajectory], directory: Path) -> None:
        parts: Any = SimpleNamespace
        self.cfg, self.processes, self.base = CFG, Processes(), None
        self.rewards = GroupRewards(CFG.reward, CFG.algorithm.advantage, CFG.algorithm.group_size, 3, 4)
        self.state = parts(step=0, version=1, reference=None, trained=parts(step=0))
        self.money: Any = parts(step=lambda: Budget(), run=parts(spent=Spending(9.0, 1, 1)))
        self.rollouts = parts(take=lambda *_: (trajectories, {"groups/collected": 5.0}), get_state=dict)
        self.loop, self.serving = parts(run=lambda _: None), parts(free_gpus=lambda: None)
        self.files, self.watch = parts(add=lambda *_: None, on=True), None
        self._times, self._lapped = {}, 0.0
        self.directory, self.policy, self.schedule = directory, None, lambda _: 1e-3  # type: ignore[assignment]
        self.shapes = policy_shapes(CFG.algorithm, CFG.model, CFG.rollout.limits.max_length)

    def push_weights(self) -> None:
        pass


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list:
    """What the update is given."""
    found = list[Any]()

    def update(algorithm, shapes, policy, trained, trajectories, advantages, **_):
        found.append(([t.group for t in trajectories], advantages))
        return trained, []

    monkeypatch.setattr(trainer_module, "update", update)
    return found


def test_the_update_sees_the_groups_with_a_gradient_and_the_figures_all_of_them(tmp_path: Path, seen: list):
    trajectories = collected(False, True, False, True, True)
    metrics = Parts(trajectories, tmp_path).policy_step()
    ((groups, advantages),) = seen
    assert groups == [1, 1, 3, 3, 4, 4]
    np.testing.assert_allclose(advantages, [1, -1] * 3, rtol=1e-5)
    rewards, _, kept = reward_groups(group_arrays(trajectories, MEMBERS), CFG.reward, CFG.algorithm.advantage)
    assert kept.tolist() == [False, True, False, True, True]
    assert metrics["reward/mean"] == pytest.approx(rewards.mean())
    assert metrics["reward/std"] == pytest.approx(np.mean([np.std(own) for own in rewards]))  # within a group
    assert metrics["groups/kept"] == pytest.approx(3 / 5)
    assert metrics["cost_usd"] == pytest.approx(0.75)  # mean of .25 to 1.25; of those that are trained on .92
    assert metrics["tokens/sampled"] == pytest.approx((7 * 5 + 3 * 3) / 10)
    assert (metrics["groups/collected"], metrics["spend/usd"]) == (5, 9)


def test_at_the_cap_the_first_of_the_others_fill_up(tmp_path: Path, seen: list):
    Parts(collected(False, False, False, False, True), tmp_path).policy_step()
    ((groups, advantages),) = seen
    assert groups == [0, 0, 1, 1, 4, 4]
    np.testing.assert_allclose(advantages, [0, 0, 0, 0, 1, -1], rtol=1e-5)


def test_a_step_without_more_groups_is_given_as_it_was_collected(tmp_path: Path, seen: list):
    trajectories = collected(True, False, True)
    Parts(trajectories, tmp_path).policy_step()
    ((groups, advantages),) = seen
    assert groups == [t.group for t in trajectories]
    # A menu of four tools, as the trainer's: the same bits as without this feature.
    assert (
        advantages.tobytes()
        == reward_groups(group_arrays(trajectories, MEMBERS, 4), CFG.reward, CFG.algorithm.advantage)[1].tobytes()
    )


def test_the_update_of_each_step_has_the_weight_that_the_kl_has_faded_to(tmp_path: Path, monkeypatch):
    scales = []
    monkeypatch.setattr(trainer_module, "update", lambda *_, kl_scale, **__: scales.append(kl_scale) or (_[3], []))
    made = Parts(collected(True, True, True), tmp_path)
    made.cfg = dataclasses.replace(CFG, steps=4, algorithm=dataclasses.replace(CFG.algorithm, kl_final=0.2))
    for _ in range(3):
        made.policy_step()
    assert scales == pytest.approx([1.0, 0.8, 0.6])


def test_a_group_scores_the_same_whatever_comes_after_it():
    trajectories = collected(*[True, False, True, True, False, True, True, True])
    rewards = GroupRewards(CFG.reward, CFG.algorithm.advantage, CFG.algorithm.group_size, 3, 4)
    whole = rewards.reward_and_advantage(trajectories)
    for count in range(3, 9):
        part = rewards.reward_and_advantage(trajectories[: count * MEMBERS])
        for figures, expected in zip(part, whole, strict=True):
            assert figures.tobytes() == expected[:count].tobytes()


# --- a run -----------------------------------------------------------------------------------------------------------

REFILL = (*MICRO, "algorithm.refill=3", "evaluation.every=0", "evaluation.questions=4", "evaluation.swap_questions=0")


@pytest.fixture
def some_teach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in other processes score with `micro.score_some`."""
    for module in (test_trainer, test_processes):
        monkeypatch.setattr(module, "DRIVER", DRIVER.replace("score_by_index", "score_some"))


@pytest.mark.release
@pytest.mark.usefixtures("some_teach")
def test_a_run_that_takes_more_groups_resumes_bit_for_bit(tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train(whole, *REFILL).returncode == 0
    assert train(killed, *REFILL, stop="policy 3 SIGKILL").returncode == -9
    assert train(killed, *REFILL, stop="policy 4 SIGINT").returncode == 130
    done = train(killed, *REFILL)
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    rows = read_metrics(whole)
    assert untimed(read_metrics(killed)) == untimed(rows)
    assert transcripts(killed) == transcripts(whole)
    assert_same_arrays(whole, killed)
    for row in rows:
        assert row["groups/kept"] * row["groups/collected"] == pytest.approx(row["groups/taught"])
        assert row["groups/taught"] == 2 or row["groups/collected"] == 8
    assert len({row["groups/collected"] for row in rows}) > 1


@pytest.mark.release
def test_a_run_in_which_all_groups_teach_is_that_without_the_key(tmp_path: Path):
    assert train(tmp_path / "with", *REFILL).returncode == 0
    assert train(tmp_path / "without", *[key for key in REFILL if "refill" not in key]).returncode == 0
    assert transcripts(tmp_path / "with") == transcripts(tmp_path / "without")
    assert_same_arrays(tmp_path / "with", tmp_path / "without")


@pytest.mark.release
@pytest.mark.usefixtures("some_teach")
def test_two_processes_make_up_each_for_its_own_groups_and_one_goes_on(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    policy = test_processes.make_policy(tmp_path_factory.mktemp("policy"))
    whole, stopped, refill = tmp_path / "whole", tmp_path / "stopped", "algorithm.refill=3"
    assert_ended(test_processes.run(whole, policy, refill), 0, 0)
    assert_ended(test_processes.run(stopped, policy, refill, stops={1: "policy 2 SIGKILL"}), GONE, -signal.SIGKILL)
    assert_ended(test_processes.run(stopped, policy, refill), 0, 0)
    assert_same_arrays(whole, stopped)
    rows = read_metrics(whole)
    assert untimed(read_metrics(stopped)) == untimed(rows)
    assert all(row["groups/taught"] == 4 or row["groups/collected"] > 4 for row in rows)
    assert len({row["groups/collected"] for row in rows}) > 1
    assert_ended(test_processes.run(stopped, policy, refill, "steps=6", count=1), 0)
    asked = [line for text in transcripts(stopped).values() for line in text.splitlines() if line.startswith("task ")]
    assert len(set(asked)) == len(asked) == 6 * 2  # logger.trajectories: none comes twice
