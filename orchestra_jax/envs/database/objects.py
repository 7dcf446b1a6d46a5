"""Tables of objects that foreign tools change in place, shared by all episodes.

Between two calls the objects are those of the start. Before a call the entries that its episode changed are put in;
after it, entries whose JSON text differs are the call's changes, and everything is put back.
"""

import inspect
import json
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

MOST_TOLD = 20  # entries of a table in one result; a longer one is a list


class TrackedRows(dict[str, Any]):
    """A table of objects that remembers which ids a call asked for, and whether it walked through the table.

    Attributes:
        asked: ids that were looked up, set or removed one by one.
        scanned: the call saw all ids.
        handed: the call got all entries.
        removed: the call removed an entry.
    """

    def __init__(self, rows: Mapping[str, Any]) -> None:
        super().__init__(rows)
        self.begin()

    def begin(self) -> None:
        """Forget what the call before did."""
        self.asked, self.scanned, self.handed, self.removed = set[str](), False, False, False

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def __setitem__(self, name: str, entry: Any) -> None:
        self.asked.add(name)
        super().__setitem__(name, entry)

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an entry, or the default if there is none."""
        self.asked.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove and return an entry."""
        self.asked.add(name)
        self.removed = True
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return an entry, made of the default if there is none."""
        self.asked.add(name)
        return super().setdefault(name, default)

    def update(self, *others: Any, **entries: Any) -> None:
        """Set entries one by one."""
        for name, entry in dict(*others, **entries).items():
            self[name] = entry

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last entry."""
        self.scanned = self.handed = self.removed = True
        return super().popitem()

    def clear(self) -> None:
        """Remove all entries."""
        self.scanned = self.handed = self.removed = True
        super().clear()

    def __iter__(self) -> Iterator[str]:
        self.scanned = True
        return super().__iter__()

    def keys(self) -> Any:
        """Return all ids."""
        self.scanned = True
        return super().keys()

    def items(self) -> Any:
        """Return all ids with their entries."""
        self.scanned = self.handed = True
        return super().items()

    def values(self) -> Any:
        """Return all entries."""
        self.scanned = self.handed = True
        return super().values()


class ObjectTable:
    """One table: its objects as they are now, and the JSON text of each at the start.

    Args:
        rows: the objects at the start.
        kind: type of an entry.

    Attributes:
        rows: the table that the tools work with.
        base: JSON of each entry at the start, by id.
    """

    def __init__(self, rows: Mapping[str, Any], kind: Any) -> None:
        self._kind, self._type = kind, TypeAdapter[Any](kind)
        self.rows = TrackedRows(rows)
        self.base = {name: self._dump(entry) for name, entry in rows.items()}
        self._known = dict(self.base)  # text of each entry as it was before the call
        self._foreign = set[str]()  # ids of entries that are not those of the start
        self._moved = False  # the order of entries may be another than at the start

    def put_in(self, entries: Mapping[str, Any]) -> None:
        """Put in the objects of an episode; None: the episode deleted this one."""
        self._foreign |= entries.keys()
        for name, entry in entries.items():
            if entry is None:
                dict.pop(self.rows, name, None)
                self._known.pop(name, None)
                self._moved = True  # if the call makes it anew, it stands at the end
            else:
                dict.__setitem__(self.rows, name, entry)
                self._known[name] = self._dump(entry)

    def made(self, value: Any) -> Any:
        """Return the object of a JSON value; a value that the types refuse, as a tool may leave, stays as it is."""
        try:
            return self._type.validate_json(json.dumps(value))
        except ValidationError:
            return unchecked_object(self._kind, value)

    def replace(self, rows: Mapping[str, Any]) -> None:
        """Take over the entries of a table that a tool put in the place of this one."""
        entries = dict(rows)
        dict.clear(self.rows)
        dict.update(self.rows, entries)
        self.rows.scanned = self.rows.handed = self._moved = True

    def changes(self, *, walks: bool) -> dict[str, bytes | None]:
        """Return ids that differ from before the call, with the JSON text now, or None for an entry that is gone.

        Args:
            walks: compare all entries if the call got all of them, not only those that it asked for by id.
        """
        self._moved |= self.rows.removed
        everything = walks and self.rows.handed
        ids = dict.keys(self.rows) if everything else self._asked()
        texts = {name: self._dump(dict.__getitem__(self.rows, name)) for name in ids}
        gone = [name for name in (self._known if everything else self.rows.asked) if name not in self.rows]
        found: dict[str, bytes | None] = dict.fromkeys(sorted(name for name in gone if name in self._known))
        found |= {name: text for name, text in texts.items() if text != self._known.get(name)}
        self._foreign |= found.keys()
        return found

    def read(self, named: Set[str], told: Set[str] = frozenset()) -> list[str]:
        """Return ids that the call asked for; if it saw all ids, those that are `named`, or `told` by its result.

        A result that tells more than `MOST_TOLD` entries is a list, and picks none of them.
        """
        asked = self._asked()
        if not self.rows.scanned:
            return sorted(asked)
        shown = [name for name in (dict.keys(self.rows) if self.rows.handed else asked) if name in told]
        return sorted({*named} & {*asked} | {*(shown if len(shown) <= MOST_TOLD else ())})

    def holders(self, part: bytes) -> list[str]:
        """Return ids of the entries that hold this JSON, if the call got all entries."""
        return [name for name, text in self._known.items() if part in text] if self.rows.handed else []

    def now(self, name: str) -> Any:
        """Return the object of an id as it is now, or None if there is none; this is no asking."""
        return dict.get(self.rows, name)

    def put_back(self) -> None:
        """Make all entries those of the start again, in their order."""
        for name in self._foreign:
            text = self.base.get(name)
            if text is None:
                dict.pop(self.rows, name, None)
                self._known.pop(name, None)
                continue
            self._moved |= name not in self.rows
            dict.__setitem__(self.rows, name, self._type.validate_json(text))
            self._known[name] = text
        self._foreign = set()
        if self._moved:
            entries = {name: dict.__getitem__(self.rows, name) for name in self.base}
            dict.clear(self.rows)
            dict.update(self.rows, entries)
            self._moved = False

    def _asked(self) -> list[str]:
        """Return asked ids of entries that exist, in the order of the table."""
        there = [name for name in self.rows.asked if name in self.rows]
        if len(there) < 2:
            return there
        return [name for name in dict.keys(self.rows) if name in self.rows.asked]

    def _dump(self, entry: Any) -> bytes:
        return self._type.dump_json(entry, warnings=False)


@contextmanager
def holding(tables: Mapping[str, ObjectTable], own: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Let the tables hold the objects of one episode for one call.

    Args:
        tables: by name.
        own: {table: {id: object, or None if the episode deleted it}} that differ from the start.
    """
    try:
        for name, entries in own.items():
            tables[name].put_in(entries)
        for table in tables.values():
            table.rows.begin()
        yield
    except BaseException:
        for table in tables.values():
            table.changes(walks=True)  # finds what must be put back after a call that broke off
        raise
    finally:
        for table in tables.values():
            table.put_back()


def unchecked_object(kind: Any, value: Any) -> Any:
    """Return a JSON value in objects of the type's classes, without a check of what they allow."""
    if inspect.isclass(kind) and issubclass(kind, BaseModel) and isinstance(value, dict):
        fields = {name: field.annotation for name, field in kind.model_fields.items()}
        return kind.model_construct(**{name: unchecked_object(fields.get(name), each) for name, each in value.items()})
    inner = get_args(kind)
    if get_origin(kind) is dict and isinstance(value, dict):
        return {name: unchecked_object(inner[1], each) for name, each in value.items()}
    if get_origin(kind) in (list, set, tuple) and isinstance(value, list):
        return [unchecked_object(inner[0], each) for each in value]
    if get_origin(kind) in (Union, UnionType) and isinstance(value, dict | list):
        for one in inner:
            try:
                return TypeAdapter(one).validate_python(value)
            except ValidationError:
                continue
        return unchecked_object(next((one for one in inner if one is not type(None)), None), value)
    return value
