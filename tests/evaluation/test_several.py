"""What several calls gain, by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestra_jax.evaluation.calls import several_figures
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, Trajectory, Turn, Usage


def run(family: str, results: Sequence[ToolResult], answer: str | None) -> Trajectory:
    task = Task("t", "?", ("7",), (), Preference("", ""), family=family)
    turns = tuple(Turn((), (), (), 0, "stop", "", (ToolCall("a", {}),), (result,)) for result in results)
    return Trajectory(task, 0, 0, (turns,), Status.COMPLETED, "", answer, answer == "7", ())


def said(text: str, usd: float = 0.0, **kinds: bool) -> ToolResult:
    return ToolResult(text, (Usage("m", cost_usd=usd),), **kinds)


def test_what_the_calls_after_the_first_gain() -> None:
    runs = [
        run("sum", [said("7", 0.1)], "7"),
        run("sum", [said("5", 0.1), said("The answer is 7", 0.4)], "7"),
        run("sum", [said("7", 0.2), said("5", 0.2)], "5"),
        run("code", [said("broken", is_error=True), said("7", 0.3)], "7"),
        run("code", [said("7"), said("no more calls", refused=True)], "7"),
        run("code", [], None),
    ]
    failed = replace(runs[1], status=Status.FAILED)
    found = several_figures([*runs, failed])["several"]
    assert found.pop("share_by_family") == pytest.approx({"code": 1 / 3, "sum": 2 / 3})
    wanted = {"share": 0.5, "first_silent": 1 / 3, "first_right": 1 / 3, "answer_right": 2 / 3}
    assert found == pytest.approx(wanted | {"first_cost": 0.1, "cost": 0.4})


def test_nothing_is_said_without_calls() -> None:
    assert several_figures([run("code", [], "7")]) == {}
    alone = several_figures([run("sum", [said("7")], "7")])
    assert alone == {"several": {"share": 0.0, "share_by_family": {"sum": 0.0}}}
