"""Whom calls go to, by hand; a catalogue's instance says what its models cost."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from orchestra_jax.evaluation.calls import (
    ModelCalls,
    count_model_calls,
    model_family,
    model_figures,
    offered_models,
    strongest_models,
)
from orchestra_jax.evaluation.results.tables import share_of_calls
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Trajectory, Turn

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
    made = tuple(ToolCall(name, {}) for name in calls.split())
    turn = Turn((), (), (), 0, "stop", "", made, tuple(ToolResult("") for _ in made))
    return Trajectory(task, 0, 0, ((turn,),), Status.COMPLETED, "", "yes", True, ())


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
