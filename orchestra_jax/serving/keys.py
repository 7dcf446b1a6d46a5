"""Keys of a server's clients: hashed, each with dollars a day and requests a minute of its own."""

import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.serving.database import ACCOUNTS, KEYS, REQUESTS, ServerDatabase, dollars, pico

_FRESH_S = 2.0  # for which the keys that were read are taken as they are
_DAY_S = 86_400


@dataclass(frozen=True)
class Key:
    """A key.

    Attributes:
        number: its number in the database; None: it is the environment's.
        usd_per_day: most kept dollars of a day, from midnight UTC; None: no limit.
        per_minute: most requests of any minute; None: no limit.
    """

    number: int | None
    name: str
    usd_per_day: int | None = None
    per_minute: int | None = None

    def account(self, now: float) -> str | None:
        """Return the name of the account of a day; None: the key has no budget."""
        return None if self.usd_per_day is None else f"{self.number}/{time.strftime('%Y-%m-%d', time.gmtime(now))}"


def until_midnight(now: float) -> int:
    """Return the seconds until the budgets of the next day."""
    return int(_DAY_S - now % _DAY_S) + 1


def digest(key: str) -> str:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


class KeyRing:
    """The keys that let clients in: those of the database, which may change at any time, and the environment's.

    Args:
        given: the environment's key, if there is one.

    Attributes:
        known: keys in force, by what is kept of them, as they were last read.
        needed: whether clients need one: there is a key, or there was one before all were ended.
    """

    def __init__(self, database: ServerDatabase, given: str | None) -> None:
        self._database = database
        self._given = {} if given is None else {digest(given): Key(None, "environment")}
        self.known, self.needed, self._read = dict[str, Key](), True, float("-inf")

    def read(self) -> "KeyRing":
        """Read the keys; raise OSError where the database cannot be reached."""
        rows = self._database.do(lambda connection: connection.execute(select(KEYS)).all()).result()
        found = [
            (row.digest, Key(row.id, row.name, row.usd_per_day, row.per_minute)) for row in rows if row.ended is None
        ]
        self.known, self.needed, self._read = self._given | dict(found), bool(self._given or rows), time.monotonic()
        return self

    def old(self) -> bool:
        """Return whether `read` is due."""
        return time.monotonic() - self._read > _FRESH_S


def limits(usd_per_day: float | None, per_minute: int | None) -> dict[str, int | None]:
    """Return the limits of a key as they are kept; raise ConfigError if one is none."""
    if usd_per_day is not None and not 0 <= usd_per_day < 1e6:
        raise ConfigError(f"The dollars per day must be from 0 to 1,000,000, not {usd_per_day}.")
    if per_minute is not None and not 1 <= per_minute < 2**31:
        raise ConfigError(f"The requests per minute must be at least 1, not {per_minute}.")
    return {"usd_per_day": None if usd_per_day is None else pico(usd_per_day), "per_minute": per_minute}


def add_key(database: ServerDatabase, name: str, usd_per_day: float | None, per_minute: int | None) -> str:
    """Make a key and return it; nobody can read it again.

    Raises:
        ConfigError: there is one of that name, or a limit is none.
    """
    kept = limits(usd_per_day, per_minute)
    key = f"sk-orchestra-{secrets.token_urlsafe(32)}"

    def work(connection: Connection) -> bool:
        if connection.execute(select(KEYS.c.id).where(KEYS.c.name == name)).first():
            return False
        connection.execute(insert(KEYS).values(name=name, digest=digest(key), **kept))
        return True

    if not database.do(work).result():
        raise ConfigError(f"There is a key of the name {name!r} already: choose another name.")
    return key


def end_key(database: ServerDatabase, name: str) -> None:
    """End a key: servers refuse it within seconds. Raise ConfigError: there is none of that name."""

    def work(connection: Connection) -> int:
        return connection.execute(update(KEYS).where(KEYS.c.name == name).values(ended=time.time())).rowcount

    if not database.do(work).result():
        raise ConfigError(f"There is no key of the name {name!r}.")


def list_keys(database: ServerDatabase) -> list[dict[str, Any]]:
    """Return for each key its limits, and what it has used since midnight UTC."""
    now = time.time()

    def work(connection: Connection) -> list[dict[str, Any]]:
        found = []
        for row in connection.execute(select(KEYS).order_by(KEYS.c.name)).all():
            account = Key(row.id, row.name, row.usd_per_day).account(now)
            mine, today = REQUESTS.c.key == row.id, REQUESTS.c.begun >= now - now % _DAY_S
            query = select(func.sum(REQUESTS.c.usd)).where(mine, today)  # no budget: there is no account
            if account is not None:
                query = select(ACCOUNTS.c.usd).where(ACCOUNTS.c.name == account)
            used = connection.execute(query).scalar() or 0
            asked = select(REQUESTS.c.id).where(mine, REQUESTS.c.begun > now - _DAY_S)
            found.append(
                {
                    "name": row.name,
                    "usd_per_day": None if row.usd_per_day is None else dollars(row.usd_per_day),
                    "usd_today": dollars(int(used)),
                    "per_minute": row.per_minute,
                    "requests_in_24_h": len(connection.execute(asked).all()),
                    "ended": row.ended is not None,
                }
            )
        return found

    return database.do(work).result()
