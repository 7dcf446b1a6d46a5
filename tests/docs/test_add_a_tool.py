"""The tool of docs/add_a_tool.md, from a folder outside the repository."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.schema import ReplayConfig, RunConfig
from orchestra_jax.config.tools import ToolsConfig
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.build import make_tools, tool_problems
from orchestra_jax.types import Preference, Task, ToolCall, ToolResult, ToolSpec
from tests.docs.pages import begin_with


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds the page's code, as the folder that one works in."""
    begin_with("add_a_tool.md", "my_tools.py", tmp_path, monkeypatch)
    return tmp_path


async def execute(cfg: RunConfig, calls: Sequence[ToolCall]) -> tuple[tuple[ToolSpec, ...], list[ToolResult]]:
    """The menu of a run, and what its calls gave."""
    tools = make_tools(cfg)
    try:
        instance = tools.catalogue.instance(0)
        task = Task("t", "?", ("7",), instance.tools, Preference("none", ""))
        executor = tools.catalogue.executor(instance.record, task, Budget())
        return instance.tools, [await executor.step(call) for call in calls]
    finally:
        await tools.close()


async def test_the_example_is_used_by_its_name(folder: Path):
    cfg = replace(RunConfig(), tools=ToolsConfig(names=["my_tools:weather", "my_tools:Dictionary", "answer"]))
    assert tool_problems(cfg) == []
    arguments = [
        {"city": "Oslo"},
        {"city": "Rome", "unit": "fahrenheit"},
        {"city": "Atlantis"},
        {"city": 7},
        {"town": ""},
    ]
    menu, results = await execute(cfg, [ToolCall("weather", each) for each in arguments])
    assert [spec.name for spec in menu] == ["weather", "dictionary", "answer"]
    assert menu[0].description == "Tells how warm it is in a city."
    assert menu[0].parameters["properties"]["city"] == {"type": "string", "description": "its English name."}
    assert menu[0].parameters["required"] == ["city"]
    assert [(result.text, result.is_error) for result in results[:3]] == [
        ("-3 degrees celsius", False),
        ("57.2 degrees fahrenheit", False),
        ("Nothing is known about Atlantis; ask for Oslo or Rome.", True),
    ]
    assert [result.is_error and result.usage == () for result in results[3:]] == [True, True]
    assert [(row.name, row.cost_usd, row.seconds) for row in results[0].usage] == [("weather", 0.001, 0.5)]


async def test_its_calls_are_recorded_and_replayed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    cfg = replace(RunConfig(), tools=ToolsConfig(names=["my_tools:weather"]))
    calls = [ToolCall("weather", {"city": "Oslo"}), ToolCall("weather", {"city": "Atlantis"})]
    _, first = await execute(replace(cfg, replay=ReplayConfig("record", "calls.db")), calls)
    import my_tools  # type: ignore[import-not-found]

    monkeypatch.setattr(my_tools, "DEGREES", {})
    _, again = await execute(replace(cfg, replay=ReplayConfig("replay", "calls.db")), calls)
    assert again == first
    _, live = await execute(cfg, calls)
    assert live[0].is_error


def test_what_is_not_there_is_told(folder: Path):
    (folder / "bare_tools.py").write_text("async def rain(city: str) -> str: ...\n")
    for name, sentence in {
        "bare_tools:rain": "tools.names=bare_tools:rain is no tool: write @tool above the function",
        "my_tools:rain": "tools.names=my_tools:rain: the module my_tools has no 'rain'.",
        "your_tools:rain": "there is no module your_tools; start from the folder that holds it",
        "wether": "tools.names=wether is no known tool:",
    }.items():
        (problem,) = tool_problems(replace(RunConfig(), tools=ToolsConfig(names=[name])))
        assert sentence in problem
