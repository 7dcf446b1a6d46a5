"""Keys are in the requests' headers and nowhere else: not in logs, errors, records, ledgers or what objects print."""

import asyncio
import logging
import traceback
from dataclasses import replace

import pytest

from orchestra_jax.config.roles import Role
from orchestra_jax.money import records
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.tools.experts.judge import Judge
from orchestra_jax.tools.experts.roles import UserSimulator, expert_tool
from orchestra_jax.tools.search.web import TavilySearch
from tests.tools import openai_stub
from tests.tools.openai_stub import PRICES, StubOpenAI, status
from tests.tools.search import test_web as test_web_search

CANARY = "sk-canary-5d41402abc4b2a76b9719d911017c592"
QUESTION = [{"role": "user", "content": "How far is the moon?"}]


@pytest.fixture
def everything_logged(caplog):
    """All loggers, also those that were told to be quiet, at DEBUG."""
    caplog.set_level(logging.DEBUG)
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    yield caplog
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def all_text(error: BaseException) -> str:
    """What anything could print of an error: chained ones and the variables of every frame included."""
    text = [str(error), repr(error), repr(error.args), repr(vars(error))]
    text += traceback.TracebackException.from_exception(error, capture_locals=True).format()
    text += [all_text(other) for other in (error.__context__, error.__cause__) if other is not None]
    return "\n".join(text)


async def test_the_canary_is_nowhere(monkeypatch, tmp_path, everything_logged):
    monkeypatch.setenv("EXPERT_KEY", CANARY)
    monkeypatch.setenv("TAVILY_API_KEY", CANARY)
    record = Replay(tmp_path / "calls.db", "replay_or_record")
    shown: list[object] = []
    errors: list[BaseException] = []

    async def tried(call) -> None:
        try:
            shown.append(await call)
        except Exception as error:  # whatever comes out is looked at
            errors.append(error)

    async with StubOpenAI() as stub, test_web_search.StubWeb() as web:
        budget = Budget()
        expert = Expert("small", "small", stub.url, "EXPERT_KEY", max_tokens=50, retries=1)
        client = ExpertClient(expert, PRICES, replay=record, backoff_s=0.001)
        tavily = TavilySearch(test_web_search.PRICES, url=web.url, replay=record, retries=1, backoff_s=0.001)
        verdict, others = '{"verdict": "correct"}', "```python\n1\n```\n<answer>correct</answer>"
        stub.reply = lambda body: verdict if "verdict" in str(body) else others
        roles = [
            expert_tool(Role.query_writer, client, tavily.search),
            expert_tool(Role.code_writer, client),
            expert_tool(Role.math, client),
            expert_tool(Role.generalist, client),
        ]
        for spec, handle in roles:
            await tried(handle(dict.fromkeys(spec.parameters["properties"], "Why?"), budget))
        await tried(Judge(client).judge("q", "a", ["b"], budget=budget))
        await tried(UserSimulator(client, "You are Ann.").reply([], budget=budget))
        faults = [
            [openai_stub.RESET_AFTER], [openai_stub.TRUNCATED], [openai_stub.NO_USAGE], [status(429, "0")],
            [status(500)] * 2, [openai_stub.RESET_BEFORE] * 2, [status(404, message=f"no model for {CANARY}")],
        ]  # fmt: skip
        for sample, several in enumerate(faults):
            stub.faults.extend(several)
            await tried(client.chat(QUESTION, sample=sample, budget=budget))
        stub.accepted = {"another"}  # and repeats the key in its refusal
        await tried(client.chat(QUESTION, sample=100, budget=budget))
        stub.accepted = set()
        await tried(tavily.search({"query": "x"}, budget))  # its stub knows another key, and repeats ours
        await tried(tavily.extract({"url": "x"}, budget))
        gone = ExpertClient(replace(expert, base_url="http://127.0.0.1:9/v1"), PRICES, backoff_s=0.001)
        await tried(gone.chat(QUESTION, budget=budget))
        slow = ExpertClient(replace(expert, timeout_s=0.05), PRICES, replay=record)
        stub.gate.clear()
        await tried(slow.chat(QUESTION, sample=101, budget=budget))
        left = asyncio.create_task(client.chat(QUESTION, sample=102, budget=budget))
        await asyncio.sleep(0.05)
        left.cancel()
        await asyncio.wait([left])
        stub.gate.set()
        shown += [expert, client, slow, tavily, roles, budget.get_state(), budget.by_name(), *map(str, errors)]
        for one in (client, slow, gone, tavily):
            await one.close()
    written = {f"open {path.name}": path.read_bytes().decode("latin-1") for path in tmp_path.iterdir()}
    record.close()
    records.export(tmp_path / "calls.db", tmp_path / "calls.jsonl")

    assert CANARY in stub.keys  # it was used
    assert len(errors) == 9
    logged = "\n".join(f"{r.getMessage()} {r.args!r} {r.exc_text}" for r in everything_logged.records)
    assert "openai" in {record.name.partition(".")[0] for record in everything_logged.records}  # they do log
    texts = {"logs": logged + everything_logged.text, "objects": repr(shown), **written}
    texts |= {path.name: path.read_bytes().decode("latin-1") for path in tmp_path.iterdir()}
    texts |= {f"error {number}": all_text(error) for number, error in enumerate(errors)}
    assert {name for name, text in texts.items() if CANARY in text} == set()
    assert {"open calls.db-wal", "calls.db", "calls.jsonl"} <= set(texts)
