"""A domain as all episodes share it, and one episode in it: the package's own tools on copies of what they touch.

The shared objects never change. An airline's tables and a bank's are copied entry by entry when a call asks for them
(`database.objects`); a telephone company's are small, and copied whole. Nothing that a call wrote before it failed is
taken back: the official scorer keeps such writes, in what the golden calls leave as in what the policy leaves.
"""

import copy
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from orchestra_jax.envs.database.objects import Rows, take_over
from orchestra_jax.envs.database.state import Database, State
from orchestra_jax.envs.tau2 import package
from orchestra_jax.envs.tau2.package import HELD, LAYOUTS, Side
from orchestra_jax.envs.tau2.specs import spec_of
from orchestra_jax.envs.tau2.tasks import AGENT, USER, Assertion, data_folder
from orchestra_jax.types import ToolCall, ToolResult, ToolSpec

HAND_OVER = "transfer_to_human_agents"
_READS = ("get_", "find_", "search_", "list_", "check_", "can_", "calculate", "grep", HAND_OVER)
_FILES = {"telecom": ("db.toml", "user_db.toml")}  # of the others: db.json
_PREFIX = "banking_"  # of the package's own: the bank's policy names its tools without
_SYSTEM = (
    "You help customers under the policy below. In each turn either write to the customer or call tools, not both.\n\n"
    "<policy>\n{policy}\n</policy>"
)


class World:
    """One domain of one source.

    Attributes:
        name: of the domain.
        specs: by side: its tools.
        system: what the policy is told.

    Raises:
        ConfigError: the package or the data is not there, or has another form.
    """

    def __init__(self, name: str, source: str, original: str | None = None) -> None:
        self.name, layout, root = name, LAYOUTS[name], package.needed()
        self.functions: dict[str, dict[str, Callable[..., Any]]] = {AGENT: {}, USER: {}}
        self.specs: dict[str, tuple[ToolSpec, ...]] = {AGENT: (), USER: ()}
        self._kinds: dict[str, Any] = {}
        for who, side in ((AGENT, layout.agent), (USER, layout.user)):
            if side is not None:
                self._read_side(who, side)
        place = data_folder(name, source, original)
        self.system = _SYSTEM.format(policy=_policy(name, place))
        files = _FILES.get(name, ("db.json",))
        self._bases = [
            package.load(root, *kind).model_validate(package.read(place, file))
            for kind, file in zip(layout.database, files, strict=True)
        ]
        # A telephone company's content is never compared as a whole: its tasks ask questions about it.
        self.whole = name == "telecom"
        self.tables = {} if self.whole else {key: self._table(self._bases[0], key) for key in self._names()}
        self.database = Database({key: {n: dump(row) for n, row in rows.items()} for key, rows in self.tables.items()})
        self._sync = package.load(root, "telecom.environment", "Environment") if self.whole else None

    def _read_side(self, who: str, side: Side) -> None:
        root = package.needed()
        self._kinds[who] = package.load(root, *side.holder)
        made = list(package.load(root, *side.tools))
        if self.name == "banking" and who == AGENT:
            made.append(package.load(root, "banking.tools", "banking_grep"))
        named = {make.__name__.removeprefix(_PREFIX): make() for make in made}
        self.functions[who] = named
        self.specs[who] = tuple(spec_of(name, function) for name, function in named.items())

    def _names(self) -> Sequence[str]:
        return list(type(self._bases[0]).model_fields)

    def _table(self, database: Any, name: str) -> dict[str, Any]:
        table = getattr(database, name)
        return table if isinstance(table, dict) else table.data

    def open(self, start: Mapping[str, Any] | None = None) -> "Desk":
        """A fresh episode.

        Args:
            start: `initial_state` of a task; it is not changed.
        """
        tables = {name: Rows(rows, _duplicate) for name, rows in self.tables.items()}
        databases = [copy.deepcopy(base) for base in self._bases] if self.whole else [self._shared(tables)]
        objects = {kind.__name__: kind(instance=who, initialized=True) for who, kind in self._kinds.items()}
        for made, database in zip(objects.values(), [*databases, databases[0]], strict=False):
            made.db = database
        desk = Desk(self, objects, tables)
        for rows in tables.values():
            rows.begin(writes=True)
        desk.begin(copy.deepcopy(start) if start else {})
        return desk

    def _shared(self, tables: Mapping[str, Rows]) -> Any:
        """The database with these tables in the place of its own."""
        base = self._bases[0]
        found = base.model_copy()
        for name, rows in tables.items():
            own = getattr(base, name)
            if isinstance(own, dict):
                found.__dict__[name] = rows
            else:
                found.__dict__[name] = table = own.model_copy()
                table.__dict__["data"] = rows
        return found


class Desk:
    """One episode: everything both sides can do, and what they changed.

    Attributes:
        state: what differs from the shared database.
        failed: calls of the policy that the domain answered with an error.
    """

    def __init__(self, world: World, objects: Mapping[str, Any], tables: Mapping[str, Rows]) -> None:
        self._world, self._objects, self._tables = world, objects, tables
        self.state = State(world.database)

    def begin(self, start: Mapping[str, Any]) -> None:
        """Brings about the beginning of a task."""
        data = (start.get("initialization_data") or {}).get("agent_data") or {}
        for name, change in data.items():
            _merge(self._tables[name], change.get("data", change))
        for each in start.get("initialization_actions") or ():
            self._method(each["env_type"], each["func_name"])(**each["arguments"])
            self._synchronise()
        self._take_over()

    def call(self, who: str, call: ToolCall) -> ToolResult:
        """What a call gives; whatever the domain raises is an error that the caller reads."""
        function = self._world.functions[who].get(call.name)
        if function is None:
            return ToolResult(f"Unknown tool {call.name!r}.", is_error=True, refused=True)
        for rows in self._tables.values():
            rows.begin(writes=not call.name.startswith(_READS))
        held = HELD.set(self._objects)
        try:
            result = ToolResult(str(_finished(function(**copy.deepcopy(dict(call.arguments))))))
        except Exception as error:
            result = ToolResult(f"Error: {error or type(error).__name__}", is_error=True)
        finally:
            HELD.reset(held)
        self._synchronise()
        self._take_over()
        return result

    def holds(self, assertion: Assertion) -> bool:
        """Whether the domain answers as it should."""
        return bool(self._method(assertion.who, assertion.call.name)(**assertion.call.arguments) == assertion.value)

    def _method(self, who: str, name: str) -> Callable[..., Any]:
        kind = self._world._kinds[who].__name__
        return getattr(self._objects[kind], name)

    def _synchronise(self) -> None:
        """What one side did reaches the other: the phone learns of its line, the bill of its payment."""
        if self._world._sync is not None:
            agent, user = self._objects.values()
            self._world._sync(user, agent)

    def _take_over(self) -> None:
        if self._tables:
            take_over(self.state, self._tables, dump)


def dump(row: Any) -> Any:
    """An entry as JSON."""
    return row.model_dump(mode="json") if hasattr(row, "model_dump") else row


def _duplicate(row: Any) -> Any:
    return row.model_copy(deep=True) if hasattr(row, "model_copy") else copy.deepcopy(row)


def _finished(coroutine: Coroutine[Any, None, Any]) -> Any:
    """What a tool gives; the package's wait for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("a tool of the package waits for something")


def _merge(table: Any, changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        else:
            table[key] = value


def _policy(name: str, place: Any) -> str:
    if name == "telecom":
        parts = {"main_policy": "main_policy.txt", "tech_support_policy": "tech_support_manual.txt"}
        return "\n".join(f"<{tag}>\n{package.read(place, file)}\n</{tag}>" for tag, file in parts.items())
    if name == "banking":
        text = str(package.read(place / "prompts", "grep_only.md"))
        for part in sorted((place / "prompts" / "components").glob("*.md")):
            text = text.replace(f"{{{{component:{part.stem}}}}}", part.read_text("utf-8"))
        return text
    return str(package.read(place, "policy.txt" if (place / "policy.txt").is_file() else "policy.md"))
