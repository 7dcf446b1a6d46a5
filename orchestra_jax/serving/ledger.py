"""The ledger of served requests: each call is reserved in the database before it is made, and settled after.

A call is reserved on the account of all servers and on that of its key and day, or on neither, in one transaction; so
no number of servers goes beyond a limit. What a server had reserved when it was killed stays
reserved for good: the call may have been billed, and counts with its worst case.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from orchestra_jax.envs.base import Message
from orchestra_jax.evaluation.group_files import encode_trajectory
from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits
from orchestra_jax.serving.answers import Answer
from orchestra_jax.serving.asking import Purse
from orchestra_jax.serving.database import ACCOUNTS, CALLS, REQUESTS, ServerDatabase, dollars, pico
from orchestra_jax.serving.errors import RequestError
from orchestra_jax.serving.keys import Key, until_midnight
from orchestra_jax.types import Task, Usage

SERVERS = "servers"  # the account of all servers of a database
JUDGES = "judges"  # the account of what judges are paid for answers without feedback
INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


@dataclass(frozen=True)
class _Account:
    """A row of ACCOUNTS and its limits, in kept dollars, tokens and calls; None: no limit."""

    name: str
    usd: int | None = None
    tokens: int | None = None
    calls: int | None = None


class _CallJournal:
    """Notes calls of one request in the database; a `money.journal.CallJournal`.

    Args:
        paid: whether somebody else is paid for them; only those count in the servers' budget.

    Attributes:
        late: called with the dollars of each call that ends after its request; None: the request is under way.
    """

    late: Callable[[float], None] | None = None

    def __init__(self, database: ServerDatabase, request: str, accounts: Sequence[_Account], *, paid: bool) -> None:
        self._database, self._request, self._accounts, self._paid = database, request, accounts, paid
        self._reserved: list[Future[str]] = []

    def reserve(self, worst: Usage) -> int:
        """Reserve the worst case of a call; `durable` tells whether it fits."""
        amounts, name = _amounts(worst), worst.name
        call, row = self._id(len(self._reserved)), {"request": self._request, "name": name, "paid": int(self._paid)}

        def work(connection: Connection) -> str:
            for place, account in enumerate(self._accounts):
                if not _added(connection, account, *amounts, 1):
                    for earlier in self._accounts[:place]:
                        _add(connection, earlier.name, -amounts[0], -amounts[1], -1)
                    return account.name
            own = next((each.name for each in self._accounts if each.name not in (SERVERS, JUDGES)), None)
            values = {"id": call, "account": own, "worst_usd": amounts[0], "worst_tokens": amounts[1], **row}
            connection.execute(insert(CALLS).values(values))
            return ""

        self._reserved.append(self._database.do(work))
        return len(self._reserved) - 1

    async def durable(self, call: int, worst: Usage) -> None:
        """Wait until the reservation of a call is on the disk.

        Raises:
            BudgetExceeded: it does not fit beside what is spent and under way.
            OSError: the database cannot be written.
        """
        refused = await asyncio.wrap_future(self._reserved[call])
        if refused == JUDGES:
            raise BudgetExceeded(f"The next call of {worst.name!r} does not fit into --max-usd; raise it.", JUDGES)
        if refused == SERVERS:
            raise BudgetExceeded(
                f"The next call of {worst.name!r} does not fit into budget.run_* of the server; raise it to go on.",
                "run",
            )
        if refused:
            raise empty(f"for the next call of {worst.name!r}")

    def end(self, call: int, billed: Usage | None) -> None:
        """Replace the reservation by what was billed; None: nothing was."""
        amounts = None if billed is None else _amounts(billed)
        if (late := self.late) is not None and billed is not None:
            late(billed.cost_usd)

        def work(connection: Connection) -> None:
            mine = CALLS.c.id == self._id(call)
            found = connection.execute(select(CALLS).where(mine, CALLS.c.usd.is_(None))).first()
            if found is None:  # it was refused
                return
            if amounts is None:
                connection.execute(delete(CALLS).where(mine))
            else:
                connection.execute(update(CALLS).where(mine).values(usd=amounts[0], tokens=amounts[1]))
            usd, tokens = amounts or (0, 0)
            if late is not None:
                asked = update(REQUESTS).where(REQUESTS.c.id == self._request)
                connection.execute(asked.values(usd=REQUESTS.c.usd + usd))
            for account in self._accounts:
                less = -1 if amounts is None else 0
                _add(connection, account.name, usd - found.worst_usd, tokens - found.worst_tokens, less)

        self._database.do(work)

    def _id(self, call: int) -> str:
        return f"{self._request}/{'paid' if self._paid else 'own'}/{call}"


class _Kept(Budget):
    """A budget whose calls stand in the database."""

    def __init__(self, name: str, journal: _CallJournal, limits: Limits | None = None) -> None:
        super().__init__(limits, name=name)
        self._calls = journal

    @property
    def journal(self) -> _CallJournal:
        return self._calls


class ServedPurse(Purse):
    """The money of one request of a key, and its row in the database.

    Args:
        policy: names the weights that answer.
        temperature: temperature of sampling, where it is known.
        keep: whether these, task and trajectory are kept.
        told: is told what the request cost, however it ended.
    """

    def __init__(
        self,
        database: ServerDatabase,
        request: str,
        key: Key | None,
        limits: Limits,
        policy: str,
        before: Sequence[Message] = (),
        temperature: float | None = None,
        *,
        keep: bool,
        told: Callable[[float], None] = lambda usd: None,
    ) -> None:
        self._database, self._request, self._key, self._temperature = database, request, key, temperature
        self._policy, self._before, self._keep, self._begun = policy, before, keep, time.time()
        self._told = told
        self._account = None if key is None else key.account(self._begun)
        usd = None if limits.usd is None else pico(limits.usd)
        accounts = [_Account(SERVERS, usd, limits.tokens, limits.calls)]
        own = None if key is None or self._account is None else _Account(self._account, key.usd_per_day)
        accounts += [] if own is None else [own]
        self._paid_calls = _CallJournal(database, request, accounts, paid=True)
        super().__init__(_Kept("run", self._paid_calls))
        if own is not None:
            self.own = _Kept("key", _CallJournal(database, request, [own], paid=False))

    async def begin(self, max_usd: float | None) -> float | None:
        """Note that the request begins; return the most that it may cost.

        Raises:
            RequestError: the key has asked as often as it may in a minute.
            BudgetExceeded: its budget of the day is used up.
        """
        key, now = self._key, self._begun
        row = {"id": self._request, "key": None if key is None else key.number, "begun": now, "policy": self._policy}

        def work(connection: Connection) -> tuple[float, int | None]:
            if key is not None and key.per_minute is not None and (wait := _wait_s(connection, key, now)):
                return wait, None
            left = None
            if key is not None and key.usd_per_day is not None:
                used = select(ACCOUNTS.c.usd).where(ACCOUNTS.c.name == self._account)
                left = key.usd_per_day - (connection.execute(used).scalar() or 0)
                if left <= 0:
                    return 0.0, left
            connection.execute(insert(REQUESTS).values(row))
            return 0.0, left

        begun = self._database.do(work)
        if key is None or (key.per_minute, key.usd_per_day) == (None, None):
            return max_usd  # nothing can refuse it: its row comes before those of its calls
        try:
            wait, left = await asyncio.wrap_future(begun)
        except asyncio.CancelledError:  # the client has gone, and nothing was asked
            mine = delete(REQUESTS).where(REQUESTS.c.id == self._request)
            self._database.do(lambda connection: connection.execute(mine))
            raise
        if wait:
            raise RequestError(
                429,
                f"This key may ask {key.per_minute} times a minute.",
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                retry_s=int(wait) + 1,
            )
        if left is None:
            return max_usd
        if left <= 0:
            raise empty("for any call")
        if max_usd is not None and max_usd <= dollars(left):
            return max_usd
        self.limit = "the key's budget of today has {:.6g} left; it is renewed at midnight UTC"
        return dollars(left)

    def end(self, answer: Answer, task: Task) -> "Future[None]":
        """Write the end of the request. What is billed later, for calls that it has left, is added to its row."""
        self._told(answer.cost_usd)
        self._paid_calls.late = self._told
        kept = None
        if self._keep and answer.trajectory is not None:
            played = encode_trajectory(answer.trajectory) | {"answer": answer.answer}  # None: a tool of the client
            own = {"before": list(self._before), "temperature": self._temperature}
            kept = json.dumps({**own, "task": asdict(task), "trajectory": played})
        values = {
            "ended": time.time(),
            "status": str(answer.status),
            "reason": answer.reason,
            "usd": pico(answer.cost_usd),
            "seconds": answer.seconds,
            "kept": kept,
        }

        def work(connection: Connection) -> None:
            connection.execute(update(REQUESTS).where(REQUESTS.c.id == self._request).values(values))

        return self._database.do(work)


def judge_budget(database: ServerDatabase, usd: float) -> Budget:
    """Return the budget of a judge's calls; what all judges of the database were paid before is a part of it."""
    of_judges = ACCOUNTS.c.name == JUDGES
    spent = database.do(lambda each: each.execute(select(ACCOUNTS.c.usd).where(of_judges)).scalar() or 0).result()
    journal = _CallJournal(database, f"judge-{secrets.token_hex(6)}", [_Account(JUDGES, pico(usd))], paid=True)
    return _Kept(JUDGES, journal, Limits(usd=max(0.0, dollars(pico(usd) - spent))))


def forget(database: ServerDatabase, days: float) -> "Future[None]":
    """Delete the words and tokens of requests that are older than some days."""
    old = REQUESTS.c.begun < time.time() - days * 86_400

    def work(connection: Connection) -> None:
        connection.execute(update(REQUESTS).where(old, REQUESTS.c.kept.is_not(None)).values(kept=None))

    return database.do(work)


def empty(what: str) -> BudgetExceeded:
    """Return that the budget of a key's day has too little left."""
    hours = until_midnight(time.time()) / 3600
    return BudgetExceeded(
        f"The key's budget of today has too little left {what}; it is renewed at midnight UTC, in {hours:.1f} hours.",
        "key",
    )


def _amounts(row: Usage) -> tuple[int, int]:
    return pico(row.cost_usd), row.prompt_tokens + row.completion_tokens


def _added(connection: Connection, account: _Account, usd: int, tokens: int, calls: int) -> bool:
    """Add to an account unless a limit would be exceeded; return whether it was added."""
    new = INSERTS[connection.dialect.name](ACCOUNTS).values(name=account.name, usd=0, tokens=0, calls=0)
    connection.execute(new.on_conflict_do_nothing())
    sums = ACCOUNTS.c.usd + usd, ACCOUNTS.c.tokens + tokens, ACCOUNTS.c.calls + calls
    limits = account.usd, account.tokens, account.calls
    fits = [total <= limit for total, limit in zip(sums, limits, strict=True) if limit is not None]
    changed = update(ACCOUNTS).where(ACCOUNTS.c.name == account.name, *fits)
    return connection.execute(changed.values(usd=sums[0], tokens=sums[1], calls=sums[2])).rowcount == 1


def _add(connection: Connection, name: str, usd: int, tokens: int, calls: int) -> None:
    row = ACCOUNTS.c
    values = {"usd": row.usd + usd, "tokens": row.tokens + tokens, "calls": row.calls + calls}
    connection.execute(update(ACCOUNTS).where(row.name == name).values(values))


def _wait_s(connection: Connection, key: Key, now: float) -> float:
    """Return the seconds until a key may ask again, 0 if it may now."""
    recent = (REQUESTS.c.key == key.number, REQUESTS.c.begun > now - 60)
    count, first = connection.execute(select(func.count(), func.min(REQUESTS.c.begun)).where(*recent)).one()
    return 0.0 if count < (key.per_minute or 0) else max(0.001, first + 60 - now)
