"""Overhead of the server: a question that asks one expert, through `orchestra-jax serve` and through a bare proxy.

    .venv/bin/python benchmarks/serve.py
    .venv/bin/python benchmarks/serve.py --requests 4000 --clients 64 --json out.json

The expert is a stub on 127.0.0.1 that answers after --delay seconds. The proxy is aiohttp and passes each request on;
the server plays an episode of env=qa whose policy is a script: it asks the expert and says what that said, and every
request and its price are in a database. Both get the same requests in rounds that take turns. The
overhead is what a request took beyond the delay; with many clients it has the wait for this machine's cores in it.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
from aiohttp import web
from rich.console import Console
from rich.table import Table
from short import keep, parse

from orchestra_jax.config.served_path import FILE
from orchestra_jax.envs.base import Baseline
from orchestra_jax.io.http_server import HttpServer
from orchestra_jax.serving.database import opened
from orchestra_jax.serving.opened import open_policy
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.serving.server import ChatServer, ServerLimits
from orchestra_jax.types import Task, ToolCall, ToolResult

MODEL = "gpt-5-mini"


def ask(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    """Ask the expert once, and say what it said."""
    if results:
        return results[-1].text
    spec = task.tools[0]
    return ToolCall(spec.name, dict.fromkeys(spec.parameters.get("required", ()), task.question))


class InThread:
    """Runs an application on a free port, in a thread and an event loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def aiohttp(self, handler: Any) -> str:
        """Serve a handler with aiohttp; return the address."""

        async def start() -> str:
            app = web.Application()
            app.router.add_post("/v1/chat/completions", handler)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
            return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

        return asyncio.run_coroutine_threadsafe(start(), self.loop).result()

    def uvicorn(self, app: Any) -> str:
        """Serve an ASGI application as `orchestra-jax serve` does; return the address."""
        server = HttpServer(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
        asyncio.run_coroutine_threadsafe(server.serve(), self.loop)
        while not server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"


def expert(delay_s: float) -> Any:
    """A handler that answers any question after a delay."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(delay_s)
        choice = {"index": 0, "message": {"role": "assistant", "content": "It is so."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 20, "completion_tokens": 4, "total_tokens": 24}
        return web.json_response({"id": "x", "object": "chat.completion", "created": 0, "model": MODEL,
                                  "choices": [choice], "usage": usage})  # fmt: skip

    return answer


def proxy(address: str) -> Any:
    """A handler that passes each request on."""
    sessions: list[aiohttp.ClientSession] = []

    async def forward(request: web.Request) -> web.Response:
        if not sessions:
            sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        body = await request.read()
        async with sessions[0].post(f"{address}/chat/completions", data=body, headers=request.headers) as found:
            return web.Response(body=await found.read(), content_type="application/json")

    return forward


async def round_of(address: str, clients: int, requests: int) -> tuple[list[float], float]:
    """Return the seconds of each request, and of all of them."""
    seconds, numbers = list[float](), iter(range(requests))

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = {"model": "bench", "messages": [{"role": "user", "content": f"Question {number} of many?"}]}
            start = time.perf_counter()
            async with session.post(f"{address}/chat/completions", json=body) as found:
                told = await found.json()
            seconds.append(time.perf_counter() - start)
            assert told["choices"][0]["message"]["content"] == "It is so.", told

    start = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return seconds, time.perf_counter() - start


def measured(address: dict[str, str], clients: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row of figures for each way, the rounds of both taken in turn."""
    rounds: dict[str, list[tuple[list[float], float]]] = {name: [] for name in address}
    for _ in range(options.rounds):
        for name, where in address.items():
            rounds[name].append(asyncio.run(round_of(where, clients, options.requests // options.rounds)))
    rows = []
    for name, found in rounds.items():
        over = [1e3 * (one - options.delay) for seconds, _ in found for one in seconds]
        cuts = statistics.quantiles(over, n=20)
        rate = sum(len(seconds) for seconds, _ in found) / sum(whole for _, whole in found)
        rows.append({"way": name, "clients": clients, "p50_ms": cuts[9], "p95_ms": cuts[18], "per_s": rate})
    return rows


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="of each way and number of clients")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64], help="clients at once")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that take turns")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds that the expert takes")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parse(parser, "--requests", "20", "--clients", "2", "--rounds", "1")
    threads = InThread(), InThread(), InThread()
    with tempfile.TemporaryDirectory() as scratch:
        stub = threads[0].aiohttp(expert(options.delay))
        questions = Path(scratch, "questions.jsonl")
        questions.write_text("".join(json.dumps({"question": f"{n}?", "answer": str(n)}) + "\n" for n in range(4)))
        settings = [
            "env=qa", "tools=offline", "tools.names=[]", f"+tools.experts.generalist=[{MODEL}]", "pricing.name=paper",
            f"tools.server.url={stub}", "data=jsonl", f"data.path={questions}", "name=bench",
            f"output_dir={scratch}/run", "tools.server.concurrency=256",
        ]  # fmt: skip
        policy = open_policy("baseline:do_nothing", settings)
        with contextlib.ExitStack() as parts:
            orchestrator = parts.enter_context(Orchestrator(replace(policy, engine=Baseline("script", ask))))
            database = parts.enter_context(opened(orchestrator.folder / FILE))
            ours = threads[2].uvicorn(ChatServer(orchestrator, database, ServerLimits(under_way=4096)).app())
            address = {"bare proxy": threads[1].aiohttp(proxy(stub)), "orchestra-jax serve": ours}
            rows = [row for clients in options.clients for row in measured(address, clients, options)]
    table = Table("way", "clients", "overhead p50", "p95", "requests a second")
    for row in rows:
        table.add_row(row["way"], str(row["clients"]), f"{row['p50_ms']:.1f} ms", f"{row['p95_ms']:.1f} ms",
                      f"{row['per_s']:.0f}")  # fmt: skip
    Console().print(table)
    keep(options.json, rows)


if __name__ == "__main__":
    main()
