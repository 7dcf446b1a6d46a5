"""The guarded nearest-neighbour router: it leaves the default only where paired evidence is significant."""

from collections.abc import Mapping

import numpy as np
import pytest

from orchestra_jax.envs.recorded.choices import NEAR, PricedExpert
from orchestra_jax.envs.recorded.knn import Neighbours, guarded, paired_z
from orchestra_jax.envs.recorded.table import RecordedAnswer, RecordedQuestion, Recording, evidence_of
from orchestra_jax.types import Preference, Task, ToolCall

pytest.importorskip("sklearn", reason="pip install 'orchestra-jax[router]'")
USD = {"cheap": 1e-4, "slow": 2e-4, "strong": 5e-4}


def recording(right: Mapping[str, tuple[float, float]], each: int = 50) -> Recording:
    """Questions on birds and on sums; a model is right on the first ones of each kind, in these shares."""
    asked = [
        RecordedQuestion(f"{kind}{n}", "", f"{words} {n}", ("yes",), 9)
        for kind, words in (("bird", "Which bird sings"), ("sum", "How much is three plus"))
        for n in range(each)
    ]
    answers = {
        model: {
            one.id: RecordedAnswer("yes", k % each < share[k // each] * each, 9, 9) for k, one in enumerate(asked)
        }
        for model, share in right.items()
    }  # fmt: skip
    return Recording.of_answers(asked, answers)


def called(table: Recording, question: str, wish: str, count: int = 40, usd: Mapping[str, float] = USD) -> str:
    offered = [
        PricedExpert(name, ToolCall(name, {}), usd[name], 9.0 if name == "slow" else 1.0)
        for name in sorted(table.models, key=lambda name: usd[name])
    ]
    task = Task("1", question, ("yes",), (), Preference(wish, "Please."))
    policy = guarded(lambda _: offered, evidence_of(table), Neighbours(table, count))
    return next(policy(task)).name


BIRD, SUM = "Which bird sings now", "How much is three plus four"


def test_another_model_is_asked_only_where_similar_questions_prove_it_better():
    table = recording({"cheap": (0.9, 0.1), "strong": (0.3, 1.0)})
    assert called(table, SUM, "accuracy") == "strong"  # the default
    assert called(table, BIRD, "accuracy") == "cheap"
    assert called(table, BIRD, "accuracy", count=4) == "strong"  # four questions prove nothing


def test_a_small_lead_of_the_neighbours_is_no_proof():
    table = recording({"cheap": (0.46, 0.1), "strong": (0.4, 1.0)})  # three pairs differ
    assert called(table, BIRD, "accuracy", count=50) == "strong"


def test_models_of_a_menu_share_the_level():
    """The same evidence suffices against one rival, and not if a dozen rivals had the same chance."""
    lead = {"cheap": (0.52, 0.1), "strong": (0.4, 1.0)}
    crowd = {f"weak{n}": (0.0, 0.0) for n in range(12)}
    usd = USD | dict.fromkeys(crowd, 1e-3)
    assert called(recording(lead), BIRD, "accuracy", count=50) == "cheap"
    assert called(recording(lead | crowd), BIRD, "accuracy", count=50, usd=usd) == "strong"


def test_a_cheaper_model_must_be_proved_nearly_as_good_to_save_money():
    same = {"cheap": (1.0, 0.2), "strong": (1.0, 1.0)}
    assert called(recording(same), BIRD, "low_cost", count=50) == "cheap"
    assert called(recording(same), BIRD, "low_cost", count=10) == "strong"  # too few questions to tell
    assert called(recording(same), SUM, "low_cost") == "strong"
    worse = {"cheap": (1.0 - 2 * NEAR, 0.2), "strong": (1.0, 1.0)}
    assert called(recording(worse), BIRD, "low_cost", count=50) == "strong"


def test_the_fast_wish_reads_seconds_and_no_wish_weighs_money():
    table = recording({"slow": (1.0, 0.9), "strong": (1.0, 0.9)})
    assert called(table, BIRD, "fast") == "strong"
    assert called(table, BIRD, "low_cost") == "slow"
    apart = recording({"cheap": (1.0, 0.5), "strong": (0.9, 1.0)})
    assert called(apart, SUM, "") == "strong"
    assert called(apart, BIRD, "", count=50) == "cheap"
    dear = USD | {"strong": 1e-2}  # a right answer is worth no more
    assert called(apart, SUM, "", usd=dear) == "cheap"


def test_the_test_counts_pairs_that_differ():
    default = np.array([True, True, False, False])
    better = np.array([True, True, True, True])
    z = paired_z(np.stack([better, default, ~better], 1), default)
    assert z[1] == 0
    assert z[2] < 0
    assert z[0] == pytest.approx((2 / 6) / np.sqrt((3 / 6 - (2 / 6) ** 2) / 6))
    assert paired_z(better[:, None], default, 0.5) < 0 < paired_z(default[:, None], default, -0.5)


def test_only_questions_of_the_given_split_are_neighbours():
    table = recording({"cheap": (0.9, 0.1), "strong": (0.3, 1.0)})
    kept = table.of(list(table.questions)[:50])
    rights = Neighbours(kept, 50).rights(SUM, ["strong"])
    assert rights.mean() == pytest.approx(0.3)
    assert len(Neighbours(kept).rights(SUM, ["strong"])) == 40
