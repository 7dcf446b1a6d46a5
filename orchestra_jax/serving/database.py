"""The database of servers: tables, and the thread that writes them. SQLite in a file, or PostgreSQL by its address."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from orchestra_jax.config.schema import ConfigError

T = TypeVar("T")
_Waiting = tuple[Callable[[Connection], Any], "Future[Any]"]
PICO = 10**12  # dollars are kept in whole parts of this size, so that sums are exact
_BUSY_S = 60.0  # for which a write waits for those of other processes
_CONNECT_S = 10  # for PostgreSQL to answer
_BATCH = 256  # works of one commit
_LOCK = 20_261_125  # number of the lock under which PostgreSQL has the transactions of servers one after the other
_IDLE_S = 30  # after which it takes the lock from a server that hangs

_META = MetaData()
KEYS = Table(
    "keys",
    _META,
    Column("id", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("digest", String, nullable=False, unique=True),  # SHA-256 of the key, which is kept nowhere
    Column("usd_per_day", BigInteger),
    Column("per_minute", Integer),
    Column("ended", Float),
)
# Names of the keys that a file of keys has made.
FILE_KEYS = Table("file_keys", _META, Column("name", String, primary_key=True))
# What is paid or may be paid, the worst cases of calls under way included: of a key on a day, and of all servers.
ACCOUNTS = Table(
    "accounts",
    _META,
    Column("name", String, primary_key=True),
    Column("usd", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("calls", BigInteger, nullable=False),
)
# A row for each call, before it is made; `usd` and `tokens` are there once it has ended.
CALLS = Table(
    "calls",
    _META,
    Column("id", String, primary_key=True),
    Column("request", String, nullable=False, index=True),
    Column("account", String),  # of the key, where it has a budget
    Column("name", String, nullable=False),
    Column("paid", Integer, nullable=False),  # 0: nobody is: our own tokens, simulated and recorded calls
    Column("worst_usd", BigInteger, nullable=False),
    Column("worst_tokens", BigInteger, nullable=False),
    Column("usd", BigInteger),
    Column("tokens", BigInteger),
)
REQUESTS = Table(
    "requests",
    _META,
    Column("id", String, primary_key=True),
    Column("key", Integer),  # the one that asked; null: that of the environment, or none
    Column("begun", Float, nullable=False),  # Unix time
    Column("ended", Float),
    Column("status", String),
    Column("reason", String),
    # What the client was told, with own tokens, simulated and recorded calls; and bills that came after its end.
    Column("usd", BigInteger),
    Column("seconds", Float),
    Column("policy", String),  # the weights that answered
    Column("kept", String),  # JSON: messages before the question, task and trajectory
    Column("judged", Float),
    Column("score", Float),  # of the feedback, from 0 to 1
    Column("correct", String),  # the right answer by the feedback
    Index("requests_of_a_key", "key", "begun"),
)
# What a judge says of answers without feedback.
VERDICTS = Table(
    "verdicts",
    _META,
    Column("request", String, primary_key=True),
    Column("judge", String, nullable=False),  # name of its model, or "match": the run knows the answer
    Column("right", Integer, nullable=False),
    Column("judged", Float, nullable=False),
)


def pico(usd: float) -> int:
    """Return dollars as they are kept."""
    return round(usd * PICO)


def dollars(kept: float) -> float:
    """Return kept dollars as a number."""
    return kept / PICO


class ServerDatabase:
    """Does works in transactions, in a thread of its own; what waits is committed together.

    A work is a function of the connection. What it returns is on the disk when its future is done; a process that is
    killed leaves all of a work or nothing of it. The transactions of all processes come one after the other.

    Args:
        address: a file for SQLite, or postgresql://USER:PASSWORD@HOST/NAME.

    Raises:
        ConfigError: it cannot be opened; one sentence.
    """

    def __init__(self, address: str | Path) -> None:
        self._engine = _opened(address)
        self.shown = self._engine.url.render_as_string(hide_password=True)
        self._works: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="database", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[Connection], T]) -> "Future[T]":
        """Return the future of a work's result; it raises OSError where the database cannot be reached or written."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # so that it cannot be cancelled from here on
        if self._closed:
            done.set_exception(OSError(f"The database {self.shown} is closed."))
        else:
            self._works.put((work, done))
        return done

    def close(self) -> None:
        """Do what waits, and close; twice is harmless."""
        if not self._closed:
            self._closed = True
            self._works.put(None)
            self._thread.join()
            self._engine.dispose()

    def _run(self) -> None:
        going = True
        while going:
            waiting = [self._works.get()]
            while len(waiting) < _BATCH and not self._works.empty():
                waiting.append(self._works.get())
            going = None not in waiting
            batch = [item for item in waiting if item is not None]
            if not self._together(batch):
                for item in batch:
                    self._alone(*item)

    def _together(self, batch: "list[_Waiting]") -> bool:
        """Do works in one transaction; return False: none of them is done."""
        try:
            with self._engine.begin() as connection:
                results = [work(connection) for work, _ in batch]
        except Exception:  # whatever it is, each work is to be told its own
            return False
        for (_, done), result in zip(batch, results, strict=True):
            done.set_result(result)
        return True

    def _alone(self, work: Callable[[Connection], Any], done: "Future[Any]") -> None:
        try:
            with self._engine.begin() as connection:
                result = work(connection)
        except SQLAlchemyError as error:
            done.set_exception(OSError(f"The database {self.shown} cannot be written: {_reason(error)}."))
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(result)


def _opened(address: str | Path) -> Engine:
    try:
        url = make_url(str(address)) if "://" in str(address) else make_url("sqlite://").set(database=str(address))
        if url.get_backend_name() == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        elif url.get_backend_name() != "sqlite":
            raise ConfigError(f"A server's database is SQLite or PostgreSQL, not {url.get_backend_name()}.")
        sqlite = url.get_backend_name() == "sqlite"
        waits: dict[str, Any] = {} if sqlite else {"connect_timeout": _CONNECT_S}
        engine = create_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True, connect_args=waits)
        if sqlite:
            event.listen(engine, "connect", _set_up)
        event.listen(engine, "begin", _begin)
        with engine.begin() as connection:
            _META.create_all(connection)
    except ArgumentError:
        raise ConfigError(
            "The address of the database cannot be read: write postgresql://USER:PASSWORD@HOST/NAME, or a file."
        ) from None
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"PostgreSQL needs the package {error.name}: pip install 'orchestra-jax[postgresql]'."
        ) from error
    except SQLAlchemyError as error:
        shown = url.render_as_string(hide_password=True)
        raise ConfigError(f"The database {shown} cannot be opened: {_reason(error)}.") from error
    return engine


def _set_up(connection: Any, _: object) -> None:
    """Have SQLite keep every commit through a loss of power, and transactions be where we say."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={_BUSY_S * 1e3:.0f}")
    for _attempt in _until(_BUSY_S):  # it does not wait for other processes when several turn WAL on at once
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except Exception as error:
            if "locked" not in str(error):
                raise
    connection.execute("PRAGMA synchronous=FULL")


def _begin(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{_IDLE_S}s'")
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_BUSY_S:.0f}s'")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")


def _until(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.01)


def _reason(error: SQLAlchemyError) -> str:
    """Return the first line of what the database says; no statement and no values of it."""
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0].rstrip(".")


@contextlib.contextmanager
def opened(address: str | Path) -> Iterator[ServerDatabase]:
    """Open a database for a while."""
    database = ServerDatabase(address)
    try:
        yield database
    finally:
        database.close()
