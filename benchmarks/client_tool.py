"""A client that brings a tool of its own to a served quickstart policy, and makes the calls that the policy asks for.

    python experiments/serve.py outputs/quickstart 'tools.names=[calculator,local_search,expert_large]'
    python benchmarks/client_tool.py http://127.0.0.1:8100/v1 --tool web_search

The run's own menu lacks the tool here; the policy knows its word from training. Without an address a script that calls
it is served here. docs/serve.md has figures.
"""

import argparse
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import openai
from serve import InThread
from short import parse

from orchestra_jax.config.served_path import FILE
from orchestra_jax.envs.base import Baseline
from orchestra_jax.envs.quickstart.facts import CATALOGUE
from orchestra_jax.envs.quickstart.world import QuickstartWorld
from orchestra_jax.serving.database import opened
from orchestra_jax.serving.opened import open_policy
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.serving.server import ChatServer, ServerLimits
from orchestra_jax.types import Task, ToolCall, ToolResult

FAMILIES = {"web_search": "lookup", "python": "arith"}  # questions that a tool answers


def made(world: QuickstartWorld, task: Task) -> str:
    """Return what the client's tool says: a sentence of the corpus, or the value."""
    if task.family == "arith":
        return task.answer[0]
    person = task.extra["steps"][0][1].rpartition(" ")[0]
    return next(line for line in world.web_corpus if person in line and task.answer[0] in line)


def ask(address: str, name: str, questions: int) -> Counter[str]:
    """Ask questions of the held-out split; count the calls of the tool, and the right answers with and without one."""
    api, world = openai.OpenAI(base_url=address, api_key="none", max_retries=0), QuickstartWorld()
    spec, found = CATALOGUE[name], Counter[str]()
    function = {"name": name, "description": spec.description, "parameters": dict(spec.parameters)}
    tools = [{"type": "function", "function": function}]
    asked: dict[str, Any] = {"model": api.models.list().data[0].id, "tools": tools}
    tasks = (world.task("eval", number) for number in count(2_000_000))
    for task in (task for task in tasks if task.family == FAMILIES[name]):
        messages: list[Any] = [{"role": "user", "content": task.question}]
        choice = api.chat.completions.create(**asked, messages=messages).choices[0]
        called = choice.finish_reason == "tool_calls"
        if called:
            (call,) = choice.message.tool_calls or ()
            result = {"role": "tool", "tool_call_id": call.id, "content": made(world, task)}
            messages += [choice.message.model_dump(exclude_none=True), result]
            choice = api.chat.completions.create(**asked, messages=messages).choices[0]
        found["called"] += called
        found["called and right" if called else "right without"] += choice.message.content in task.answer
        found["asked"] += 1
        if found["asked"] == questions:
            return found
    raise AssertionError("there are more questions")


def main() -> None:
    """Ask, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="of the server, with /v1; without one a script is served here")
    parser.add_argument("--tool", choices=FAMILIES, default="web_search")
    parser.add_argument("--questions", type=int, default=20)
    options = parse(parser, "--questions", "2")

    def script(task: Task, results: list[ToolResult]) -> ToolCall | str:
        return ToolCall(options.tool, dict.fromkeys(CATALOGUE[options.tool].parameters["properties"], task.question))

    with ExitStack() as parts:
        address = options.address
        if address is None:
            scratch = Path(parts.enter_context(tempfile.TemporaryDirectory()))
            names = "tools.names=[calculator,local_search,expert_large]"
            policy = open_policy("baseline:do_nothing", ["name=client", f"output_dir={scratch}", names])
            orchestrator = parts.enter_context(Orchestrator(replace(policy, engine=Baseline("script", script))))
            database = parts.enter_context(opened(orchestrator.folder / FILE))
            address = InThread().uvicorn(ChatServer(orchestrator, database, ServerLimits()).app())
        found = ask(address, options.tool, options.questions)
    print(
        f"{found['asked']} questions: {options.tool} called for {found['called']}, {found['called and right']} of "
        f"these right; {found['right without']} right without it"
    )


if __name__ == "__main__":
    main()
