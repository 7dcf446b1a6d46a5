"""What policy steps pose: one question and one menu under several preferences, whose best plans differ."""

from collections import Counter

import pytest
from scipy import stats

from orchestra_jax.envs.quickstart.facts import FAMILIES
from orchestra_jax.envs.quickstart.plans import best_plan
from orchestra_jax.envs.quickstart.preferences import PREFERENCE_SHARES
from orchestra_jax.envs.quickstart.world import FAMILY_SHARES, QuickstartWorld


def test_one_question_is_posed_under_different_preferences(world: QuickstartWorld):
    differ = 0
    for index in range(200):
        posed = world.paired_tasks("train", index, 3)
        assert all(
            (t.question, t.tools, t.answer) == (posed[0].question, posed[0].tools, posed[0].answer) for t in posed
        )
        assert len({t.preference.name for t in posed}) == len({t.id for t in posed}) == 3
        differ += len({best_plan(t) for t in posed}) > 1
    assert differ >= 80


def test_families_and_preferences_come_in_their_shares(world: QuickstartWorld):
    posed = [world.task("train", index) for index in range(1200)]
    for drawn, shares in (
        (Counter(task.family for task in posed), dict(zip(FAMILIES, FAMILY_SHARES, strict=True))),
        (Counter(task.preference.name for task in posed), PREFERENCE_SHARES),
    ):
        expected = [share * len(posed) for share in shares.values()]
        assert stats.chisquare([drawn[name] for name in shares], expected).pvalue > 1e-4


def test_only_local_tools_that_can_do_a_step_have_a_weight(world: QuickstartWorld):
    for index in range(60):
        (task,) = world.swap_tasks(index, ("local",))
        weights = task.preference.tools
        wanted = {"arith": {"python"}, "lookup": {"local_search"}, "hops": {"local_search"}}
        assert set(weights) == wanted.get(task.family, {"python", "local_search"} if task.family == "sum" else set())
        assert sum(weights.values()) + task.preference.outcome == pytest.approx(1.0)
