"""Policies to serve: random weights in a run's folder, scripts in the worlds of the tests, and servers of them."""

import asyncio
import contextlib
import json
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.record import RunRecord
from orchestra_jax.envs.base import Baseline, Script
from orchestra_jax.envs.quickstart.demonstrations import reference_call
from orchestra_jax.io.shipped import EXPERIMENTS
from orchestra_jax.models import checkpoint
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.reservations import acquire
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.serving.opened import open_policy
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.tools.base import tool
from orchestra_jax.training.build import make_policy
from orchestra_jax.types import InfrastructureError, Task, ToolCall, ToolResult, Usage

if TYPE_CHECKING:  # test_orchestrator.py needs no server
    import httpx

    from orchestra_jax.serving.server import ChatServer

ROOT = Path(__file__).resolve().parents[2]
MICRO = (
    "model.family=tests.training.micro:OneLayer", "rollout.slots=8", "rollout.threads=1", "rollout.widths=[64]",
    "rollout.limits.max_new_tokens=8", "logger.names=[jsonl]",
)  # fmt: skip


def random_run(folder: Path, *settings: str) -> Path:
    """A run's folder with a policy of random weights; settings win over those of MICRO."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {word.partition("=")[0] for word in settings}
    micro = [word for word in MICRO if word.partition("=")[0] not in given]
    cfg = compose(f"output_dir={folder}", *micro, *settings)
    chat = make_chat(cfg)
    with RunRecord(folder, cfg, "train") as record:
        record.begin()
    with jax.default_device(jax.devices("cpu")[0]):
        model, params = make_policy(cfg, chat)
    checkpoint.save(folder / "policy", model, params, tokenizer=chat.tokenizer)
    return folder


@contextlib.contextmanager
def scripted(folder: Path, script: Script, *settings: str) -> Iterator[Orchestrator]:
    """An orchestrator whose policy is a script."""
    opened = open_policy("baseline:do_nothing", [f"output_dir={folder}", *settings], alone=False)
    with Orchestrator(replace(opened, engine=Baseline("script", script))) as orchestrator:
        yield orchestrator


def client(orchestrator: Orchestrator, database: Any, **limits: Any) -> "httpx.AsyncClient":
    """A client of a server in this process, with fields of `ServerLimits`."""
    import httpx

    from orchestra_jax.serving.server import ChatServer, ServerLimits

    app = ChatServer(orchestrator, database, ServerLimits(**limits)).app()
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


@contextlib.contextmanager
def over_http(server: "ChatServer") -> Iterator[str]:
    """The address of a server on a port of this machine, in a thread."""
    import uvicorn

    from orchestra_jax.io.http_server import HttpServer

    http = HttpServer(uvicorn.Config(server.app(), port=0, log_level="critical", lifespan="off", server_header=False))
    thread = threading.Thread(target=asyncio.run, args=(http.serve(),))
    thread.start()
    try:
        while not http.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}"
    finally:
        http.should_exit = True
        thread.join(60)


def status(name: str, *words: str) -> int:
    """The status of a command in this process."""
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXPERIMENTS / f"{name}.py"))["main"](list(words))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def command(*words: str, **changed: str) -> str:
    """What a command says that succeeds, in a process of its own with changed variables."""
    done = subprocess.run(
        [sys.executable, "-m", "orchestra_jax", *words], cwd=ROOT, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **changed},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def rows(database: Any, table: str) -> list[dict[str, Any]]:
    """The rows of a table of a server's database, in the order they were made."""
    from sqlalchemy import text

    return database.do(lambda connection: [
        dict(row._mapping) for row in connection.execute(text(f"SELECT * FROM {table}"))
    ]).result()  # fmt: skip


CALLED = {
    "role": "assistant", "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"query": "7"}'}}],
}  # fmt: skip


@tool(price_usd=0.4)
async def dear(question: str, budget: Budget) -> ToolResult:
    """Answers at a price."""
    row = Usage("dear", prompt_tokens=10, cost_usd=0.4)
    (await acquire(budget, row)).settle(row)
    return ToolResult(f"It is {len(question)}.", (row,))


@tool
async def unhurried(question: str) -> ToolResult:
    """Takes its time."""
    await asyncio.sleep(1.0)
    return ToolResult("done")


@tool
async def broken(question: str) -> str:
    """Is not there."""
    raise InfrastructureError("Its server is down.")


def calling(*names: str) -> Script:
    """A script that calls tools one after the other."""

    def script(task: Task, results: list[ToolResult]) -> ToolCall | str:
        todo = names[len(results) :]
        return ToolCall(todo[0], {"question": task.question}) if todo else results[-1].text

    return script


def ask_dear(task: Task, results: list[ToolResult]) -> ToolCall | str:
    """Call the dear tool once, and say what it said."""
    return results[-1].text if results else ToolCall("dear", {"question": task.question})


def qa_settings(folder: Path, tools: str = "dear") -> list[str]:
    """The settings of a world of questions with tools of this file, and of others as MODULE:NAME."""
    file = folder / "questions.jsonl"
    rows = [{"id": f"q{n}", "question": f"How much is {n} + 1?", "answer": str(n + 1)} for n in range(8)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = ",".join(name if ":" in name else f"tests.serving.made:{name}" for name in tools.split(","))
    return [
        "env=qa", "tools=offline", f"tools.names=[{names}]", "data=jsonl", f"data.path={file}",
        "data.eval_questions=2", "model.tokenizer=null",
    ]  # fmt: skip


def python(task: Task, results: list[ToolResult]) -> ToolCall | str:
    """Compute, and say what came out."""
    return results[-1].text if results else reference_call(task, "python")
