"""kill -9 at random moments: the books of the server are those of the provider, within the rule of calls under way."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import httpx

from orchestra_jax.money.run_prices import load_prices
from orchestra_jax.serving.database import opened, pico
from tests.processes.running import free_port
from tests.serving.made import ROOT, qa_settings, rows
from tests.tools.openai_stub import StubOpenAI, status

LIVES, CLIENTS = 11, 8  # the last ends by SIGTERM


async def asking(address: str, client: int, answered: dict[str, float]) -> None:
    """Ask again and again; note the cost of each whole answer by its id."""
    number = 0
    async with httpx.AsyncClient(base_url=address, timeout=60) as http:
        while True:
            number += 1
            body = {"model": "lives", "messages": [{"role": "user", "content": f"Question {number} of {client}?"}]}
            try:
                found = await http.post("/v1/chat/completions", json=body)
            except httpx.HTTPError:  # nobody is there, or no more
                await asyncio.sleep(0.02)
                continue
            if found.status_code == 200:
                answered[found.json()["id"]] = found.json()["usage"]["cost_usd"]


async def healthy(address: str) -> None:
    async with httpx.AsyncClient(base_url=address) as http:
        while True:
            try:
                assert (await http.get("/health")).status_code == 200
            except httpx.HTTPError:
                await asyncio.sleep(0.02)
            else:
                return


async def reached(stub: StubOpenAI, requests: int) -> None:
    while len(stub.bodies) < requests:  # noqa: ASYNC110  the stub has no event for it
        await asyncio.sleep(0.01)


@pytest.mark.release  # `make test` kills one worker with a call under way (test_ledger.py)
async def test_ten_kills_at_random_moments_lose_and_invent_no_dollar(tmp_path: Path):
    drawn, answered, port = random.Random(29), dict[str, float](), free_port()
    address, environment = f"http://127.0.0.1:{port}", {**os.environ, "PYTHONPATH": str(ROOT)}
    async with StubOpenAI() as stub:
        stub.reply = lambda body: "It is so."
        stub.chaos = lambda number: {5: status(500), 9: status(429, "0.01")}.get(number % 13)
        settings = [
            *qa_settings(tmp_path), "tools.names=[]", "+tools.experts.generalist=[gpt-5-mini]",
            f"tools.server.url={stub.url}", "pricing.name=paper", "name=lives", f"output_dir={tmp_path}",
        ]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(ROOT / "tests" / "serving" / "lives.py"), str(port), *settings,
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        clients = [asyncio.create_task(asking(address, client, answered)) for client in range(CLIENTS)]
        for life in range(LIVES):
            process.stdin.write(b"live\n")
            child = int(await process.stdout.readline())
            await healthy(address)
            await reached(stub, len(stub.bodies) + 10)
            await asyncio.sleep(drawn.uniform(0.0, 0.3))
            if life == LIVES - 1:  # its answers under way end, and their clients hear them
                for client in clients:
                    client.cancel()
            os.kill(child, signal.SIGTERM if life == LIVES - 1 else signal.SIGKILL)
        process.stdin.close()
        await process.wait()
        await asyncio.gather(*clients, return_exceptions=True)
        prices = load_prices("pricing.name", "paper")
        billed = [
            pico(prices.cost(bill.model, prompt_tokens=bill.prompt, cached_tokens=bill.cached,
                             completion_tokens=bill.completion))
            for bill in stub.bills
        ]  # fmt: skip
    with opened(tmp_path / "serving" / "served.db") as database:
        called, asked, accounts = (rows(database, table) for table in ("calls", "requests", "accounts"))
    settled, open_ = [call for call in called if call["usd"] is not None], [c for c in called if c["usd"] is None]
    counted = sum(call["usd"] for call in settled) + sum(call["worst_usd"] for call in open_)
    assert len(answered) > 5 * LIVES
    # Every bill has its row. A row without an end was under way at a kill: it counts with its worst case.
    assert len(settled) <= len(billed) <= len(called)
    assert 0 < len(open_) <= CLIENTS * LIVES
    assert sum(call["usd"] for call in settled) <= sum(billed) <= counted
    assert sum(billed) - sum(call["usd"] for call in settled) <= (len(billed) - len(settled)) * max(billed)
    assert [(row["usd"], row["calls"]) for row in accounts] == [(counted, len(called))]
    # Whoever heard an answer finds it in the record, with what it cost.
    told = {row["id"]: row["usd"] for row in asked if row["ended"] is not None}
    assert {name: pico(usd) for name, usd in answered.items()} == {name: told[name] for name in answered}
