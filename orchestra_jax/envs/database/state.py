"""A database that all episodes share, and the entries that one episode changed.

A database is {table: {id: entry}} of JSON values. A state keeps changed entries only, so a reset copies nothing and a
hash reads nothing else. A tool of a call works with a transaction: the state takes over all of it, or nothing.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from orchestra_jax.envs.database.frozen import canonical, digest, freeze, thaw

Key = tuple[str, str]  # (table, id)


class NoEntry(ValueError):  # noqa: N818  an observation for the policy, no bug
    """There is no entry of this id."""


class WrongKind(Exception):  # noqa: N818
    """A tool does what its kind may not: a bug of the world, nothing that the policy did."""


class Database:
    """The content at the start of an episode; it never changes.

    Args:
        tables: {table: {id: entry}}, taken over as a frozen copy.
        exact: 2 and 2.0 differ, and so do sums of money that differ in the last bit.

    Raises:
        TypeError: a table is no dict by id, or a value is none of JSON's.
    """

    def __init__(self, tables: Mapping[str, Mapping[str, Any]], *, exact: bool = False) -> None:
        self._exact = exact
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise TypeError(
                    f"Table {name!r} of a database must map ids to entries, not be a {type(table).__name__}."
                )
        self.tables: Mapping[str, Mapping[str, Any]] = freeze({name: dict(table) for name, table in tables.items()})
        self.digest = digest(json.dumps(self.tables, sort_keys=True))
        self._digests: dict[Key, bytes | None] = {}

    def entry_digest(self, key: Key) -> bytes | None:
        """Return the digest of an entry, which is computed once, or None if there is no such entry."""
        if key not in self._digests:
            self._digests[key] = self.digest_of(self.tables[key[0]].get(key[1]))
        return self._digests[key]

    def digest_of(self, entry: Any) -> bytes | None:
        """Return the digest of an entry's content; None for None, an entry that was deleted."""
        if entry is None:
            return None
        return digest(json.dumps(entry, sort_keys=True) if self._exact else canonical(entry))


class State:
    """The content that one episode sees: the database, and the entries that the episode changed."""

    __slots__ = ("_changed", "_digests", "database")

    def __init__(self, database: Database) -> None:
        self.database = database
        self._changed: dict[Key, Any] = {}  # None: the entry was deleted
        self._digests: dict[Key, bytes | None] = {}

    def get(self, table: str, name: str) -> Any:
        """Return an entry, frozen.

        Raises:
            NoEntry: there is no entry of this id.
            KeyError: there is no such table, which is a bug of the tool.
        """
        key = (table, name)
        found = self._changed[key] if key in self._changed else self.database.tables[table].get(name)
        if found is None:
            raise NoEntry(f"There is no {name!r} in {table}.")
        return found

    def rows(self, table: str) -> Iterator[tuple[str, Any]]:
        """Yield every (id, frozen entry) in the database's order, then new entries in the order of their making."""
        start = self.database.tables[table]
        if not self._changed:
            yield from start.items()
            return
        for name, entry in start.items():
            now = self._changed.get((table, name), entry)
            if now is not None:
                yield name, now
        for (where, name), entry in list(self._changed.items()):
            if where == table and name not in start and entry is not None:
                yield name, entry

    def write(self, changes: Mapping[Key, Any]) -> None:
        """Take over entries, where None deletes an entry: all of them, or on an error none."""
        if unknown := [table for table, _ in changes if table not in self.database.tables]:
            raise KeyError(f"The database has no table {unknown[0]!r}.")
        ready = {key: freeze(entry) for key, entry in changes.items()}
        for key in ready:
            self._digests.pop(key, None)
        self._changed |= ready

    @property
    def changed(self) -> frozenset[Key]:
        """The entries that differ from the start; one that was changed back is not among them."""
        return frozenset(key for key in self._changed if self.entry_digest(key) != self.database.entry_digest(key))

    def delta(self) -> dict[str, dict[str, Any]]:
        """Return {table: {id: entry, or None if it was deleted}} of `changed` as plain JSON, for another process.

        Entries come in the order in which they were first changed, so new ones come in the order of their making.
        """
        found: dict[str, dict[str, Any]] = {}
        changed = self.changed
        for (table, name), entry in self._changed.items():
            if (table, name) in changed:
                found.setdefault(table, {})[name] = thaw(entry)
        return found

    def apply(self, delta: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the result of `delta`, from here or from another process."""
        self.write({(table, name): entry for table, rows in delta.items() for name, entry in rows.items()})

    def entry_digest(self, key: Key) -> bytes | None:
        """Return the digest of an entry as it is now, or None if there is no such entry."""
        if key not in self._changed:
            return self.database.entry_digest(key)
        if key not in self._digests:
            self._digests[key] = self.database.digest_of(self._changed[key])
        return self._digests[key]

    def hash(self) -> str:
        """Return a text that is equal for states of equal content over one database, however they came about."""
        rows = ((*key, (self.entry_digest(key) or b"").hex()) for key in sorted(self.changed))
        return digest(self.database.digest.hex() + json.dumps(list(rows))).hex()


def differing(one: State, other: State) -> list[Key]:
    """Return the entries in which two states of the same database differ, sorted.

    Raises:
        ValueError: the databases are not the same.
    """
    if one.database.digest != other.database.digest:
        raise ValueError("Two states of different databases cannot be compared.")
    return sorted(k for k in one.changed | other.changed if one.entry_digest(k) != other.entry_digest(k))


class Transaction:
    """The content that one call of a tool sees and changes; the state learns of it when `changes` are written.

    Args:
        state: the content as the calls before left it.
        reads: whether entries may be looked at.
        writes: whether entries may be changed.

    Attributes:
        read: the entries that were asked for by id.
        changes: the entries that were changed or made, and None for each that was deleted.
    """

    def __init__(self, state: State, *, reads: bool = True, writes: bool = True) -> None:
        self._state, self._may_read, self._may_write = state, reads, writes
        self.read: set[Key] = set()
        self.changes: dict[Key, Any] = {}

    def get(self, table: str, name: str) -> Any:
        """Return an entry to look at, which is shared and cannot be changed. Errors are those of `State.get`."""
        found = self._peek(table, name)
        self.read.add((table, name))
        return found

    def exists(self, table: str, name: str) -> bool:
        """Return whether there is an entry of this id; asking does not count as reading."""
        try:
            self._peek(table, name)
        except NoEntry:
            return False
        return True

    def rows(self, table: str) -> Iterator[tuple[str, Any]]:
        """Yield every (id, entry), to search in. Only `get` counts as reading: call it for the entry that was found."""
        self._check(self._may_read, "reads")
        mine = {name: entry for (where, name), entry in self.changes.items() if where == table}
        for name, entry in self._state.rows(table):
            now = mine.pop(name, entry)
            if now is not None:
                yield name, now
        yield from ((name, entry) for name, entry in mine.items() if entry is not None)

    def edit(self, table: str, name: str) -> Any:
        """Return a plain copy of an entry, to change in place."""
        self._check(self._may_write, "changes")
        found = self._peek(table, name)
        if (table, name) not in self.changes:
            self.changes[table, name] = found = thaw(found)
        return found

    def insert(self, table: str, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Add an entry and return it, to change further.

        Raises:
            ValueError: there is an entry of this id.
        """
        self._check(self._may_write, "changes")
        if self.exists(table, name):
            raise ValueError(f"There already is {name!r} in {table}.")
        made: dict[str, Any] = thaw(dict(entry))
        self.changes[table, name] = made
        return made

    def delete(self, table: str, name: str) -> None:
        """Remove an entry; raises NoEntry if there is none."""
        self._check(self._may_write, "changes")
        self._peek(table, name)
        self.changes[table, name] = None

    def _peek(self, table: str, name: str) -> Any:
        self._check(self._may_read, "reads")
        key = (table, name)
        if key not in self.changes:
            return self._state.get(table, name)
        if self.changes[key] is None:
            raise NoEntry(f"There is no {name!r} in {table}.")
        return self.changes[key]

    def _check(self, allowed: bool, what: str) -> None:
        if not allowed:
            raise WrongKind(f"it {what} the database")
