"""Figures of calls, by hand: which models are asked, what several calls gain, and the entropy of calls."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestra_jax.evaluation.calls import (
    ModelCalls,
    count_model_calls,
    model_figures,
    offered_models,
    several_figures,
    strongest_models,
    tool_entropy,
)
from orchestra_jax.evaluation.model_family import model_family
from orchestra_jax.evaluation.results.tables import share_of_calls
from orchestra_jax.training.metrics import rollout_metrics
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Trajectory, Turn, Usage
from tests.rl.trajectories import trajectory, turn

FAMILIES = {
    "gpt-5": "gpt-5", "gpt-5-mini": "gpt-5", "openai/gpt-5-2025-08-07": "gpt-5", "gpt-4o": "gpt-4o", "o3-mini": "o3",
    "Qwen/Qwen3-8B": "qwen3", "qwen3-32b": "qwen3", "qwen2.5-coder-32b": "qwen2.5", "llama-3.3-70b": "llama-3.3",
    "claude-opus-4.1": "claude", "claude-sonnet-4": "claude", "codestral-22b": "codestral", "policy": "policy",
}  # fmt: skip
KEYS = {"expert-1": "generalist/gpt-5", "expert-2": "math/qwen2.5-math-7b", "python": "python"}
OUTPUT = {"generalist/gpt-5": 10.0, "math/qwen2.5-math-7b": 0.2}


def run(calls: str, names: str, instance: dict | None = None, price: float | None = None) -> Trajectory:
    tools = tuple(ToolSpec(name, "", {}, price_usd=price) for name in names.split())
    task = Task("t", "?", ("yes",), tools, Preference("", ""), extra={"instance": instance} if instance else {})
    return trajectory(task, turn([], [], calls))


def test_families() -> None:
    assert {name: model_family(name) for name in FAMILIES} == FAMILIES


def test_the_dearest_output_is_the_strongest_and_else_the_dearest_call() -> None:
    offered = offered_models(run("", "python expert-1 expert-2", {"tools": KEYS, "output_usd": OUTPUT}).task)
    assert offered == {key: {"output_usd": usd} for key, usd in OUTPUT.items()}
    assert strongest_models(offered) == {"generalist/gpt-5"}
    alone = offered_models(run("", "python expert_small expert_large", price=0.1).task)
    assert strongest_models(alone) == alone.keys() == {"expert_small", "expert_large"}  # they cost the same
    simulated = {"tools": {"python": "python", "expert_small": "expert_small"}, "output_usd": {}}
    assert offered_models(run("", "python expert_small", simulated, price=0.1).task) == {
        "expert_small": {"call_usd": 0.1}
    }
    assert strongest_models({"a/b": {"output_usd": 0.0}, "a/c": {"call_usd": 9.0}}) == {"a/b"}
    assert strongest_models({"a/b": {}}) == strongest_models({}) == set()


def test_shares_are_of_calls_of_models_and_null_where_nothing_is_known() -> None:
    instance = {"tools": KEYS, "output_usd": OUTPUT}
    menu = " ".join(KEYS)
    runs = [run(calls, menu, instance) for calls in ("expert-1 python expert-1 expert-2", "expert-2", "python", "")]
    found = model_figures([*runs, replace(runs[0], status=Status.FAILED)], "gpt-5-mini")
    assert found == {"model_calls": 1.0, "strongest_share": 0.5, "own_share": 0.5}
    assert model_figures(runs, "qwen3-8b")["own_share"] == 0.0
    assert model_figures(runs, None) == found | {"own_share": None}
    unpriced = [run("expert-1", menu, {"tools": KEYS})]
    assert model_figures(unpriced, None) == {"model_calls": 1.0, "strongest_share": None, "own_share": None}
    assert model_figures(runs[2:], "gpt-5") == {"model_calls": 0.0, "strongest_share": None, "own_share": None}
    assert model_figures([run("python", "python")], "gpt-5") == {}


def test_intervals_are_over_questions() -> None:
    called = [["a/x"], ["a/x", "a/y", "a/y"], ["a/y"]]
    offered = {"a/x": {"output_usd": 2.0}, "a/y": {"output_usd": 1.0}}
    counts = [count_model_calls(some, offered, None) for some in called]
    assert counts[1] == ModelCalls(count=3, ranked=3, strongest=1, own=None)
    share, interval = share_of_calls([[(one.strongest, one.ranked)] for one in counts])
    assert share == pytest.approx(2 / 5)
    draws = [[counts[q] for q in some] for some in itertools.product(range(3), repeat=3)]
    means = [sum(one.strongest for one in some) / sum(one.count for one in some) for some in draws]
    assert interval == (pytest.approx(np.min(means)), pytest.approx(np.max(means)))
    assert share_of_calls([]) == share_of_calls([[(0, 0)]]) == (None, None)


# --- several calls for a question ---


def answered(family: str, results: Sequence[ToolResult], answer: str | None) -> Trajectory:
    task = Task("t", "?", ("7",), (), Preference("", ""), family=family)
    turns = tuple(Turn((), (), (), 0, "stop", "", (ToolCall("a", {}),), (result,)) for result in results)
    return Trajectory(task, 0, 0, (turns,), Status.COMPLETED, "", answer, answer == "7", ())


def result_of(text: str, usd: float = 0.0, **kinds: bool) -> ToolResult:
    return ToolResult(text, (Usage("m", cost_usd=usd),), **kinds)


def test_what_the_calls_after_the_first_gain() -> None:
    runs = [
        answered("sum", [result_of("7", 0.1)], "7"),
        answered("sum", [result_of("5", 0.1), result_of("The answer is 7", 0.4)], "7"),
        answered("sum", [result_of("7", 0.2), result_of("5", 0.2)], "5"),
        answered("code", [result_of("broken", is_error=True), result_of("7", 0.3)], "7"),
        answered("code", [result_of("7"), result_of("no more calls", refused=True)], "7"),
        answered("code", [], None),
    ]
    failed = replace(runs[1], status=Status.FAILED)
    found = several_figures([*runs, failed])["several"]
    assert found.pop("share_by_family") == pytest.approx({"code": 1 / 3, "sum": 2 / 3})
    wanted = {"share": 0.5, "first_silent": 1 / 3, "first_right": 1 / 3, "answer_right": 2 / 3}
    assert found == pytest.approx(wanted | {"first_cost": 0.1, "cost": 0.4})


def test_a_result_is_right_by_the_answer_in_it() -> None:
    run = answered("sum", [result_of("Half of 14 is \\boxed{7}."), result_of("8")], "8")
    assert several_figures([run])["several"]["first_right"] == 1.0


@pytest.mark.parametrize("tool", ["answer", "relay"])
def test_a_call_that_hands_in_the_answer_is_no_further_call(tool: str) -> None:
    run = calling(calls_of("a", tool), ["a", "b", tool])
    assert several_figures([run])["several"]["share"] == 0.0
    assert tool_entropy([run]) == {"entropy": 0.0, "entropy_share": 0.0}


def test_nothing_is_said_without_calls() -> None:
    assert several_figures([answered("code", [], "7")]) == {}
    alone = several_figures([answered("sum", [result_of("7")], "7")])
    assert alone == {"several": {"share": 0.0, "share_by_family": {"sum": 0.0}}}


# --- entropy ---


def calling(
    calls: Sequence[ToolCall], menu: Sequence[str], names: Mapping[str, str] | None = None, status=Status.COMPLETED
) -> Trajectory:
    extra = {"instance": {"tools": names}} if names else {}
    task = Task("t", "?", ("yes",), tuple(ToolSpec(n, "", {}) for n in menu), Preference("accuracy", ""), extra=extra)
    made = replace(turn([1], [2]), calls=tuple(calls), results=tuple(ToolResult("") for _ in calls))
    return trajectory(task, made, status=status)


def calls_of(*names: str) -> list[ToolCall]:
    return [ToolCall(name, {}) for name in names]


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_mean_surprise_of_a_call(seed: int):
    rng, menu = np.random.default_rng(seed), list("abcdefg")[: 3 + seed]
    weights = rng.dirichlet(np.ones(len(menu)))
    runs = [calling(calls_of(*rng.choice(menu, size=rng.integers(0, 5), p=weights)), menu) for _ in range(20)]
    flat = [call.name for run in runs for call in run.calls]
    surprise = [-math.log2(flat.count(name) / len(flat)) for name in flat]
    found = tool_entropy(runs)
    assert found["entropy"] == pytest.approx(sum(surprise) / len(surprise))
    assert found["entropy_share"] == pytest.approx(found["entropy"] / math.log2(len(menu)))


def test_its_ends_and_what_is_not_known():
    even, one = calling(calls_of("a", "b", "c", "d"), "abcd"), calling(calls_of("a", "a", "a"), "abcd")
    assert tool_entropy([even]) == {"entropy": 2.0, "entropy_share": 1.0}
    assert tool_entropy([one]) == {"entropy": 0.0, "entropy_share": 0.0}
    assert tool_entropy([calling([], "abcd"), calling([], "")]) == {}
    assert tool_entropy([calling(calls_of("a"), "a")]) == {"entropy": 0.0}  # there is no other tool
    failed = calling(calls_of("b", "c", "e"), "abcde", status=Status.FAILED)
    assert tool_entropy([one, failed]) == tool_entropy([one])


def test_an_alias_is_no_tool_and_handing_in_the_answer_no_choice():
    first = calling(calls_of("expert-1", "answer"), ["expert-1", "expert-2", "answer"],
                 {"expert-1": "math/x", "expert-2": "generalist/y", "answer": "answer"})  # fmt: skip
    second = calling(calls_of("expert-2"), ["expert-1", "expert-2"], {"expert-2": "math/x", "expert-1": "generalist/y"})
    assert tool_entropy([first, second]) == {"entropy": 0.0, "entropy_share": 0.0}
    chosen = [ToolCall("answer", {"model": "answer-1"}), ToolCall("answer", {"model": "answer-2"})]
    released = calling(chosen, ["search", "answer"], {"answer-1": "generalist/x", "answer-2": "generalist/y"})
    assert tool_entropy([released]) == {"entropy": 1.0, "entropy_share": 1.0}


def test_every_step_has_it():
    runs = [calling(calls_of("a"), "abcd"), calling(calls_of("b"), "abcd")]
    found = rollout_metrics(runs, np.zeros((1, 2)), np.ones(1, bool))
    assert (found["tools/entropy"], found["tools/entropy_share"]) == (1.0, 0.5)


def test_failed_trajectories_count_in_the_figures_that_the_docs_name_and_in_no_other():
    failed = calling(calls_of("b"), "abcd", status=Status.FAILED)
    longer = replace(failed, sequences=((replace(failed.turns[0], sampled_ids=(2, 2, 2)),),))
    runs = [calling(calls_of("a"), "abcd"), longer]
    found = rollout_metrics(runs, np.array([[1.0, 0.0]]), np.ones(1, bool))
    assert (found["failed"], found["tools/entropy"]) == (1.0, 0.0)  # the call of b does not count
    assert (found["reward/mean"], found["reward/std"]) == (0.5, 0.5)
    assert found["tokens/sampled"] == 2.0  # of 1 and 3
    told = (Path(__file__).parents[2] / "docs/metrics.md").read_text(encoding="utf-8")
    rule = told[told.index("These count them:") : told.index("## Update")]
    assert all(f"`{name}`" in rule for name in ("reward/mean", "reward/std", "tokens/sampled", "staleness/*"))
