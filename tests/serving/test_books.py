"""Many clients of one server against the books of the provider behind it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
from orchestra_jax.serving.database import PICO, ServerDatabase
from orchestra_jax.types import Task, ToolCall, ToolResult
from tests.serving.made import client, qa_settings, rows, scripted
from tests.tools.openai_stub import StubOpenAI, status

CLIENTS, EACH, GONE = 64, 3, 5  # clients, questions of each, and every how many of them goes away early


def ask_expert(task: Task, results: list[ToolResult]) -> ToolCall | str:
    """Ask the one expert, and say what it said."""
    if results:
        return results[-1].text
    spec = task.tools[0]
    arguments = dict.fromkeys(spec.parameters.get("required", ()), task.question)
    return ToolCall(spec.name, arguments)


async def test_the_bill_of_64_clients_is_that_of_the_provider(tmp_path: Path, stub: StubOpenAI):
    stub.reply = lambda body: "It is so."
    stub.chaos = lambda number: {3: status(500), 7: status(429, "0.01")}.get(number % 11)
    settings = [
        *qa_settings(tmp_path), "tools.names=[]", "+tools.experts.generalist=[gpt-5-mini]",
        f"tools.server.url={stub.url}", "pricing.name=paper", "tools.server.retries=8", "name=books",
    ]  # fmt: skip
    manager = scripted(tmp_path, ask_expert, *settings)
    orchestrator = await asyncio.to_thread(manager.__enter__)
    database = ServerDatabase(orchestrator.folder / "served.db")
    async with client(orchestrator, database) as http:

        async def one(number_of_client: int) -> list[dict[str, Any] | None]:
            found = list[dict[str, Any] | None]()
            for number in range(EACH):
                question = f"Question {number} of client {number_of_client}?"
                body = {"model": "books", "messages": [{"role": "user", "content": question}]}
                asking = http.post("/v1/chat/completions", json=body)
                if (number_of_client + number) % GONE == 0:
                    task = asyncio.ensure_future(asking)
                    await asyncio.sleep(0.002 * (number_of_client % 7))
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    found.append(None)
                else:
                    found.append((await asking).json())
            return found

        answers = [each for some in await asyncio.gather(*map(one, range(CLIENTS))) for each in some]
    await asyncio.to_thread(manager.__exit__, None, None, None)
    whole = [answer for answer in answers if answer is not None]
    told, called = rows(database, "requests"), rows(database, "calls")
    (account,) = rows(database, "accounts")
    database.close()
    assert len(whole) > 0.7 * CLIENTS * EACH
    assert [answer["choices"][0]["message"]["content"] for answer in whole] == ["It is so."] * len(whole)
    assert len({row["id"] for row in told}) == len(told)
    assert {answer["id"] for answer in whole} <= {row["id"] for row in told if row["ended"] is not None}
    assert all(row["usd"] is not None for row in called)
    assert (account["usd"], account["tokens"], account["calls"]) == (
        sum(row["usd"] for row in called), sum(row["tokens"] for row in called), len(called),
    )  # fmt: skip
    # What a client that went away had asked is paid at what it cost, or at its worst case where nobody heard.
    assert len(called) == len(stub.bills)
    assert account["tokens"] == sum(one.prompt + one.completion for one in stub.bills)
    paid = {row["id"]: sum(call["usd"] for call in called if call["request"] == row["id"]) for row in told}
    assert all(paid[answer["id"]] == round(answer["usage"]["cost_usd"] * PICO) for answer in whole)
