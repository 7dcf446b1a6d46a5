"""Keys, budgets and the ledger in one database: exact across processes on SQLite and on a real PostgreSQL."""

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
from sqlalchemy import create_engine, insert

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.money.budgets import BudgetExceeded, Limits
from orchestra_jax.money.prices import POLICY, Price, PriceList
from orchestra_jax.money.reservations import acquire
from orchestra_jax.serving.answers import Answer
from orchestra_jax.serving.asking import Account
from orchestra_jax.serving.database import PICO, REQUESTS, VERDICTS, ServerDatabase, opened, pico
from orchestra_jax.serving.errors import RequestError
from orchestra_jax.serving.feedback import logged
from orchestra_jax.serving.keys import KeyRing, add_key, digest, end_key, list_keys
from orchestra_jax.serving.ledger import JUDGES, SERVERS, ServedPurse, forget, judge_budget
from orchestra_jax.serving.report import policies
from orchestra_jax.types import Preference, Status, Task, Usage
from tests.serving.made import ROOT, rows

BINARIES = Path("/usr/lib/postgresql/15/bin")
# Asks again and again with ten calls at once; every call is a cent by its worst case, and costs it or half of it.
WORKER = """
import asyncio, sys
from orchestra_jax.money.budgets import BudgetExceeded, Limits
from orchestra_jax.money.reservations import acquire
from orchestra_jax.serving.database import ServerDatabase
from orchestra_jax.serving.keys import KeyRing, digest
from orchestra_jax.serving.ledger import ServedPurse
from orchestra_jax.types import Preference, Status, Task, Usage

async def main(address, worker, key):
    database = ServerDatabase(address)
    key = KeyRing(database, None).read().known[digest(key)]
    async def ask(number):
        purse = ServedPurse(database, f"{worker}-{number}", key, Limits(), "test", keep=False)
        try:
            await purse.begin(None)
            for call in range(3):
                budget = purse.paid if call else purse.own
                held = await acquire(budget, Usage("expert", prompt_tokens=2, cost_usd=0.01))
                await asyncio.sleep(0)
                if call == 1 and number % 7 == 0:
                    held.release()
                else:
                    held.settle(Usage("expert", prompt_tokens=1, cost_usd=0.01 if number % 2 else 0.005))
        except BudgetExceeded:
            return False
        return True
    await ask(0)
    print("ready", flush=True)
    sys.stdin.readline()
    number = 1
    while any(await asyncio.gather(*(ask(number + n) for n in range(10)))):
        number += 10
    database.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a database of a PostgreSQL of its own, on a socket in a folder."""
    pytest.importorskip("psycopg")
    if not (BINARIES / "initdb").is_file():
        pytest.skip("needs Debian's package postgresql-15")
    folder = Path("/tmp") / f"pg-{os.getpid()}"  # a socket's path must be short, and another user has to reach it
    folder.mkdir(mode=0o700)
    user: dict[str, object] = {}
    if os.geteuid() == 0:  # it refuses to run as root
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": folder}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **user}
    data = folder / "data"
    made = [str(BINARIES / "initdb"), "-D", str(data), "-U", "orchestra", "-A", "trust", "--no-sync"]
    subprocess.run(made, check=True, timeout=120, **quiet)  # type: ignore[call-overload]
    command = [str(BINARIES / "postgres"), "-D", str(data), "-k", str(folder), "-c", "listen_addresses="]
    server = subprocess.Popen([*command, "-c", "fsync=off"], **quiet)  # type: ignore[call-overload]
    address = f"postgresql://orchestra@/postgres?host={folder}"
    try:
        for _ in range(200):
            with contextlib.suppress(ConfigError), opened(address):
                break
            assert server.poll() is None
        yield address
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "served.db")
    server = request.getfixturevalue("postgresql")
    name = f"of_{tmp_path.name.lower()}"  # no test sees what another has written
    with create_engine(
        server.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    ).connect() as it:
        it.exec_driver_sql(f'CREATE DATABASE "{name}"')
    return server.replace("/postgres?", f"/{name}?")


def started(address: str, worker: int, key: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, address, str(worker), key]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
def test_four_workers_never_exceed_a_keys_budget_and_the_books_agree(address: str):
    with opened(address) as database:
        key = add_key(database, "four", 1.0, None)
        workers = [started(address, number, key) for number in range(4)]
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        while any(worker.poll() is None for worker in workers):
            assert all(row["usd"] <= PICO for row in rows(database, "accounts") if row["name"] != SERVERS)
        assert [worker.wait(60) for worker in workers] == [0] * 4
        called, accounts = rows(database, "calls"), {row["name"]: row for row in rows(database, "accounts")}
    assert all(call["usd"] is not None for call in called)
    own = next(row for name, row in accounts.items() if name != SERVERS)
    assert own["usd"] == sum(call["usd"] for call in called)
    assert own["calls"] == len(called)
    assert own["usd"] > 0.98 * PICO  # no more than the worst case of one call is left
    paid = [call for call in called if call["paid"]]
    assert (accounts[SERVERS]["usd"], accounts[SERVERS]["tokens"], accounts[SERVERS]["calls"]) == (
        sum(call["usd"] for call in paid), len(paid), len(paid),
    )  # fmt: skip
    assert len({call["request"].split("-")[0] for call in called}) == 4


def killed_in_three_calls(database: ServerDatabase, address: Path, key: str) -> None:
    """Run a worker that reserves three calls and is killed before any of them ends."""
    program = WORKER.replace("    await ask(0)\n", "").replace("range(10)", "range(3)")
    program = program.replace("await asyncio.sleep(0)", "await asyncio.sleep(600)")
    command = [sys.executable, "-c", program, str(address), "0", key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as worker:
        worker.stdin.write("\n")
        worker.stdin.flush()
        while len(rows(database, "calls")) < 3:
            time.sleep(0.01)
        worker.kill()


async def test_what_a_killed_worker_had_reserved_counts_as_spent(tmp_path: Path):
    address = tmp_path / "served.db"
    with opened(address) as database:
        key = add_key(database, "killed", 0.04, None)
        await asyncio.to_thread(killed_in_three_calls, database, address, key)
        (account,) = rows(database, "accounts")
        assert (account["usd"], {call["usd"] for call in rows(database, "calls")}) == (0.03 * PICO, {None})
        found = KeyRing(database, None).read().known[digest(key)]
        purse = ServedPurse(database, "next", found, Limits(), "test", keep=False)
        assert await purse.begin(None) == pytest.approx(0.01)
        with pytest.raises(BudgetExceeded, match="midnight UTC"):
            await acquire(purse.paid, Usage("expert", cost_usd=0.02))
        held = await acquire(purse.paid, Usage("expert", cost_usd=0.01))
        held.settle(Usage("expert", cost_usd=0.01))
        with pytest.raises(BudgetExceeded, match="for any call"):
            await ServedPurse(database, "last", found, Limits(), "test", keep=False).begin(None)
        assert [row["id"] for row in rows(database, "requests")] == ["0-1", "0-2", "0-3", "next"]


async def test_a_key_asks_so_often_a_minute_and_a_wrong_limit_or_name_is_one_sentence(address: str):
    with opened(address) as database:
        key = add_key(database, "often", None, 2)
        found = KeyRing(database, None).read().known[digest(key)]
        begun = [ServedPurse(database, f"often{n}", found, Limits(), "test", keep=True).begin(0.5) for n in range(3)]
        first, second, third = await asyncio.gather(*begun, return_exceptions=True)
        assert (first, second) == (0.5, 0.5)
        assert isinstance(third, RequestError)
        assert (third.status, third.code, 1 <= (third.retry_s or 0) <= 61) == (429, "rate_limit_exceeded", True)
        with pytest.raises(ConfigError, match="'often' already"):
            add_key(database, "often", None, None)
        with pytest.raises(ConfigError, match="at least 1"):
            add_key(database, "never", None, 0)
        with pytest.raises(ConfigError, match="from 0 to"):
            add_key(database, "never", float("nan"), None)
        end_key(database, "often")
        assert digest(key) not in KeyRing(database, "given").read().known
        with pytest.raises(ConfigError, match="no key of the name 'never'"):
            end_key(database, "never")
        listed = {row["name"]: row for row in list_keys(database)}
        assert (listed["often"]["ended"], listed["often"]["requests_in_24_h"]) == (True, 2)
        assert key not in repr(rows(database, "keys"))


@pytest.mark.parametrize(("asked", "said"), [(0.01, r"max_usd is 0\.01; raise"), (None, r"has 0\.05 left; .*UTC")])
async def test_what_limits_an_answer_is_named(tmp_path: Path, asked: float | None, said: str):
    with opened(tmp_path / "served.db") as database:
        key = add_key(database, "poor", 0.05, None)
        found = KeyRing(database, None).read().known[digest(key)]
        purse = ServedPurse(database, "one", found, Limits(), "p", keep=True)
        prices = PriceList("p", "d", "s", {POLICY: Price(call=1.0)})
        account = Account(await purse.begin(asked), prices, purse, lambda step: None)
        with pytest.raises(BudgetExceeded, match=said):
            await account.reserve(Usage(POLICY))


async def test_the_budget_of_all_servers_holds_and_words_are_forgotten(tmp_path: Path):
    with opened(tmp_path / "served.db") as database:
        purse = ServedPurse(database, "one", None, Limits(usd=0.03, calls=2), "test", keep=True)
        assert await purse.begin(None) is None
        for _ in range(2):
            (await acquire(purse.paid, Usage("expert", cost_usd=0.01))).settle(Usage("expert", cost_usd=0.01))
        with pytest.raises(BudgetExceeded, match=r"budget\.run_\*"):
            await acquire(purse.paid, Usage("free"))
        database.do(lambda connection: connection.exec_driver_sql("UPDATE requests SET kept = 'words'")).result()
        for days, kept in ((1.0, "words"), (0.0, None)):
            forget(database, days).result()
            assert rows(database, "requests")[0]["kept"] == kept


def test_a_database_that_cannot_be_opened_is_one_sentence(tmp_path: Path):
    file = tmp_path / "served.db"
    file.write_bytes(b"no database" * 999)
    for address, words in (
        (str(file), "file is not a database"), ("mysql://x/y", "SQLite or PostgreSQL, not mysql"),
        ("://", "cannot be read"), ("postgresql://u:secret@127.0.0.1:9/x", "cannot be opened"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words) as error:
            ServerDatabase(address)
        assert "secret" not in str(error.value)


def test_a_work_that_fails_takes_no_other_with_it(tmp_path: Path):
    with opened(tmp_path / "served.db") as database:
        many = [database.do(lambda connection, n=n: connection.exec_driver_sql(f"SELECT {n}").scalar()) for n in (1, 2)]
        wrong = database.do(lambda connection: connection.exec_driver_sql("SELECT * FROM missing"))
        assert [each.result() for each in many] == [1, 2]
        with pytest.raises(OSError, match="no such table"):
            wrong.result()
    with pytest.raises(OSError, match="is closed"):
        database.do(lambda connection: None).result()


async def test_report_verdicts_and_the_judges_budget_are_the_same_on_both(address: str):
    kept = {
        "task": {"question": "Who?", "preference": {"instruction": ""}},
        "trajectory": {"answer": "A", "sequences": []},
    }
    with opened(address) as database:
        for name, score in (("r1", 1.0), ("r2", None), ("r3", 0.0)):
            row = {
                "id": name,
                "begun": time.time(),
                "ended": 1.0,
                "policy": "reported",
                "usd": PICO // 4,
                "seconds": 3.0,
            }
            row |= {"score": score, "kept": json.dumps(kept)}
            database.do(lambda connection, row=row: connection.execute(insert(REQUESTS).values(row))).result()
        verdict = {"request": "r2", "judge": "gpt-5", "right": 1, "judged": 1.0}
        database.do(lambda connection: connection.execute(insert(VERDICTS).values(verdict))).result()
        (told,) = (row for row in policies(database) if row["policy"] == "reported")
        assert (told["requests"], told["ended"], told["judged"], told["right"]) == (3, 3, 2, 0.5)
        assert (told["usd"], told["seconds"]) == (0.25, 3.0)
        log = {line["id"]: (line.get("answer"), line["judged_by"]) for line in logged(database) if line["said"] == "A"}
        assert log == {"r1": ("A", "user"), "r2": ("A", "gpt-5"), "r3": (None, "user")}
        budget = judge_budget(database, 0.03)
        (await acquire(budget, Usage("judge", cost_usd=0.02))).settle(Usage("judge", cost_usd=0.015))
        with pytest.raises(BudgetExceeded):
            await acquire(judge_budget(database, 0.03), Usage("judge", cost_usd=0.02))
        (account,) = (row for row in rows(database, "accounts") if row["name"] == JUDGES)
        assert (account["usd"], account["calls"]) == (pico(0.015), 1)


@pytest.mark.parametrize("usd_per_day", [None, 1.0])
async def test_a_bill_that_comes_after_the_end_of_its_request_stands_in_its_row(
    tmp_path: Path, usd_per_day: float | None
):
    told, none = list[float](), Task("t", "Why?", (), (), Preference("", ""))
    with opened(tmp_path / "served.db") as database:
        anna = digest(add_key(database, "anna", usd_per_day, None))
        key = KeyRing(database, None).read().known[anna]
        purse = ServedPurse(database, "asked", key, Limits(), "test", keep=False, told=told.append)
        await purse.begin(None)
        heard, late, free = [await acquire(purse.paid, Usage("expert", cost_usd=0.2)) for _ in range(3)]
        heard.settle(Usage("expert", cost_usd=0.1))
        purse.end(Answer("asked", None, Status.NO_ANSWER, "late", "max_seconds", 0.1, 1.0, (), (), ()), none)
        late.settle(Usage("expert", cost_usd=0.15))
        free.release()
        (asked,), called = rows(database, "requests"), rows(database, "calls")
    assert told == [0.1, 0.15]
    assert asked["usd"] == sum(call["usd"] for call in called) == 0.25 * PICO
