"""Tables of other people's objects that are as at the start between two calls. Runs in a worker of the sandbox.

The authors' tools change pydantic objects in place. What an episode changed is put in before a call, what the call
changed is read off after it by comparing texts, and everything is put back.
"""

import inspect
import json
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError


class Watched(dict[str, Any]):
    """A table of objects that remembers which ids were asked for, and whether somebody walked through it.

    Attributes:
        asked: ids that were looked up, set or removed one by one.
        scanned, handed, removed: somebody saw all ids, got all entries, removed one.
    """

    def __init__(self, rows: Mapping[str, Any]) -> None:
        super().__init__(rows)
        self.begin()

    def begin(self) -> None:
        """Forgets."""
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
        self.asked.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.asked.add(name)
        self.removed = True
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().setdefault(name, default)

    def update(self, *others: Any, **entries: Any) -> None:
        for name, entry in dict(*others, **entries).items():
            self[name] = entry

    def popitem(self) -> tuple[str, Any]:
        self.scanned = self.handed = self.removed = True
        return super().popitem()

    def clear(self) -> None:
        self.scanned = self.handed = self.removed = True
        super().clear()

    def __iter__(self) -> Iterator[str]:
        self.scanned = True
        return super().__iter__()

    def keys(self) -> Any:
        self.scanned = True
        return super().keys()

    def items(self) -> Any:
        self.scanned = self.handed = True
        return super().items()

    def values(self) -> Any:
        self.scanned = self.handed = True
        return super().values()


class Table:
    """One table: the objects that are in it now, and the text of each as it is at the start.

    Args:
        rows: at the start.
        kind: type of an entry.

    Attributes:
        rows: what the tools work with.
        base: JSON of each entry at the start, by id.
    """

    def __init__(self, rows: Mapping[str, Any], kind: Any) -> None:
        self._kind, self._type = kind, TypeAdapter[Any](kind)
        self.rows = Watched(rows)
        self.base = {name: self._dump(entry) for name, entry in rows.items()}
        self._known, self._moved = dict(self.base), False

    def put_in(self, changes: Mapping[str, Any]) -> None:
        """The entries of an episode; None: one that it deleted."""
        for name, entry in changes.items():
            if entry is None:
                dict.pop(self.rows, name, None)
                self._known.pop(name, None)
            else:
                made = self._load(json.dumps(entry))
                dict.__setitem__(self.rows, name, made)
                self._known[name] = self._dump(made)

    def replace(self, rows: Mapping[str, Any]) -> None:
        """Takes over what somebody put in the place of this table."""
        entries = dict(rows)
        dict.clear(self.rows)
        dict.update(self.rows, entries)
        self.rows.scanned = self.rows.handed = self._moved = True

    def changed(self, *, walks: bool) -> dict[str, bytes | None]:
        """Ids of what is no longer as it was put in, in the table's order, with the text now; None: it is gone.

        Args:
            walks: look at all entries where somebody got all of them.
        """
        self._moved |= self.rows.removed
        everything = walks and self.rows.handed
        now = {
            name: dict.__getitem__(self.rows, name) for name in (dict.keys(self.rows) if everything else self._asked())
        }
        texts = {name: self._dump(entry) for name, entry in now.items()}
        gone = [name for name in (self._known if everything else self.rows.asked) if name not in self.rows]
        return {
            **{name: None for name in sorted(gone) if name in self._known},
            **{name: text for name, text in texts.items() if text != self._known.get(name)},
        }

    def read(self, named: set[str]) -> list[str]:
        """Ids of the entries that the call asked for; of one that saw all ids, those that are `named`."""
        return sorted(name for name in self._asked() if not self.rows.scanned or name in named)

    def put_back(self, names: set[str]) -> None:
        """These entries are those of the start again, and all in their order."""
        for name in names:
            text = self.base.get(name)
            if text is None:
                dict.pop(self.rows, name, None)
                self._known.pop(name, None)
                continue
            self._moved |= name not in self.rows
            dict.__setitem__(self.rows, name, self._type.validate_json(text))
            self._known[name] = text
        if self._moved:
            entries = {name: dict.__getitem__(self.rows, name) for name in self.base}
            dict.clear(self.rows)
            dict.update(self.rows, entries)
            self._moved = False

    def _asked(self) -> list[str]:
        """Ids of entries that are there, in the order of the table where it is short to find."""
        there = [name for name in self.rows.asked if name in self.rows]
        if len(there) < 2:
            return there
        return [name for name in dict.keys(self.rows) if name in self.rows.asked]

    def _load(self, text: str) -> Any:
        """The object; a tool may have left what its own types refuse, which then stays as it is."""
        try:
            return self._type.validate_json(text)
        except ValidationError:
            return built(self._kind, json.loads(text))

    def _dump(self, entry: Any) -> bytes:
        return self._type.dump_json(entry, warnings=False)


def built(kind: Any, value: Any) -> Any:
    """The value in objects of the type's classes, without a look at what they allow."""
    if inspect.isclass(kind) and issubclass(kind, BaseModel) and isinstance(value, dict):
        fields = {name: field.annotation for name, field in kind.model_fields.items()}
        return kind.model_construct(**{name: built(fields.get(name), each) for name, each in value.items()})
    inner = get_args(kind)
    if get_origin(kind) is dict and isinstance(value, dict):
        return {name: built(inner[1], each) for name, each in value.items()}
    if get_origin(kind) in (list, set, tuple) and isinstance(value, list):
        return [built(inner[0], each) for each in value]
    if get_origin(kind) in (Union, UnionType) and isinstance(value, dict | list):
        for one in inner:
            try:
                return TypeAdapter(one).validate_python(value)
            except ValidationError:
                continue
        return built(next((one for one in inner if one is not type(None)), None), value)
    return value
