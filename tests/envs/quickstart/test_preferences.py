"""What policy steps pose: one question under several preferences, families by shares, savings that count."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from scipy import stats

from orchestra_jax.envs.quickstart.facts import EXPERTS, FAMILIES, success_probability
from orchestra_jax.envs.quickstart.preferences import PREFERENCE_SHARES
from orchestra_jax.envs.quickstart.world import TRAINING_SHARES, QuickstartWorld, best_tool
from orchestra_jax.types import Task

ROOT = Path(__file__).resolve().parents[3]
KINDS = tuple(PREFERENCE_SHARES)


@pytest.fixture(scope="module")
def world() -> QuickstartWorld:
    return QuickstartWorld(0)


def best_of_the_able(task: Task) -> str:
    return best_tool(task, [spec for spec in task.tools if success_probability(spec.name, task.family) >= 0.5])


def test_the_preferences_of_one_question_call_for_different_tools(world: QuickstartWorld):
    differ = 0
    for index in range(200):
        posed = world.paired_tasks("train", index, 3)
        assert posed[0] == world.task("train", index)
        assert all(
            (t.question, t.tools, t.answer) == (posed[0].question, posed[0].tools, posed[0].answer) for t in posed
        )
        assert len({t.preference.name for t in posed}) == len({t.id for t in posed}) == 3
        best = [best_of_the_able(t) for t in posed]
        # The second preference repeats the first one's tool only where all seven preferences do.
        every = {best_of_the_able(t) for t in world.paired_tasks("train", index, len(KINDS))}
        assert len(set(best)) == min(3, len(every))
        differ += best[1] != best[0]
    assert 60 <= differ < 140


def test_policy_steps_pose_more_of_what_depends_on_the_preference(world: QuickstartWorld):
    posed = [world.paired_tasks("train", index, 2, TRAINING_SHARES) for index in range(1200)]
    drawn = Counter(tasks[0].family for tasks in posed)
    expected = [share * len(posed) for share in TRAINING_SHARES]
    assert stats.chisquare([drawn[family] for family in FAMILIES], expected).pvalue > 1e-4


def test_neither_expert_wins_in_easy_questions_while_the_preference_is_ignored(world: QuickstartWorld):
    """Expected Eq. 2 over the preferences of a policy step, at the quickstart's reward weights and at full ones."""
    weights = OmegaConf.load(ROOT / "conf" / "reward" / "quickstart.yaml")
    only_easy = [float(family == "easy") for family in FAMILIES]

    def lead_of_the_small_one(scale: float) -> float:
        rewards: dict[str, list[float]] = {name: [] for name in EXPERTS}
        for index in range(250):
            for task in world.paired_tasks("train", index, 2, only_easy):
                able = [spec for spec in task.tools if spec.name in EXPERTS]
                if len(able) < len(EXPERTS):
                    continue
                preference, figures = task.preference, [(spec.price_usd or 0.0, spec.latency_s or 0.0) for spec in able]
                (cheapest, fastest), (dearest, slowest) = np.min(figures, 0), np.max(figures, 0)
                for spec, (price, seconds) in zip(able, figures, strict=True):
                    cheap, fast = (dearest - price) / (dearest - cheapest), (slowest - seconds) / (slowest - fastest)
                    gain = preference.outcome + scale * (preference.compute * cheap + preference.latency * fast)
                    rewards[spec.name].append(success_probability(spec.name, "easy") * gain)
        return float(np.mean(rewards["expert_small"]) - np.mean(rewards["expert_large"]))

    assert weights.compute == weights.latency
    assert abs(lead_of_the_small_one(weights.compute)) < 0.04
    assert lead_of_the_small_one(1.0) > 0.08


def test_in_a_group_a_saving_counts_in_full(world: QuickstartWorld):
    """On the whole menu the web is cheap beside the large expert; between the two searches it is the dear one."""
    tasks = [t for index in range(60) for t in world.swap_tasks(index, ("cost",)) if t.family == "lookup"]
    searches = [[spec for spec in t.tools if "search" in spec.name] for t in tasks]
    assert {best_tool(t, able) for t, able in zip(tasks, searches, strict=True)} == {"local_search"}
    assert "web_search" in {best_tool(t) for t in tasks}
