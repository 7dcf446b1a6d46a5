"""Our tools as an MCP server, talked to by the client of the package; and its command line."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax import __version__, serve_mcp
from orchestra_jax.config.compose import compose
from orchestra_jax.money.bill import bill
from orchestra_jax.money.run_budget import RunBudget
from orchestra_jax.tools.base import tool
from orchestra_jax.tools.build import make_tools
from orchestra_jax.types import InfrastructureError

pytest.importorskip("mcp", reason="needs the package mcp: pip install 'orchestra-jax[mcp]'")


@tool
async def broken() -> str:
    """Is not there."""
    raise InfrastructureError("Its server is down.")


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    passages = tmp_path / "wiki.jsonl"
    passages.write_text(json.dumps({"title": "Oslo", "text": "Capital of Norway."}) + "\n")
    return [
        "env=qa",
        "tools=offline",
        "tools.relay=true",
        f"tools.search.corpus={passages}",
        f"output_dir={tmp_path / 'out'}",
    ]


def talked(settings: list[str], work: Callable[[Any], Coroutine[Any, Any, None]], http: bool = False) -> None:
    """Runs `work` with a client of the server of these settings, in this process."""
    from mcp import Client

    cfg = serve_mcp.served(compose(*settings))
    assert serve_mcp.problems(cfg) == []
    folder = Path(cfg.output_dir)
    folder.mkdir(exist_ok=True)

    async def main() -> None:
        tools, money = make_tools(cfg), RunBudget(cfg.budget, folder)
        server = serve_mcp.server_of(serve_mcp.OfferedTools(tools, cfg, money.run, folder))
        stop, where = asyncio.Event(), asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve_mcp.serve(server, 0, stop, where.set_result)) if http else None
        async with Client((await where).removeprefix("at ") if http else server) as client:
            await work(client)
        stop.set()
        assert serving is None or not await serving
        await tools.close()
        money.close()

    asyncio.run(main())


def lines(settings: list[str]) -> list[dict]:
    return [json.loads(line) for line in Path(settings[-1].partition("=")[2], "calls.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("http", [False, True])
def test_search_and_sandbox_are_called_by_the_client_and_written_down(settings: list[str], http: bool):
    async def work(client: Any) -> None:
        assert (client.server_info.name, client.server_info.version) == ("orchestra_jax", __version__)
        listed = (await client.list_tools()).tools
        assert [each.name for each in listed] == ["python", "local_search"]
        assert listed[1].input_schema["required"] == ["query"]
        assert listed[1].description.endswith("Price: free. Runs locally.")
        found = await client.call_tool("local_search", {"query": "oslo"})
        assert (found.content[0].text, found.is_error) == ("Oslo: Capital of Norway.", False)
        for name, arguments, said in (
            ("python", {}, "lack the required 'code'"), ("nobody", {}, "Unknown tool 'nobody'"),
            ("python", {"code": "1 / 0"}, "ZeroDivisionError"),
        ):  # fmt: skip
            answer = await client.call_tool(name, arguments)
            assert answer.is_error
            assert said in answer.content[0].text

    talked(settings, work, http)
    told = [(line["tool"], line["error"], line["refused"], len(line["rows"])) for line in lines(settings)]
    assert told[:2] == [("local_search", False, False, 1), ("python", True, True, 0)]
    assert told[2:] == [("nobody", True, True, 0), ("python", True, False, 1)]


def test_paid_calls_stand_in_the_bill_and_stop_at_the_budget_across_starts(settings: list[str]):
    from mcp import MCPError

    async def work(client: Any) -> None:
        assert (await client.call_tool("dear", {"question": "Why?"})).content[0].text == "It is 4."
        with pytest.raises(MCPError, match="Its server is down"):
            await client.call_tool("broken", {})

    async def again(client: Any) -> None:
        refused = await client.call_tool("dear", {"question": "Why?"})
        assert refused.is_error
        assert "the run could come to 0.8 dollars, but its budget is 0.5" in refused.content[0].text

    own = [
        *settings[:2],
        f"tools.names=[tests.serving.made:dear,{__name__}:broken,answer]",
        "budget.run_usd=0.5",
        settings[-1],
    ]
    talked(own, work)
    talked(own, again)
    assert [(line["usd"], line["refused"]) for line in lines(settings)] == [(0.4, False), (0, True)]
    paid, in_flight = bill(Path(settings[-1].partition("=")[2]))
    assert paid == {"dear": ["3602879701896397/9007199254740992", 10, 1]}
    assert in_flight == {}


def test_the_command_speaks_on_standard_output_and_ends_on_ctrl_c(settings: list[str]):
    words = [sys.executable, "-m", "orchestra_jax.serve_mcp", *settings, "tools.names=[local_search]"]
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    messages = [
        {"id": 1, "method": "initialize", "params": hello}, {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "local_search", "arguments": {"query": "oslo"}}},
    ]  # fmt: skip
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, cwd=Path(__file__).parents[1], **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for message in messages:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)  # while it waits for the next line, which never comes
        assert process.wait(120) == 0
        said = process.stderr.read()
    assert answers[0]["result"]["serverInfo"]["name"] == "orchestra_jax"
    assert answers[1]["result"]["content"][0]["text"] == "Oslo: Capital of Norway."
    assert "Serves 1 tools on standard input and output" in said
    assert said.endswith("Ended; everything is closed.\n")
    assert len(lines(settings)) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tools.search.corpus=no.jsonl"], r"no\.jsonl is not there: set tools\.search\.corpus"),
        (["tools.seach.top_k=1"], "did you mean tools.search"),
        (["tools.names=[pyhton]"], r"tools\.names=pyhton is no known tool"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match=r"^2$"):
        serve_mcp.main(words)
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert re.search(said, told.err)
