"""Copy on write for other people's classes: a table of objects that many episodes share.

Tools that were written elsewhere change objects in place. A `Rows` takes the place of such a table in an episode: it
looks like a dict, hands out copies, and knows which entries a call asked for. What changed goes into a `State`, so that
hashes and the three criteria are those of every world.
"""

import copy
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any

from orchestra_jax.envs.database.state import Key, State

_ABSENT = object()


class Rows(dict[str, Any]):
    """One table of one episode over the shared objects `base`, which never change.

    An entry is copied when a call first asks for it, and again in the next call, so that a call can be undone. Who
    walks through the table in a call that only reads is shown what is shared; a call that `writes` gets copies.

    Attributes:
        writes: whether the call under way may change what it finds on a walk.
        asked: ids that the call asked for one by one.
    """

    def __init__(self, base: Mapping[str, Any], duplicate: Callable[[Any], Any] = copy.deepcopy) -> None:
        super().__init__(base)
        self._duplicate, self._before = duplicate, dict[str, Any]()
        self.writes, self.asked = True, set[str]()

    def begin(self, *, writes: bool) -> None:
        """Starts a call: whatever was there before is kept."""
        self.writes, self.asked, self._before = writes, set(), {}

    def undo(self) -> None:
        """Everything is as it was at `begin`."""
        for name, entry in self._before.items():
            if entry is _ABSENT:
                super().pop(name, None)
            else:
                super().__setitem__(name, entry)
        self.begin(writes=self.writes)

    @property
    def handed_out(self) -> frozenset[str]:
        """Ids of what this call may have changed."""
        return frozenset(self._before)

    def peek(self, name: str) -> Any:
        """The entry as it is, for who only looks; None: there is none."""
        return super().get(name)

    def __getitem__(self, name: str) -> Any:
        if name in self:
            self.asked.add(name)
        return self._mine(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401  this is that `get`

    def __setitem__(self, name: str, entry: Any) -> None:
        self._keep(name)
        self.asked.add(name)
        super().__setitem__(name, entry)

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def pop(self, name: str, *default: Any) -> Any:
        if name in self:
            self._keep(name)
            self.asked.add(name)
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def update(self, *others: Any, **entries: Any) -> None:
        for name, entry in dict(*others, **entries).items():
            self[name] = entry

    def clear(self) -> None:
        for name in list(self):
            self.pop(name)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return dict(self._walk()).items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return dict(self._walk()).values()

    def _walk(self) -> Iterator[tuple[str, Any]]:
        return ((name, self._mine(name) if self.writes else super(Rows, self).__getitem__(name)) for name in list(self))

    def _mine(self, name: str) -> Any:
        entry = super().__getitem__(name)
        if name in self._before:
            return entry
        self._before[name] = entry
        entry = self._duplicate(entry)
        super().__setitem__(name, entry)
        return entry

    def _keep(self, name: str) -> None:
        if name not in self._before:
            self._before[name] = super().get(name, _ABSENT)


def take_over(state: State, tables: Mapping[str, Rows], dump: Callable[[Any], Any]) -> set[Key]:
    """Writes what a call changed into the state, and gives the entries whose content is another than before it.

    Args:
        state: over a `Database` of the dumped objects.
        tables: after the call.
        dump: makes JSON of an object.
    """
    handed = {(table, name): rows.peek(name) for table, rows in tables.items() for name in rows.handed_out}
    before = {key: state.entry_digest(key) for key in handed}
    gone = frozenset(key for key, entry in handed.items() if entry is None)
    state.write({key: dump(entry) for key, entry in handed.items() if key not in gone}, gone)
    return {key for key in handed if state.entry_digest(key) != before[key]}
