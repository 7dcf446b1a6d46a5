"""Many clients at once, for minutes, over a provider with faults: no request is lost or doubled, and the books agree.

    .venv/bin/python benchmarks/serve_books.py
    .venv/bin/python benchmarks/serve_books.py --seconds 300 --clients 64 --database postgresql://...

The provider is the stub of the tests: some of its answers are errors, come late, are cut off, or do not say what they
cost, and some clients go away in the middle. It keeps books of its own. Of a reply that came whole the ledger of the
server has to have the very bill, to the cent and below; a request whose reply was lost, or hid its usage, counts with
its worst case or an estimate, and each once. Anything else ends the benchmark with status 1.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from serve import MODEL, InThread, ask
from short import parse
from sqlalchemy import text

from orchestra_jax.config.served_path import FILE
from orchestra_jax.envs.base import Baseline
from orchestra_jax.money.run_prices import load_prices
from orchestra_jax.serving.database import ServerDatabase, dollars, opened, pico
from orchestra_jax.serving.opened import open_policy
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.serving.server import ChatServer, ServerLimits
from tests.tools.openai_stub import (
    NO_USAGE,
    RESET_AFTER,
    RESET_BEFORE,
    TRUNCATED,
    Bill,
    Fault,
    StubOpenAI,
    slow,
    status,
)

LOST = (RESET_AFTER, TRUNCATED, NO_USAGE, RESET_BEFORE)  # it may have been billed, and nobody hears how much
FAULTS: dict[int, Fault] = {
    5: status(500), 17: status(429, "0.05"), 29: status(503), 41: slow(0.5), 53: RESET_BEFORE, 67: RESET_AFTER,
    79: TRUNCATED, 97: NO_USAGE,
}  # fmt: skip


@dataclass
class Seen:
    """What clients and provider saw.

    Attributes:
        statuses: number of responses by status; "gone": the client went away.
        heard: bills of the replies that came whole, in kept dollars.
        lost: number of requests of which nobody knows what they cost.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    ids: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)
    lost: int = 0


async def client(number: int, address: str, until: float, seen: Seen) -> None:
    """Ask until the time is over; go away in the middle of one question of nine."""
    drawn = random.Random(number)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for asked in range(sys.maxsize):
            if time.perf_counter() > until:
                return
            messages = [{"role": "user", "content": f"Question {asked} of client {number}?"}]
            body = {"model": "bench", "messages": messages, "stream": asked % 4 == 3}
            patience = drawn.uniform(0.0, 0.3) if drawn.random() < 1 / 9 else None
            start = time.perf_counter()
            try:
                async with asyncio.timeout(patience), session.post(f"{address}/chat/completions", json=body) as found:
                    said = await found.text()
            except TimeoutError:
                seen.statuses["gone"] += 1
                continue
            seen.seconds.append(time.perf_counter() - start)
            seen.statuses[str(found.status)] += 1
            if found.status == 200:
                first = json.loads(said.partition("\n")[0].removeprefix("data: "))
                if not body["stream"] or '"finish_reason": "stop"' in said:
                    seen.ids.append(first["id"])


def keep_books(stub: StubOpenAI, seen: Seen) -> None:
    """Have the stub make faults, and note which of its bills somebody hears."""
    prices, last = load_prices("pricing.name", "paper"), list[Fault | None]([None])

    def chaos(number: int) -> Fault | None:
        last[0] = FAULTS.get(number % 101)
        seen.lost += last[0] in LOST
        return last[0]

    def billed(bill: Bill) -> None:
        if last[0] not in LOST:
            seen.heard.append(
                pico(prices.cost(bill.model, prompt_tokens=bill.prompt, cached_tokens=bill.cached,
                                 completion_tokens=bill.completion))
            )  # fmt: skip

    stub.chaos, stub.on_bill, stub.reply = chaos, billed, lambda body: "It is so."


def problems(database: ServerDatabase, seen: Seen) -> list[str]:
    """Return a sentence for everything that does not agree; print the sums."""

    def read(query: str) -> list[Any]:
        return database.do(lambda connection: list(connection.execute(text(query)))).result()

    calls = read("SELECT usd, worst_usd FROM calls")
    settled = [usd for usd, _ in calls if usd is not None]
    unheard = sum(settled) - sum(seen.heard)
    (account,) = read("SELECT usd, calls FROM accounts WHERE name = 'servers'")
    asked = dict(read("SELECT id, ended FROM requests"))
    print(
        f"{len(seen.heard)} bills of ${dollars(sum(seen.heard)):.9f} were heard, and are in the ledger; beside them it "
        f"has {len(calls) - len(seen.heard)} calls of ${dollars(unheard):.9f}, whose {seen.lost} replies were lost."
    )
    checks = {
        "a bill that was heard is not in the ledger as it was": not Counter(seen.heard) - Counter(settled),
        "a lost reply is not there once, or above its worst case": len(calls) == len(seen.heard) + seen.lost
        and 0 <= unheard <= seen.lost * max(worst for _, worst in calls),
        "a call has no end": all(usd is not None for usd, _ in calls),
        "the account is not the sum of its calls": tuple(account) == (sum(usd for usd, _ in calls), len(calls)),
        "a request has no end": all(ended is not None for ended in asked.values()),
        "an answer is not in the record": set(seen.ids) <= asked.keys(),
        "two answers have one id": len(set(seen.ids)) == len(seen.ids),
        "a request had another status": set(seen.statuses) <= {"200", "503", "gone"},
    }
    return [words for words, right in checks.items() if not right]


async def load(address: str, options: argparse.Namespace, seen: Seen) -> None:
    """Have all clients ask at once."""
    until = time.perf_counter() + options.seconds
    await asyncio.gather(*(client(number, address, until, seen) for number in range(options.clients)))


def main() -> None:
    """Ask, compare the books, and exit with 1 where they do not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="how long the clients ask")
    parser.add_argument("--clients", type=int, default=64, help="clients at once")
    parser.add_argument("--database", help="address of the database (default: SQLite in a folder that is deleted)")
    options = parse(parser, "--seconds", "3", "--clients", "8")
    threads, stub, seen = (InThread(), InThread()), StubOpenAI(), Seen()
    keep_books(stub, seen)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as parts:
        asyncio.run_coroutine_threadsafe(stub.__aenter__(), threads[0].loop).result()
        questions = Path(scratch, "questions.jsonl")
        questions.write_text("".join(json.dumps({"question": f"{n}?", "answer": str(n)}) + "\n" for n in range(4)))
        settings = [
            "env=qa", "tools=offline", "tools.names=[]", f"+tools.experts.generalist=[{MODEL}]", "pricing.name=paper",
            f"tools.server.url={stub.url}", "data=jsonl", f"data.path={questions}", "name=bench",
            f"output_dir={scratch}/run", "tools.server.concurrency=256", "tools.server.retries=8",
        ]  # fmt: skip
        policy = open_policy("baseline:do_nothing", settings)
        database = parts.enter_context(opened(options.database or Path(scratch, FILE)))
        with Orchestrator(replace(policy, engine=Baseline("script", ask))) as orchestrator:
            server = ChatServer(orchestrator, database, ServerLimits(under_way=4096))
            address = threads[1].uvicorn(server.app())
            asyncio.run(load(address, options, seen))
        cuts = statistics.quantiles(seen.seconds, n=20)
        told = ", ".join(f"{count} {name}" for name, count in sorted(seen.statuses.items()))
        rate = len(seen.seconds) / options.seconds
        print(f"{told}; {rate:.0f} a second; p50 {cuts[9]:.3f} s, p95 {cuts[18]:.3f} s")
        found = problems(database, seen)
    print("\n".join(found) or "The books agree.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
