"""Entropy of the tools called, against sums over all calls."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from orchestra_jax.evaluation.calls import tool_entropy
from orchestra_jax.training.metrics import rollout_metrics
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Trajectory, Turn


def made(
    calls: Sequence[ToolCall], menu: Sequence[str], names: Mapping[str, str] | None = None, status=Status.COMPLETED
) -> Trajectory:
    extra = {"instance": {"tools": names}} if names else {}
    task = Task("t", "?", ("yes",), tuple(ToolSpec(n, "", {}) for n in menu), Preference("accuracy", ""), extra=extra)
    turn = Turn((1,), (2,), (-0.1,), 0, "stop", "", tuple(calls), tuple(ToolResult("") for _ in calls))
    return Trajectory(task, 0, 0, ((turn,),), status, "", "yes", True, ())


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(name, {}) for name in names]


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_mean_surprise_of_a_call(seed: int):
    rng, menu = np.random.default_rng(seed), list("abcdefg")[: 3 + seed]
    weights = rng.dirichlet(np.ones(len(menu)))
    runs = [made(calls(*rng.choice(menu, size=rng.integers(0, 5), p=weights)), menu) for _ in range(20)]
    flat = [call.name for run in runs for call in run.calls]
    surprise = [-math.log2(flat.count(name) / len(flat)) for name in flat]
    found = tool_entropy(runs)
    assert found["entropy"] == pytest.approx(sum(surprise) / len(surprise))
    assert found["entropy_share"] == pytest.approx(found["entropy"] / math.log2(len(menu)))


def test_its_ends_and_what_is_not_known():
    even, one = made(calls("a", "b", "c", "d"), "abcd"), made(calls("a", "a", "a"), "abcd")
    assert tool_entropy([even]) == {"entropy": 2.0, "entropy_share": 1.0}
    assert tool_entropy([one]) == {"entropy": 0.0, "entropy_share": 0.0}
    assert tool_entropy([made([], "abcd"), made([], "")]) == {}
    assert tool_entropy([made(calls("a"), "a")]) == {"entropy": 0.0}  # there is no other tool
    failed = made(calls("b", "c", "e"), "abcde", status=Status.FAILED)
    assert tool_entropy([one, failed]) == tool_entropy([one])


def test_an_alias_is_no_tool_and_handing_in_the_answer_no_choice():
    first = made(calls("expert-1", "answer"), ["expert-1", "expert-2", "answer"],
                 {"expert-1": "math/x", "expert-2": "generalist/y", "answer": "answer"})  # fmt: skip
    second = made(calls("expert-2"), ["expert-1", "expert-2"], {"expert-2": "math/x", "expert-1": "generalist/y"})
    assert tool_entropy([first, second]) == {"entropy": 0.0, "entropy_share": 0.0}
    chosen = [ToolCall("answer", {"model": "answer-1"}), ToolCall("answer", {"model": "answer-2"})]
    released = made(chosen, ["search", "answer"], {"answer-1": "generalist/x", "answer-2": "generalist/y"})
    assert tool_entropy([released]) == {"entropy": 1.0, "entropy_share": 1.0}


def test_every_step_has_it():
    runs = [made(calls("a"), "abcd"), made(calls("b"), "abcd")]
    found = rollout_metrics(runs, np.zeros((1, 2)), np.ones(1, bool))
    assert (found["tools/entropy"], found["tools/entropy_share"]) == (1.0, 0.5)
