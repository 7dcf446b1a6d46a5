"""A database that all episodes share, and what one episode changed of it.

A database is {table: {id: entry}} of JSON values. A state keeps changed entries only, so a reset copies nothing and a
hash reads nothing else. Entries are changed in a transaction: it is taken over whole, or it never was.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestra_jax.envs.database.frozen import FrozenDict, canonical, digest, freeze, thaw

Key = tuple[str, str]  # (table, id)
_ABSENT = object()


class NoEntry(ValueError):  # noqa: N818  an observation for the policy, no bug
    """There is no entry of this id."""


class Database:
    """The content at the start of an episode; it never changes.

    Args:
        tables: {table: {id: entry}}, taken over as a frozen copy.

    Raises:
        TypeError: a table is no dict by id, or a value is none of JSON's.
    """

    def __init__(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise TypeError(
                    f"Table {name!r} of a database must map ids to entries, not be a {type(table).__name__}."
                )
        self.tables: Mapping[str, Mapping[str, Any]] = freeze({name: dict(table) for name, table in tables.items()})
        self.digest = digest(json.dumps(self.tables, sort_keys=True))
        self._digests: dict[Key, bytes | None] = {}

    @classmethod
    def load(cls, path: str | Path) -> "Database":
        """Reads a JSON file of tables."""
        return cls(json.loads(Path(path).read_text(encoding="utf-8")))

    def entry_digest(self, key: Key) -> bytes | None:
        """What stands for an entry in a state's hash; None: there is none. Computed once."""
        if key not in self._digests:
            entry = self.tables[key[0]].get(key[1], _ABSENT)
            self._digests[key] = None if entry is _ABSENT else digest(canonical(entry))
        return self._digests[key]


class State:
    """The content that one episode sees: the database, and the entries that it changed."""

    __slots__ = ("_changed", "_digests", "database")

    def __init__(self, database: Database) -> None:
        self.database = database
        self._changed: dict[Key, Any] = {}  # a deleted entry is _ABSENT
        self._digests: dict[Key, bytes | None] = {}

    def get(self, table: str, name: str) -> Any:
        """The entry, frozen.

        Raises:
            NoEntry: there is none of this id.
            KeyError: there is no such table, which is a bug of the tool.
        """
        found = self._changed.get((table, name), None) if self._changed else None
        if found is None:
            found = self.database.tables[table].get(name, _ABSENT)
        if found is _ABSENT:
            raise NoEntry(f"There is no {name!r} in {table}.")
        return found

    def rows(self, table: str) -> Iterator[tuple[str, Any]]:
        """Every (id, frozen entry) of the table in the database's order, new ones last in the order of their making."""
        start = self.database.tables[table]
        if not self._changed:
            yield from start.items()
            return
        for name, entry in start.items():
            now = self._changed.get((table, name), entry)
            if now is not _ABSENT:
                yield name, now
        for (where, name), entry in list(self._changed.items()):
            if where == table and name not in start and entry is not _ABSENT:
                yield name, entry

    def write(self, changes: Mapping[Key, Any], deleted: frozenset[Key] = frozenset()) -> None:
        """Takes over entries and removes the `deleted` ones: all, or on an error none."""
        ready = {key: freeze(entry) for key, entry in changes.items()}
        if unknown := [table for table, _ in (*ready, *deleted) if table not in self.database.tables]:
            raise KeyError(f"The database has no table {unknown[0]!r}.")
        if any(entry is None for entry in ready.values()):
            raise TypeError("An entry of a database cannot be null; delete it.")
        ready |= dict.fromkeys(deleted, _ABSENT)
        for key in ready:
            self._digests.pop(key, None)
        self._changed |= ready

    @property
    def changed(self) -> frozenset[Key]:
        """The entries that are not what they were at the start; one that was changed back is not among them."""
        return frozenset(key for key in self._changed if self.entry_digest(key) != self.database.entry_digest(key))

    def delta(self) -> dict[str, dict[str, Any]]:
        """{table: {id: entry, or None where it was deleted}} of what `changed`: plain JSON, for another process.

        In the order in which entries were first changed, so that new ones come in the order of their making.
        """
        found: dict[str, dict[str, Any]] = {}
        changed = self.changed
        for (table, name), entry in self._changed.items():
            if (table, name) not in changed:
                continue
            found.setdefault(table, {})[name] = None if entry is _ABSENT else thaw(entry)
        return found

    def apply(self, delta: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes over what `delta` gave, here or in another process."""
        rows = {(table, name): entry for table, each in delta.items() for name, entry in each.items()}
        self.write(
            {key: entry for key, entry in rows.items() if entry is not None},
            frozenset(key for key, entry in rows.items() if entry is None),
        )

    def entry_digest(self, key: Key) -> bytes | None:
        """As `Database.entry_digest`, of the entry as it is now."""
        if key not in self._changed:
            return self.database.entry_digest(key)
        if key not in self._digests:
            entry = self._changed[key]
            self._digests[key] = None if entry is _ABSENT else digest(canonical(entry))
        return self._digests[key]

    def hash(self) -> str:
        """Equal for states of equal content over one database, in whatever order and detours they came about."""
        rows = ((*key, (self.entry_digest(key) or b"").hex()) for key in sorted(self.changed))
        return digest(self.database.digest.hex() + json.dumps(list(rows))).hex()


def differing(one: State, other: State) -> list[Key]:
    """The entries in which two states of the same database differ, sorted.

    Raises:
        ValueError: the databases are not the same.
    """
    if one.database.digest != other.database.digest:
        raise ValueError("Two states of different databases cannot be compared.")
    return sorted(k for k in one.changed | other.changed if one.entry_digest(k) != other.entry_digest(k))


class Transaction:
    """What one call of a tool sees and changes; the state learns of it with `commit`.

    Args:
        state: as it was left by the calls before.
        reads: whether entries may be looked at.
        writes: whether they may be changed.

    Attributes:
        read, written: the entries that were asked for by id, and those that were changed, made or deleted.
    """

    def __init__(self, state: State, *, reads: bool = True, writes: bool = True) -> None:
        self._state, self._may_read, self._may_write = state, reads, writes
        self._edits: dict[Key, Any] = {}
        self.read: set[Key] = set()
        self.written: set[Key] = set()

    def get(self, table: str, name: str) -> Any:
        """The entry; look, do not touch: it is shared. See `State.get` for what it raises."""
        found = self._peek(table, name)
        self.read.add((table, name))
        return found

    def exists(self, table: str, name: str) -> bool:
        """Whether there is an entry of this id; asking counts as no reading."""
        try:
            self._peek(table, name)
        except NoEntry:
            return False
        return True

    def rows(self, table: str) -> Iterator[tuple[str, Any]]:
        """Every (id, entry), to search in. Only `get` counts as reading: call it for what was found."""
        self._check(self._may_read, "reads")
        seen = {name: entry for (where, name), entry in self._edits.items() if where == table}
        for name, entry in self._state.rows(table):
            now = seen.pop(name, entry)
            if now is not _ABSENT:
                yield name, now
        yield from ((name, entry) for name, entry in seen.items() if entry is not _ABSENT)

    def edit(self, table: str, name: str) -> Any:
        """A plain copy of the entry, to change in place."""
        self._check(self._may_write, "changes")
        found = self._peek(table, name)
        if (table, name) not in self._edits:
            self._edits[table, name] = found = thaw(found)
        self.written.add((table, name))
        return found

    def insert(self, table: str, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Adds an entry and gives it back, to change further.

        Raises:
            ValueError: there is one of this id.
        """
        self._check(self._may_write, "changes")
        if self.exists(table, name):
            raise ValueError(f"There already is {name!r} in {table}.")
        made = thaw(dict(entry))
        self._edits[table, name] = made
        self.written.add((table, name))
        return made

    def delete(self, table: str, name: str) -> None:
        """Removes an entry; raises NoEntry where there is none."""
        self._check(self._may_write, "changes")
        self._peek(table, name)
        self._edits[table, name] = _ABSENT
        self.written.add((table, name))

    def commit(self) -> None:
        """Writes everything into the state."""
        gone = frozenset(key for key, entry in self._edits.items() if entry is _ABSENT)
        self._state.write({key: entry for key, entry in self._edits.items() if key not in gone}, gone)

    def _peek(self, table: str, name: str) -> Any:
        self._check(self._may_read, "reads")
        found = self._edits.get((table, name))
        if found is None:
            return self._state.get(table, name)
        if found is _ABSENT:
            raise NoEntry(f"There is no {name!r} in {table}.")
        return found

    def _check(self, allowed: bool, what: str) -> None:
        if not allowed:
            raise WrongKind(f"it {what} the database")


class WrongKind(Exception):  # noqa: N818
    """A tool does what its kind may not: a bug of the world, nothing that the policy did."""


__all__ = ["Database", "FrozenDict", "Key", "NoEntry", "State", "Transaction", "WrongKind", "differing"]
