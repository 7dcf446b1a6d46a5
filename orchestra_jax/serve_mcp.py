"""Offers the configured tools as an MCP server: search, Python sandbox, experts, and what else `tools.*` names.

python -m orchestra_jax.serve_mcp tools=offline tools.search.corpus=wiki.jsonl             on standard input and output
python -m orchestra_jax.serve_mcp tools=paper_eval budget.run_usd=5 --http 8200            at http://127.0.0.1:8200/mcp

Every call is a line of calls.jsonl in outputs/serve_mcp (name=, output_dir=), and what is paid stands in spent.jsonl
there, which budget.run_* limit across starts; budget.trajectory_* limit one call. See docs/mcp.md.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra_jax import __version__
from orchestra_jax.config.compose import compose
from orchestra_jax.config.exit_status import INTERRUPTED, USAGE_ERROR
from orchestra_jax.config.missing import missing_inputs
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.config.tools import EvaluationOffer, MenuRule
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.run_budget import RunBudget, limits
from orchestra_jax.processes.lock import alone_in
from orchestra_jax.tools.answer_tool import ANSWER_TOOL
from orchestra_jax.tools.build import RunTools, make_tools, tool_problems
from orchestra_jax.tools.mcp.servers import lacking
from orchestra_jax.tools.schema import to_openai
from orchestra_jax.types import InfrastructureError, Preference, ReplayMiss, Task, ToolCall, ToolResult

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

HOST = "127.0.0.1"
CALLS = "calls.jsonl"


class OfferedTools:
    """The tools, called one by one: each call has a budget of its own within that of the server.

    Attributes:
        tools: what there is to call, as the OpenAI API lists functions; the descriptions tell prices.
    """

    def __init__(self, tools: RunTools, cfg: WorldConfig, budget: Budget, folder: Path) -> None:
        self._catalogue, self._cfg, self._budget, self._file = tools.catalogue, cfg, budget, folder / CALLS
        self._instance = tools.catalogue.instance(0)
        nothing = Preference("accuracy", "")
        self._task = Task("serve_mcp", "", ("",), self._instance.tools, nothing)
        self.tools = [to_openai(spec)["function"] for spec in self._instance.tools]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Execute one call; its line is in the file when this returns.

        Raises:
            InfrastructureError: it failed through no fault of the caller; what its tries cost stands in spent.jsonl.
        """
        budget = Budget(limits(self._cfg.budget, "trajectory"), name="trajectory", parent=self._budget)
        executor = self._catalogue.executor(self._instance.record, self._task, budget)
        try:
            result = await executor.step(ToolCall(name, dict(arguments)))
        except BudgetExceeded as error:
            result = ToolResult(str(error), is_error=True, refused=True)
        except ReplayMiss as error:
            raise InfrastructureError(str(error)) from error
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "tool": name,
            "arguments": dict(arguments),
            "error": result.is_error,
            "refused": result.refused,
            "usd": sum(row.cost_usd for row in result.usage),
            "seconds": sum(row.seconds for row in result.usage),
            "rows": [asdict(row) for row in result.usage],
        }
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return result


def served(cfg: WorldConfig) -> WorldConfig:
    """Return the settings with one fixed menu of all that can be called by itself.

    Nobody poses a task here, so nothing is drawn, judged or answered, and experts that are simulated know nothing. Each
    call stands alone, so that there is no earlier result to hand over.
    """
    names = [name for name in cfg.tools.names if name != ANSWER_TOOL.name]
    alone = {"evaluation": EvaluationOffer(), "menu": MenuRule(), "simulated": {}, "judge": "match", "relay": False}
    return replace(cfg, tools=replace(cfg.tools, names=names, **alone))  # type: ignore[arg-type]


def problems(cfg: WorldConfig) -> list[str]:
    """Return a sentence, with the fix, for everything that the tools lack; start nothing."""
    found = [each for each in missing_inputs(cfg) if each.startswith(("tools.", "replay."))]
    return list(filter(None, [lacking()])) or found or tool_problems(cfg)


def server_of(offer: OfferedTools) -> "Server":
    """Return the MCP server; a failure that is not the caller's is an error of the protocol, all else an answer."""
    from mcp import MCPError, types
    from mcp.server.lowlevel import Server

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=tool["name"], description=tool["description"], input_schema=tool["parameters"])
                for tool in offer.tools
            ]
        )

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            result = await offer.call(params.name, params.arguments or {})
        except InfrastructureError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from error
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=result.text)], is_error=result.is_error
        )

    return Server("orchestra_jax", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


async def serve(server: "Server", port: int | None, stop: asyncio.Event, ready: Callable[[str], None]) -> bool:
    """Serve until `stop`, or until standard input ends.

    Args:
        port: of HTTP on 127.0.0.1, 0 for a free one; None: standard input and output.
        ready: is told where it serves.

    Returns: whether a thread still waits for standard input, which nothing can end.

    Raises:
        OSError: the port is taken.
    """
    if port is not None:
        await _serve_http(server, port, stop, ready)
        return False
    from mcp.server.stdio import stdio_server

    async def speak() -> None:
        async with stdio_server() as (reader, writer):
            ready("on standard input and output")
            await server.run(reader, writer, server.create_initialization_options())

    speaking, stopped = asyncio.create_task(speak()), asyncio.create_task(stop.wait())
    await asyncio.wait([speaking, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if speaking.done():
        speaking.result()
    return not speaking.done()


async def _serve_http(server: "Server", port: int, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
    import uvicorn

    from orchestra_jax.io.http_server import HttpServer

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        app = server.streamable_http_app(host=HOST)
        http = HttpServer(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3))
        serving = asyncio.create_task(http.serve(sockets=[listening]))
        stopped = asyncio.create_task(stop.wait())
        ready(f"at http://{HOST}:{listening.getsockname()[1]}/mcp")
        await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        http.should_exit = True
        await serving


def run(cfg: WorldConfig, port: int | None) -> bool:
    """Open the tools, serve them, and close them; return what `serve` does.

    Raises:
        ConfigError: one sentence for what cannot be used.
    """
    folder = Path(cfg.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for the protocol
            tools, money = make_tools(cfg), RunBudget(cfg.budget, folder)
        offer = OfferedTools(tools, cfg, money.run, folder)

        def tell(where: str) -> None:
            said = f"Serves {len(offer.tools)} tools {where}; calls in {folder / CALLS}. Ctrl-C ends it."
            print(said, file=sys.stderr, flush=True)

        async def main() -> bool:
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop.set)
            try:
                return await serve(server_of(offer), port, stop, tell)
            except OSError as error:
                raise ConfigError(f"Nothing can be served at port {port} of {HOST}: {error.strerror}.") from error
            finally:
                await tools.close()
                money.close()

        # Not asyncio.run, which would wait for what waits for standard input.
        loop = asyncio.new_event_loop()
        return loop.run_until_complete(main())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        SystemExit: with status 2 and one sentence per problem where the tools cannot be served.
    """
    parser = argparse.ArgumentParser(
        prog="orchestra_jax.serve_mcp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of docs/keys.md; tools=offline")
    parser.add_argument("--http", type=int, metavar="PORT", help=f"serve streamable HTTP on {HOST}; 0: a free port")
    options = parser.parse_args(arguments)
    defaults = [each for each in ("tools=offline", "name=serve_mcp", "env=qa") if not _given(each, options.overrides)]
    try:
        cfg = served(compose(*defaults, *options.overrides))
        if found := problems(cfg):
            raise ConfigError("\n".join(found))
        left = run(cfg, options.http)
    except ConfigError as error:
        parser.exit(USAGE_ERROR, f"{error}\n")
    except KeyboardInterrupt:  # before it served
        parser.exit(INTERRUPTED)
    print("Ended; everything is closed.", file=sys.stderr, flush=True)
    if left:
        os._exit(0)


def _given(setting: str, overrides: Sequence[str]) -> bool:
    key = setting.partition("=")[0]
    return any(each.startswith(f"{key}=") for each in overrides)


if __name__ == "__main__":
    main()
