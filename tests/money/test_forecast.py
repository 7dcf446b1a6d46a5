"""The cost of an evaluation before it is paid, by hand: who is asked how often, and at which price."""

from dataclasses import replace

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.money.forecast import call_costs, evaluation_cost
from orchestra_jax.money.prices import POLICY, Price, PriceList
from orchestra_jax.training.forecast import evaluations_usd

# A call of 1000 + 100 tokens is 20 cents for a, 60 for b; 3 dollars for the judge j, 7 for the user u, 1 for a search.
PRICES = PriceList(
    "t", "d", "s",
    {"a": Price(input=100.0, output=1000.0), "b": Price(call=0.6), "j": Price(call=3.0), "u": Price(call=7.0),
     "web_search": Price(call=1.0),
     POLICY: Price(input=1000.0, cached_input=100.0, output=4000.0)},
)  # fmt: skip
EACH = "1000 + 100 tokens each"


def settings(samples: int = 2, temperature: float = 1.0, greedy: bool = True, judge: str = "j") -> RunConfig:
    cfg = compose()
    return replace(
        cfg,
        tools=replace(cfg.tools, names=[], experts={"math": ["a", "b"]}, judge=judge),
        plan=replace(cfg.plan, calls=3, call_input=1000, call_output=100, turns=3, tokens=1200, response=0.25),
        evaluation=replace(cfg.evaluation, samples=samples, temperature=temperature, greedy=greedy),
        budget=replace(cfg.budget, run_usd=5.0),
    )


def told(cfg: RunConfig, *, paid_policy=True, asked=None, calls=None, users=()) -> str | None:
    tasks = {"x": 5, "y": 3}
    return evaluation_cost(
        cfg, PRICES, tasks, paid_policy=paid_policy, asked=asked, calls=calls, users=dict(users)
    )  # fmt: skip


def test_every_part_of_an_evaluation_is_in_the_sum():
    # Two samples and greedy are 24 trajectories. Each has 3 calls of 40 cents on average; the policy samples 300 of
    # 1200 tokens and reads 300, 700 and 1100, of which 300 and 700 were there before.
    policy = (1100 * 1000 + 1000 * 100 + 300 * 4000) / 1e6
    assert policy == pytest.approx(2.40)
    assert told(settings(), users={"u": 4}) == (
        f"24 trajectories of x (5), y (3) cost about $438.40: experts $28.80 (3 calls of {EACH}), the judge $72.00 "
        "(one verdict each), the policy itself $57.60 (3 turns up to 1200 tokens), the user u $280.00 (4 conversations "
        f"of 10 turns of {EACH}, those of baselines included); budget.run_usd=5 ends it."
    )


@pytest.mark.parametrize(
    ("cfg", "options", "wanted"),
    [
        (settings(temperature=0.0), {}, "16 trajectories of x (5), y (3) cost about $105.60: "),  # all are greedy
        (settings(samples=1, greedy=False), {}, "8 trajectories of x (5), y (3) cost about $52.80: "),
        (settings(), {"paid_policy": False}, "24 trajectories of x (5), y (3) cost about $100.80: "),
        (settings(), {"paid_policy": False, "asked": ["a"]}, "$86.40: experts $14.40 (3 calls"),
        (settings(judge="match"), {"paid_policy": False, "calls": 1}, "$9.60: experts $9.60 (1 call of"),
        # Nothing is answered: neither judge nor policy has anything to do. Only the user talks.
        (settings(), {"calls": 0, "users": {"u": 1}}, "cost about $70.00: the user u $70.00 (1 conversations"),
    ],
)  # fmt: skip
def test_what_is_not_asked_is_not_in_the_sum(cfg: RunConfig, options: dict, wanted: str):
    assert wanted in told(cfg, **options)


def test_a_runs_own_evaluations_are_paid():
    cfg = settings()
    cfg = replace(cfg, steps=100, evaluation=replace(cfg.evaluation, every=30, questions=10))
    # Before, after and at steps 30, 60 and 90: two samples and greedy of 3 calls of 40 cents and a verdict.
    assert evaluations_usd(cfg, PRICES) == pytest.approx(10 * 5 * 3 * (3 * 0.4 + 3))
    twice = replace(cfg, evaluation=replace(cfg.evaluation, every=0))
    assert evaluations_usd(twice, PRICES) == pytest.approx(10 * 2 * 3 * (3 * 0.4 + 3))
    ninety = replace(cfg, steps=90)  # the last step is followed by the evaluation after training alone
    assert evaluations_usd(ninety, PRICES) == pytest.approx(10 * 4 * 3 * (3 * 0.4 + 3))
    others = replace(cfg, evaluation=replace(cfg.evaluation, benchmarks=["preference_swap"]))
    assert evaluations_usd(others, PRICES) == 0


def test_a_search_is_paid_for_alone_and_behind_a_query_writer():
    cfg = settings(samples=1, greedy=False, judge="match")
    offer = {"math": ["a", "b"], "query_writer": ["a"]}
    cfg = replace(cfg, tools=replace(cfg.tools, names=["python", "local_search", "web_search"], experts=offer))
    assert call_costs(cfg, cfg.tools, PRICES) == {
        ("web_search", ""): 1.0, ("a", "math"): pytest.approx(0.2), ("b", "math"): 0.6,
        ("a", "query_writer"): pytest.approx(1.2),
    }  # fmt: skip
    # 8 trajectories of 3 calls, of 75 cents on average
    assert told(cfg, paid_policy=False) == (
        f"8 trajectories of x (5), y (3) cost about $18.00: experts and tools $18.00 (3 calls of {EACH}); "
        "budget.run_usd=5 ends it."
    )
    local = replace(cfg.tools, names=["python", "local_search"])  # costs nothing
    assert call_costs(cfg, local, PRICES)["a", "query_writer"] == pytest.approx(0.2)


def test_nothing_is_told_where_nothing_is_paid():
    assert told(settings(judge="match"), paid_policy=False, asked=[], users={"u": 0}) is None
    assert told(settings(), calls=0) is None
