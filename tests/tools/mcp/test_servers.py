"""Tools of an MCP server in menus: called, charged, recorded and replayed; and a server that dies, hangs or lies."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.build import RunTools, make_tools
from orchestra_jax.tools.mcp import session
from orchestra_jax.types import InfrastructureError, Preference, ReplayMiss, Task, ToolCall, ToolResult, ToolSpec

pytest.importorskip("mcp", reason="needs the package mcp: pip install 'orchestra-jax[mcp]'")

Call = Callable[..., Coroutine[Any, Any, ToolResult]]
POINTS = [{"x": 0, "y": 0}, {"x": 3, "y": 4}]


def used(cfg: RunConfig, work: Callable[[Call, tuple[ToolSpec, ...]], Coroutine[Any, Any, Any]]) -> Any:
    """What `work` comes to with the tools of a run: it gets a function that makes calls, and the menu."""
    tools: RunTools = make_tools(cfg)  # before there is an event loop, as a run does

    async def main() -> Any:
        instance = tools.catalogue.instance(0)
        task = Task("t", "?", ("a",), instance.tools, Preference("accuracy", ""))
        executor = tools.catalogue.executor(instance.record, task, Budget())
        try:
            return await work(lambda name, **given: executor.step(ToolCall(name, given)), instance.tools)
        finally:
            await tools.close()

    return asyncio.run(main())


async def every_kind(call: Call, menu: tuple[ToolSpec, ...]) -> list[Any]:
    results = [
        await call("echo", text="Ω"), await call("geo_distance", points=POINTS), await call("fail"),
        await call("picture"), await call("refuse"), await call("geo_distance", points=[{"x": 0}, {"y": 1}]),
    ]  # fmt: skip
    return [[(spec.name, spec.description, spec.parameters, spec.price_usd) for spec in menu], results]


def test_tools_are_called_and_charged_and_replayed_without_a_server(command, configured, none_left, tmp_path: Path):
    prices = {"echo": {"price_usd": 0.25, "latency_s": 3.0}}
    offered = ["echo", "geo.distance", "fail", "picture", "refuse"]
    entry = {"server": command(), "name": "hand", "prices": prices, "tools": offered}
    plain = {**entry, "name": None, "server": command()}
    record = f"replay.path={tmp_path / 'calls.db'}"
    menu, results = used(configured([plain]), every_kind)
    assert [name for name, *_ in menu] == ["echo", "geo_distance", "fail", "picture", "refuse"]
    assert menu[1][1] == "Measures how far two points are apart."
    assert menu[1][2]["$defs"]["Point"]["required"] == ["x", "y"]
    assert [(result.text, result.is_error) for result in results[:5]] == [
        ("Ω", False), ('{"apart": 5.0}', False), ("It did not work.", True), ("[image image/png, not shown]", False),
        ("These arguments are refused.", True),
    ]  # fmt: skip
    assert "'points.1' of geo_distance lack the required 'x'" in results[5].text
    assert results[5].refused
    (row,) = results[0].usage
    assert (row.name, row.cost_usd, row.seconds) == ("echo", 0.25, 3.0)
    (row,) = results[2].usage  # the tool's own error is paid for
    assert (row.name, row.cost_usd) == ("fail", 0.0)
    assert 0 < row.seconds < 30

    async def named(call: Call, menu: tuple[ToolSpec, ...]) -> Any:
        assert menu[1].name == "hand_geo_distance"
        return await call("hand_geo_distance", points=POINTS)

    first = used(configured([entry], record, "replay.mode=record"), named)
    none_left()
    again = used(configured([{**entry, "server": "no-such-program"}], record, "replay.mode=replay"), named)
    assert again == first

    async def unknown(call: Call, menu: tuple[ToolSpec, ...]) -> Any:
        return await call("hand_echo", text="never said")

    with pytest.raises(ReplayMiss):
        used(configured([entry], record, "replay.mode=replay"), unknown)
    with pytest.raises(ConfigError, match="no tool list of the MCP server other: record a run"):
        used(configured([{**entry, "name": "other"}], record, "replay.mode=replay"), named)
    newer = [{**entry, "server": command("2.0")}]
    said = r"hand was by-hand 1\.0 \(protocol 2025-06-18\) and is by-hand 2\.0 .* record to another replay\.path"
    with pytest.raises(ConfigError, match=said):
        used(configured(newer, record, "replay.mode=replay_or_record"), named)
    used(configured(newer, record, "replay.mode=record"), named)
    none_left()


def test_two_servers_with_one_name_for_a_tool_are_told_apart_or_refused(command, configured, none_left, monkeypatch):
    monkeypatch.setenv("MCP_TEST_KEY", "a secret")
    one = {"server": command(), "tools": ["variables"]}
    two = {"server": command("2.0"), "name": "two", "tools": ["variables"], "env": ["MCP_TEST_KEY"]}
    with pytest.raises(ConfigError, match="Two tools are called 'variables': give an MCP server that has it a name"):
        make_tools(configured([one, {**two, "name": None}]))
    none_left()

    async def both(call: Call, menu: tuple[ToolSpec, ...]) -> list[str]:
        return [(await call("variables")).text, (await call("two_variables")).text]

    assert used(configured([one, two]), both) == ["None", "a secret"]
    with pytest.raises(ConfigError, match=r"bad.*refers to 'http://x/y', which is not in the schema"):
        make_tools(configured([command("1.0", "bad schema")]))
    none_left()


def test_a_call_after_the_end_starts_no_server(command, configured, none_left):
    tools = make_tools(configured([command()]))
    handler = tools.catalogue.entries["echo"].handler
    asyncio.run(tools.close())
    with pytest.raises(InfrastructureError, match="was closed"):
        asyncio.run(handler({"text": "again"}, Budget()))
    none_left()


def test_evaluation_may_offer_other_servers(command, configured, none_left):
    one, two = {"server": command(), "tools": ["echo"]}, {"server": command(), "tools": ["fail"]}
    cfg = configured([one])
    offer = replace(cfg.tools.evaluation, own=True, mcp=[two])
    tools = make_tools(replace(cfg, tools=replace(cfg.tools, evaluation=offer)))
    assert [list(tools.catalogue.entries), list(tools.evaluation.entries)] == [["echo"], ["fail"]]
    asyncio.run(tools.close())
    none_left()


def test_a_server_that_dies_or_hangs_spoils_the_sample_and_the_next_call_works(command, configured, none_left):
    async def work(call: Call, menu: tuple[ToolSpec, ...]) -> None:
        async def pid() -> int:
            return int((await call("pid")).text)

        first = await pid()
        said = await asyncio.gather(call("die"), call("hang"), return_exceptions=True)
        assert [type(each) for each in said] == [InfrastructureError] * 2
        assert "failed in a call of die: Connection closed" in str(said[0])
        second = await pid()
        assert second != first
        with pytest.raises(InfrastructureError, match=r"gave no answer to hang within 2 s"):
            await call("hang")
        third = await pid()
        assert third != second
        os.kill(third, signal.SIGKILL)  # while nothing is asked of it
        while (fourth := await asyncio.gather(pid(), return_exceptions=True))[0] == third:
            pass
        assert isinstance(fourth[0], int | InfrastructureError)
        assert await pid() != third
        texts = await asyncio.gather(*(call("echo", text=str(n)) for n in range(200)))
        assert [each.text for each in texts] == [str(n) for n in range(200)]

    used(configured([{"server": command(), "timeout_s": 2, "concurrency": 16}]), work)
    none_left()


def test_calls_wait_for_a_server_that_is_starting_again(command, configured, none_left):
    """Whoever calls between its start and its first answer; before, those calls were lost with its predecessor's."""

    async def work(call: Call, menu: tuple[ToolSpec, ...]) -> list[str]:
        async def later(number: int) -> str:
            await asyncio.sleep(0.005 * number)
            return (await call("echo", text=str(number))).text

        with pytest.raises(InfrastructureError, match="Connection closed"):
            await call("die")
        return await asyncio.gather(*map(later, range(20)))

    assert used(configured([command()]), work) == [str(number) for number in range(20)]
    none_left()


def test_a_server_that_does_not_start_is_one_sentence(command, configured, none_left, monkeypatch):
    monkeypatch.setattr(session, "BACKOFF_S", 0.01)
    with pytest.raises(ConfigError, match=r"cannot be used: .* Its last words: I will not start\. Mend it, or leave"):
        make_tools(configured([command("1.0", "silly")]))
    monkeypatch.setattr(session, "START_S", 0.5)
    with pytest.raises(ConfigError, match=r"did not answer within 0\.5 s of its start"):
        make_tools(configured([{"server": command("1.0", "mute"), "retries": 0}]))
    none_left()


def test_a_server_over_http_is_called_and_found_again_after_it_broke_off(configured, monkeypatch):
    from tests.tools.mcp.http_server import http_server

    monkeypatch.setenv("MCP_TEST_KEY", "a secret")
    with http_server() as server:

        async def work(call: Call, menu: tuple[ToolSpec, ...]) -> None:
            assert menu[0].parameters["properties"]["number"]["type"] == "integer"
            assert (await call("double", number=21)).text == "42"
            assert (await call("token")).text == "a secret"
            failed = await call("double", number=-1)
            assert failed.is_error
            assert "Only numbers from 0." in failed.text
            waiting = asyncio.create_task(call("hang"))
            await asyncio.sleep(0.2)  # it is under way, most likely; before that the end is the same
            await asyncio.to_thread(server.stop)
            with pytest.raises(InfrastructureError, match=r"failed in a call of hang|cannot be used"):
                await waiting
            with pytest.raises(InfrastructureError, match="cannot be used"):  # nobody is there
                await call("double", number=1)
            await asyncio.to_thread(server.start)
            assert (await call("double", number=4)).text == "8"

        monkeypatch.setattr(session, "BACKOFF_S", 0.01)
        used(configured([{"server": server.url, "headers": {"X-Token": "MCP_TEST_KEY"}}]), work)


def test_half_of_a_surrogate_pair_is_no_end_of_a_call_or_a_list(command, configured, none_left, tmp_path: Path):
    async def both(call: Call, menu: tuple[ToolSpec, ...]) -> list[Any]:
        answers = [await call("half"), await call("bad", a="\ufffd"), await call("echo", text="\ud83d")]
        return [[(spec.name, spec.description, spec.parameters) for spec in menu], answers]

    entry = {"server": command("1.0", "half schema"), "name": None, "tools": ["half", "bad", "echo"], "retries": 0}
    record = [f"replay.path={tmp_path / 'calls.db'}"]
    menu, (half, bad, echo) = used(configured([entry], *record, "replay.mode=record"), both)
    assert menu[1] == ("bad", "Half an emoji: \ufffd", {"type": "object", "properties": {"a": {"enum": ["\ufffd"]}}})
    assert (half.text, half.is_error) == ("a\ufffd", False)
    assert not bad.refused
    assert echo.text == "\ufffd"
    none_left()
