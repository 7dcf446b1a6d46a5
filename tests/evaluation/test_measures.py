from dataclasses import replace

import numpy as np
import pytest

from orchestra_jax.evaluation.intervals import bootstrap, wilson
from orchestra_jax.evaluation.judged import disagreements, judge_figures
from orchestra_jax.evaluation.measures import (
    local_share,
    preference_utility,
    question_intervals,
    summarize,
    tool_shares,
)
from orchestra_jax.types import Preference, Status, Task, ToolSpec, Trajectory, Usage
from tests.rl.trajectories import trajectory, turn

TOOLS = "python local_search web_search"
ACCURACY = Preference("accuracy", "")


def run(
    calls: str = "", *, cost=0.0, latency=0.0, solved=True, status=Status.COMPLETED, family="easy",
    preference=ACCURACY, tools=TOOLS, refused=0,
) -> Trajectory:  # fmt: skip
    """A trajectory of one turn with these calls, the first of them refused.

    Half of cost and latency are the policy's own tokens.
    """
    task = Task("t", "?", ("yes",), tuple(ToolSpec(name, "", {}) for name in tools.split()), preference, family)
    only = turn([1], [2], calls)
    only = replace(only, results=tuple(replace(each, refused=n < refused) for n, each in enumerate(only.results)))
    ledger = (
        Usage("orchestrator", "orchestrator", cost_usd=cost / 2, seconds=latency / 2),
        Usage("tool", "tool", cost_usd=cost / 2, seconds=latency / 2),
        Usage("judge", "judge", cost_usd=50.0, seconds=50.0),
    )
    return trajectory(task, only, status=status, solved=solved, ledger=ledger)


# --- summarize -------------------------------------------------------------------------------------------------------


def test_summarize_by_hand():
    found = summarize([
        run("python python python python", cost=0.25, latency=4.0, refused=2),
        run("web_search", cost=0.5, latency=2.0, solved=False),
        run("", cost=0.25, latency=0.0, solved=False, status=Status.MALFORMED),
        run("python", latency=2.0),
        run("python", cost=8.0, latency=99.0, solved=False, status=Status.FAILED),
    ])  # fmt: skip
    assert found == {
        "accuracy": 0.5,
        "valid_rate": 0.75,
        "cost": 0.25,
        "cost_per_correct": 0.5,  # wrong answers cost too: one dollar for two right ones
        "latency": 2.0,
        "calls": 1.0,
        "refused": 0.5,
        "failed": 1.0,
        "counted": 4.0,
        "exact_match": 0.75,  # all three that answered said "yes"
        "judged": 0.75,
        "judge_disagrees": 1 / 3,  # one of them was found wrong
        "judge_cost": 50.0,
    }
    assert all(type(number) is float for number in found.values())


def test_a_judge_and_exact_match_by_hand():
    def judged(answer: str | None, solved: bool, asked: bool = True) -> Trajectory:
        made = run(solved=solved, status=Status.COMPLETED if answer else Status.NO_ANSWER)
        return replace(made, answer=answer, ledger=made.ledger if asked else made.ledger[:2])

    trajectories = [
        judged("Yes.", True, asked=False),  # matches, so that nobody is asked
        judged("It is so.", True),
        judged("<think>yes</think> \\boxed{no}", False),
        judged("Perhaps.", False),
        judged(None, False, asked=False),
    ]
    found = summarize(trajectories)
    assert (found["accuracy"], found["exact_match"], found["judged"]) == (0.4, 0.2, 0.6)
    assert found["judge_disagrees"] == 1 / 3
    assert found["judge_cost"] == 3 * 50.0 / 5
    assert disagreements(trajectories) == [
        {"id": "t", "question": "?", "reference": ["yes"], "answer": "It is so.", "judge": True, "exact_match": False}
    ]
    alone = summarize([judged("Yes.", True, asked=False), judged("No.", False, asked=False)])
    assert not {"exact_match", "judged", "judge_disagrees"} & alone.keys()  # there is no judge


def test_the_users_dollars_are_apart_from_the_policys():
    user = [Usage("gpt-5", role="user_simulator", cost_usd=cost) for cost in (3.0, 2.0)]
    found = summarize([replace(run(cost=1.0), ledger=(*run(cost=1.0).ledger, *user)), run(cost=1.0)])
    assert (found["cost"], found["user_cost"]) == (1.0, 2.5)
    assert "user_cost" not in summarize([run()])


def test_criteria_are_shares_of_what_was_scored():
    scored = [{"executed": "", "faithful": ""}, {"executed": "", "faithful": "Not said."}, {}]
    found = summarize([replace(run(), criteria=each) for each in scored])
    assert (found["criteria/executed"], found["criteria/faithful"]) == (1.0, 0.5)


def test_what_a_right_answer_costs_is_unknown_where_nothing_was_solved():
    assert summarize([run(cost=1.0, solved=False)])["cost_per_correct"] is None
    assert summarize([run(cost=0.0, solved=False)])["cost_per_correct"] is None
    assert summarize([run(cost=0.0)])["cost_per_correct"] == 0.0


def test_where_everything_failed_nothing_is_known():
    found = summarize([run(status=Status.FAILED, solved=False)] * 3)
    assert (found.pop("failed"), found.pop("counted")) == (3.0, 0.0)
    assert found.keys() == summarize([run()]).keys() - {"failed", "counted", *judge_figures([run()])}
    assert set(found.values()) == {None}
    with pytest.raises(ValueError, match="No trajectory"):
        summarize([])


def test_intervals_are_of_the_questions_that_did_not_fail():
    some = [run(cost=1.0, latency=7.0), run(cost=3.0, solved=False), run(cost=2.0, solved=False)]
    found = question_intervals([*some, run(cost=99.0, status=Status.FAILED)])
    assert found == question_intervals(some)
    assert found["accuracy"] == {"wilson": wilson(1, 3), "bootstrap": bootstrap([1.0, 0.0, 0.0])}
    assert found["cost"] == {"bootstrap": bootstrap([1.0, 3.0, 2.0])}
    assert found["latency"] == {"bootstrap": bootstrap([7.0, 0.0, 0.0])}


def test_intervals_of_several_samples_weigh_a_question_by_those_that_did_not_fail():
    failed = run(status=Status.FAILED, solved=False)
    asked = [(run(cost=1.0), run(cost=3.0, solved=False)), (run(cost=8.0), failed)] * 10
    found = question_intervals([one for some in asked for one in some], 2)
    assert found["accuracy"] == {"bootstrap": bootstrap([0.5, 1.0] * 10, weights=[2, 1] * 10)}
    assert found["cost"] == {"bootstrap": bootstrap([2.0, 8.0] * 10, weights=[2, 1] * 10)}


# --- tools -----------------------------------------------------------------------------------------------------------


def test_tool_shares_are_of_executed_calls_that_find_answers_by_family():
    found = tool_shares([
        run("python python web_search relay", family="arith"),
        run("python answer", family="arith"),
        run("", family="easy"),
        run("local_search", family="easy", status=Status.FAILED),  # is in no figure
    ])  # fmt: skip
    assert found == {
        "all": {"python": 0.75, "web_search": 0.25},
        "arith": {"python": 0.75, "web_search": 0.25},
        "easy": {},
    }


def test_the_local_share_looks_at_searches_only():
    runs = [run("local_search python python"), run("web_search web_search local_search web_search web_search")]
    runs.append(run("local_search", status=Status.FAILED))
    assert local_share(runs) == pytest.approx(2 / 6)
    assert local_share([run("python")]) is None


# --- utility ---------------------------------------------------------------------------------------------------------

MIXED = Preference("mixed", "", {"local_search": 0.5}, outcome=0.25, compute=0.125, latency=0.0625)


def preferred(calls: str, cost: float, latency: float, solved: bool = True) -> Trajectory:
    return run(calls, cost=cost, latency=latency, solved=solved, preference=MIXED)


def test_utility_by_hand():
    cheap, dear = preferred("local_search", 0.0, 8.0, solved=False), preferred("web_search", 0.5, 4.0)
    # Against their range: cost 0 to 0.5 dollars, latency 4 to 8 seconds, outcome 0 to 1, local search 0 to 1.
    runs = [
        preferred("web_search", 0.25, 5.0),
        preferred("local_search", 0.0, 4.0),
        preferred("local_search local_search python", -1.0, 1.0),  # beyond the range on the good side: clipped
        preferred("python", 9.0, 99.0),  # beyond it on the bad side; only the outcome is left
        preferred("local_search", 0.0, 4.0, solved=False),
    ]
    found = preference_utility([[r] for r in runs], [[cheap], [dear]], "count")
    expected = [0.25 + 0.125 / 2 + 0.0625 * 0.75, 0.9375, 0.9375, 0.25, 0.0]
    np.testing.assert_allclose(found, np.array(expected)[:, None], rtol=1e-6)


def test_a_feature_that_never_varies_adds_nothing():
    same, better = [[preferred("local_search", 0.5, 4.0)]], [[preferred("local_search local_search", 0.25, 3.0)]]
    np.testing.assert_array_equal(preference_utility([*same, *better], same, "count"), [[0.0], [0.0]])


def test_every_question_has_its_own_range_and_menu():
    def question(cost: float, tools: str) -> Trajectory:
        return run("python", cost=cost, tools=tools, preference=Preference("cost", "", {}, 0.0, compute=1.0))

    low = [question(0.0, "python"), question(1.0, TOOLS)]
    high = [question(1.0, "python"), question(5.0, TOOLS)]
    found = preference_utility([[question(0.25, "python"), question(2.0, TOOLS)]], [low, high], "used")
    np.testing.assert_allclose(found, [[0.75, 0.75]], rtol=1e-6)


def test_a_baseline_that_failed_sets_no_range():
    cheap, dear, mine = (preferred("python", cost, 4.0) for cost in (1.0, 3.0, 2.0))
    failed = replace(preferred("python", 0.0, 0.0), status=Status.FAILED, solved=False)
    expected = preference_utility([[mine]], [[cheap], [dear]], "count")
    assert expected > 0
    np.testing.assert_array_equal(preference_utility([[mine]], [[cheap], [failed], [dear]], "count"), expected)
    np.testing.assert_array_equal(preference_utility([[mine]], [[failed], [failed]], "count"), [[0.0]])


def test_the_tool_feature_is_the_one_asked_for():
    preference = Preference("local", "", {"local_search": 1.0}, outcome=0.0)
    none, twice, half = (
        [run(calls, preference=preference)] for calls in ("python", "local_search local_search", "local_search python")
    )
    for feature, expected in {"count": 0.5, "used": 1.0, "share": 0.5}.items():
        np.testing.assert_allclose(preference_utility([half], [none, twice], feature), [[expected]])
