"""A judge says of answers without feedback whether they are right: within a budget, once, and the log says who did."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
from sqlalchemy import delete

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.money.run_prices import load_prices
from orchestra_jax.serving.database import PICO, VERDICTS, ServerDatabase, opened, pico
from orchestra_jax.serving.feedback import Feedback, keep, logged
from orchestra_jax.serving.judging import Judging
from orchestra_jax.serving.opened import settings_in_force
from orchestra_jax.types import Task, ToolCall, ToolResult
from tests.serving.made import ROOT, client, qa_settings, rows, scripted
from tests.tools.openai_stub import StubOpenAI

MODEL = "gpt-5-mini"
KNOWN = [f"How much is {number} + 1?" for number in range(3)]
BEFORE = [{"role": "user", "content": "Tell me of numbers."}, {"role": "assistant", "content": "Gladly."}]
STRANGE = [f"Who is number {number}?" for number in range(5)]
SAYS = {KNOWN[0]: "1", KNOWN[1]: "some two", KNOWN[2]: "eleven"}  # the first needs no judge, the second is right


def script(task: Task, results: list[ToolResult]) -> ToolCall | str:
    """Look it up, and say what is in SAYS."""
    said = SAYS.get(task.question, f"It is {task.question[-2]}.")
    return said if results else ToolCall("dear", {"question": task.question})


def verdict(body: dict[str, Any]) -> str:
    """Right is what has "two", an even number or a 3 in the candidate, or has no candidate."""
    candidate = body["messages"][1]["content"].partition("candidate answer\n| ")[2].partition("\n")[0]
    right = "two" in candidate or bool(re.search(r"[0234]\.", candidate))
    return json.dumps({"reason": "So it is.", "verdict": "correct" if right else "incorrect"})


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[ServerDatabase, StubOpenAI]]:
    """A database with kept answers, in a server's folder, and the provider of the judge."""
    (folder / "serving").mkdir(parents=True)
    async with StubOpenAI() as stub:
        stub.reply = verdict
        manager = scripted(folder, script, *qa_settings(folder), "name=tiny")
        orchestrator = await asyncio.to_thread(manager.__enter__)
        with opened(folder / "serving" / "served.db") as database:
            async with client(orchestrator, database) as http:
                for question in (*KNOWN, *STRANGE):
                    before = BEFORE if question == STRANGE[4] else []
                    body = {"model": "tiny", "messages": [*before, {"role": "user", "content": question}]}
                    found = await http.post("/v1/chat/completions", json=body)
                    assert found.status_code == 200
                    if question == STRANGE[0]:
                        await http.post("/v1/feedback", json={"id": found.json()["id"], "thumbs": "down"})
                await http.post("/v1/chat/completions", json={**body, "orchestra": {"keep": False}})
            await asyncio.to_thread(manager.__exit__, None, None, None)
            yield database, stub


def settings(stub: StubOpenAI, *more: str) -> list[str]:
    return [f"tools.judge={MODEL}", f"tools.server.url={stub.url}", "pricing.name=paper", *more]


def judging(database: ServerDatabase, folder: Path, stub: StubOpenAI, usd: float) -> Judging:
    return Judging(database, settings_in_force(folder, settings(stub)), usd)


def billed(stub: StubOpenAI) -> int:
    prices = load_prices("pricing.name", "paper")
    return sum(
        pico(prices.cost(one.model, prompt_tokens=one.prompt, completion_tokens=one.completion)) for one in stub.bills
    )


async def test_a_judge_speaks_where_no_user_did_and_the_log_says_who(tmp_path: Path):
    async with served(tmp_path) as (database, stub):
        said = await judging(database, tmp_path, stub, 1.0).run()
        assert said.startswith("5 answers are right, 2 wrong; $")
        found = {line["question"]: (line.get("answer"), line["score"], line["judged_by"]) for line in logged(database)}
        assert found == {
            KNOWN[0]: ("1", 1, "match"), KNOWN[1]: ("some two", 1, MODEL), KNOWN[2]: (None, 0, MODEL),
            STRANGE[0]: (None, 0.0, "user"), STRANGE[1]: (None, 0, MODEL), STRANGE[2]: ("It is 2.", 1, MODEL),
            STRANGE[3]: ("It is 3.", 1, MODEL), STRANGE[4]: ("It is 4.", 1, MODEL),
        }  # fmt: skip
        prompts = {re.search(r"question\n\| (.*)", body["messages"][1]["content"])[1]: body for body in stub.bodies}
        assert "reference answer\n| 3" in prompts[KNOWN[2]]["messages"][1]["content"]
        assert "evidence\n| dear: It is 16." in prompts[STRANGE[1]]["messages"][1]["content"]
        (spoken,) = (body["messages"][1]["content"] for body in stub.bodies if "Gladly" in str(body))
        assert f"question\n| user: Tell me of numbers.\n| assistant: Gladly.\n| user: {STRANGE[4]}\n" in spoken
        assert {line["question"]: line["before"] for line in logged(database) if line["before"]} == {STRANGE[4]: BEFORE}
        paid = [row for row in rows(database, "calls") if row["request"].startswith("judge-")]
        (account,) = (row for row in rows(database, "accounts") if row["name"] == "judges")
        assert len(paid) == len(stub.bills) == account["calls"] == 6
        assert sum(row["usd"] for row in paid) == account["usd"] == billed(stub) > 0
        assert (await judging(database, tmp_path, stub, 1.0).run()).startswith("0 answers are right, 0 wrong; $0.0000")
        assert len(stub.bills) == 6
        name = next(row["id"] for row in rows(database, "requests") if STRANGE[1] in (row["kept"] or ""))
        await keep(database, Feedback(name, correct="Nobody"), None)  # the user's word comes later, and counts
        (line,) = (line for line in logged(database) if line["id"] == name)
        assert (line["answer"], line["judged_by"]) == ("Nobody", "user")


async def test_a_used_up_budget_keeps_what_was_judged_and_holds_over_starts(tmp_path: Path):
    async with served(tmp_path) as (database, stub):
        await judging(database, tmp_path, stub, 1.0).run()
        dearest = max(row["worst_usd"] for row in rows(database, "calls") if row["request"].startswith("judge-"))
        whole = billed(stub)
        forget_verdicts(database)
        limit = (whole + dearest + 2.5 * whole / 6) / PICO
        with pytest.raises(BudgetExceeded, match=r"answers are right, .*raise it to go on"):
            await judging(database, tmp_path, stub, limit).run()
        assert 0 < len(rows(database, "verdicts")) < 7
        assert billed(stub) <= pico(limit)
        await judging(database, tmp_path, stub, 1.0).run()
        assert (len(stub.bills), len(rows(database, "verdicts"))) == (12, 7)
        stub.reply = lambda body: "I cannot say."
        forget_verdicts(database)
        assert "6 have no verdict" in await judging(database, tmp_path, stub, 1.0).run()
    with opened(tmp_path / "other.db") as database, pytest.raises(ConfigError, match="asks nobody"):
        Judging(database, settings_in_force(tmp_path, []), 1.0)
    with opened(tmp_path / "other.db") as database, pytest.raises(ConfigError, match="--max-usd"):
        Judging(database, settings_in_force(tmp_path, []), -1.0)


async def test_a_database_that_fails_meanwhile_is_one_sentence(tmp_path: Path):
    async with served(tmp_path) as (database, stub):
        work = judging(database, tmp_path, stub, 1.0)
        stub.on_bill = lambda bill: database.close()
        with pytest.raises(OSError, match="is closed"):
            await work.run()


def forget_verdicts(database: ServerDatabase) -> None:
    database.do(lambda connection: connection.execute(delete(VERDICTS)).rowcount).result()


async def test_a_killed_command_pays_for_no_verdict_twice(tmp_path: Path):
    async with served(tmp_path) as (database, stub):
        words = ["served", str(tmp_path), "judge", "--max-usd", "1", *settings(stub, "tools.server.concurrency=1")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        stub.on_bill = lambda bill: stub.gate.clear() if len(stub.bills) == 4 else None  # its reply never comes
        command = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "orchestra_jax", *words, cwd=ROOT, env=environment, stderr=subprocess.PIPE
        )
        while len(stub.bills) < 4:
            assert command.returncode is None, (await command.communicate())[1]
            await asyncio.sleep(0.05)
        while len(rows(database, "verdicts")) < 3:  # noqa: ASYNC110  the database has no event for it
            await asyncio.sleep(0.05)
        command.send_signal(signal.SIGKILL)
        await command.wait()
        stub.gate.set()
        judged = {row["request"] for row in rows(database, "verdicts")}
        said = await judging(database, tmp_path, stub, 1.0).run()
        assert len(judged) >= 3
        assert len(stub.bills) == 7  # the one whose reply was lost is asked again, and no other
        paid = [row for row in rows(database, "calls") if row["request"].startswith("judge-")]
        lost = [row for row in paid if row["usd"] is None]
        (account,) = (row for row in rows(database, "accounts") if row["name"] == "judges")
        assert len(lost) == 1
        assert account["usd"] == sum(row["usd"] or row["worst_usd"] for row in paid)
        assert "wrong; $" in said
        assert len(rows(database, "verdicts")) == 7
