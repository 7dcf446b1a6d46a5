"""A domain that all episodes share, and one episode in it: the package's own tools on the package's own objects.

An airline's, a shop's and a bank's tables are those of the start between two calls (`database.objects`); a telephone
company's content is small, and copied whole for each episode. A call that fails keeps what it wrote before: the
official scorer keeps such writes too, of the golden calls as of the policy's. The bank keeps a log of its unlocked
tools in its own content. As in the authors' code a tool that only looks is logged where a golden call names it, and
numbers in the arguments of such a tool are all floats, so that "33" and "33.0" give the same ids; so is the income in
an application for a card.
"""

import copy
import inspect
import json
import re
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from orchestra_jax.envs.database.objects import ObjectTable, holding
from orchestra_jax.envs.database.state import Database, Key, State
from orchestra_jax.envs.tau2 import package
from orchestra_jax.envs.tau2.package import HELD, LAYOUTS, Side
from orchestra_jax.envs.tau2.tasks import AGENT, UNLOCKED, USER, Assertion, Tau2Scenario, data_folder
from orchestra_jax.tools.signatures import described
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import ToolCall, ToolResult, ToolSpec

_SECTION = re.compile(r"^(?:Args|Returns|Raises):$", re.MULTILINE)


def spec_of(name: str, function: Callable[..., Any]) -> ToolSpec:
    """Return the specification of a tool of the package.

    Raises:
        ValueError, TypeError, LookupError: it cannot be offered to a policy.
    """
    text = inspect.cleandoc(function.__doc__ or "")
    parts = dict(zip(_SECTION.findall(text), _SECTION.split(text)[1:], strict=True))
    told, hints = described(parts.get("Args:", "")), get_type_hints(function)
    properties, required = dict[str, Any](), list[str]()
    for argument, parameter in inspect.signature(function).parameters.items():
        properties[argument] = _schema(hints[argument])
        if argument in told:
            properties[argument]["description"] = told[argument]
        if parameter.default is parameter.empty:
            required.append(argument)
        else:
            properties[argument]["default"] = parameter.default
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    # The sections on results and errors are left out: the policy reads both when it calls.
    spec = ToolSpec(name, _SECTION.split(text)[0].strip(), parameters)
    check_spec(spec)
    return spec


def _schema(hint: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter

    found = TypeAdapter(_narrow(hint)).json_schema()
    return _plain(found, found.pop("$defs", {}))


def _narrow(hint: Any) -> Any:
    """Return the type without alternatives that say nothing: any dict beside a model, any text beside an enum."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list:
        return list[_narrow(inner[0])]  # type: ignore[misc]
    if origin not in (Union, UnionType):
        return hint
    told = [each for each in inner if isinstance(each, type) and (hasattr(each, "model_fields") or _enumerates(each))]
    kept = [each for each in inner if each in told or each is NoneType] if told else inner
    return Union[tuple(map(_narrow, kept))]  # noqa: UP007  the parts are known when it runs


def _enumerates(kind: type) -> bool:
    return issubclass(kind, Enum)


def _plain(node: Any, known: Mapping[str, Any]) -> Any:
    """Return the schema without references and titles."""
    if isinstance(node, list):
        return [_plain(each, known) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _plain({**known[node["$ref"].rpartition("/")[2]], **rest}, known)
    return {
        key: {name: _plain(each, known) for name, each in value.items()}
        if key == "properties"
        else _plain(value, known)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
    }


HAND_OVER = "transfer_to_human_agents"
_READS = ("get_", "find_", "search_", "list_", "check_", "can_", "calculate", "grep", HAND_OVER)
_UNLOCKED_READS = ("get_", "initial_transfer_to_human_agent_", "emergency_credit_bureau_incident_transfer_")
_LOG = "agent_discoverable_tools"  # the table of the bank's unlocked tools that were called
_WITH_JSON = (UNLOCKED, "call_discoverable_user_tool")  # their `arguments` are a JSON text
_APPLICATION = "apply_for_credit_card"
_FILES = {"telecom": ("db.toml", "user_db.toml")}  # the others have db.json
_PREFIX = "banking_"  # the package's; the bank's policy names the tools without it
_SYSTEM = (
    "You help customers under the policy below. In each turn either write to the customer or call tools, not both.\n\n"
    "<policy>\n{policy}\n</policy>"
)


class Tau2Domain:
    """One domain with the data of one source.

    Attributes:
        name: of the domain.
        functions, specs: the tools of each side.
        system: the text that the policy is told.
        tables: by name; none if the content is copied whole.
        database: the tables at the start.
        lock: held while the tables hold the objects of one episode.

    Raises:
        ConfigError: the package or the data is not there, or has another form.
    """

    def __init__(self, name: str, source: str, original: str | None = None) -> None:
        self.name, layout, root = name, LAYOUTS[name], package.needed()
        self.functions: dict[str, dict[str, Callable[..., Any]]] = {AGENT: {}, USER: {}}
        self.specs: dict[str, tuple[ToolSpec, ...]] = {AGENT: (), USER: ()}
        self.kinds: dict[str, Any] = {}  # the class that holds the data of each side
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
        self._whole = name == "telecom"
        names = () if self._whole else type(self._bases[0]).model_fields
        self.tables = {name: _table(self._bases[0], name) for name in names}
        self.database = Database(
            {name: {row: json.loads(text) for row, text in table.base.items()} for name, table in self.tables.items()},
            exact=True,  # the official scorer hashes the text
        )
        self.synchronise = package.load(root, "telecom.environment", "Environment") if self._whole else None
        self.lock = threading.Lock()

    def _read_side(self, who: str, side: Side) -> None:
        root = package.needed()
        self.kinds[who] = package.load(root, *side.holder)
        made = list(package.load(root, *side.tools))
        if self.name == "banking" and who == AGENT:
            made.append(package.load(root, "banking.tools", "banking_grep"))
        named = {make.__name__.removeprefix(_PREFIX): make() for make in made}
        self.functions[who] = named
        self.specs[who] = tuple(spec_of(name, function) for name, function in named.items())

    def open(self, scenario: Tau2Scenario) -> "Tau2Session":
        """Return a fresh episode of a task."""
        databases = [copy.deepcopy(base) for base in self._bases] if self._whole else [self._with_tables()]
        objects = {kind.__name__: kind(instance=who, initialized=True) for who, kind in self.kinds.items()}
        for made, database in zip(objects.values(), [*databases, databases[0]], strict=False):
            made.db = database
        session = Tau2Session(self, objects, scenario.unlocked)
        session.begin(copy.deepcopy(scenario.start) if scenario.start else {})
        return session

    def _with_tables(self) -> Any:
        """Return the database with the shared tables in the place of its own."""
        base = self._bases[0]
        found = base.model_copy()
        for name, table in self.tables.items():
            own = getattr(base, name)
            if isinstance(own, dict):
                found.__dict__[name] = table.rows
            else:
                found.__dict__[name] = holder = own.model_copy()
                holder.__dict__["data"] = table.rows
        return found


class Tau2Session:
    """One episode: everything that both sides can do, and what they changed.

    Attributes:
        asked: the calls of both sides, also those that failed.
        state: the entries that differ from the shared database.
    """

    def __init__(self, domain: Tau2Domain, objects: Mapping[str, Any], logged: Set[str] = frozenset()) -> None:
        self._domain, self._objects, self._logged = domain, objects, logged
        self._own: dict[str, dict[str, Any]] = {}  # by table and id: objects of this episode; None: deleted
        self.state, self.asked = State(domain.database), list[ToolCall]()

    def begin(self, start: Mapping[str, Any]) -> None:
        """Bring about the beginning of a task."""
        data = (start.get("initialization_data") or {}).get("agent_data") or {}
        with self._acting(writes=True):
            for name, change in data.items():
                _merge(self._domain.tables[name].rows, change.get("data", change))
            for each in start.get("initialization_actions") or ():
                self._method(each["env_type"], each["func_name"])(**each["arguments"])
                self._synchronise()

    def call(self, who: str, call: ToolCall) -> ToolResult:
        """Return the result of a call; whatever the domain raises is an error that the caller reads."""
        self.asked.append(call)
        function = self._domain.functions[who].get(call.name)
        if function is None:
            return ToolResult(f"Unknown tool {call.name!r}.", is_error=True, refused=True)
        with self._acting(writes=not call.name.startswith(_READS)):
            held = HELD.set(self._objects)
            try:
                with self._log_of(call):
                    result = ToolResult(str(_finished(function(**_arguments(call)))))
            except Exception as error:
                result = ToolResult(f"Error: {str(error) or type(error).__name__}", is_error=True)
            finally:
                HELD.reset(held)
            self._synchronise()
        return result

    @contextmanager
    def _log_of(self, call: ToolCall) -> Iterator[None]:
        """Take an unlocked tool that only looks, and that no golden call names, out of the log again."""
        name = str(call.arguments.get("agent_tool_name"))
        if call.name != UNLOCKED or name in self._logged or not name.startswith(_UNLOCKED_READS):
            yield
            return
        log = self._domain.tables[_LOG].rows
        before = set(log)
        yield
        for row in set(log) - before:
            del log[row]

    def holds(self, assertion: Assertion) -> bool:
        """Return whether the domain answers as it should."""
        with self._acting(writes=False):
            answer = self._method(assertion.who, assertion.call.name)(**assertion.call.arguments)
        return bool(answer == assertion.value)

    @contextmanager
    def _acting(self, *, writes: bool) -> Iterator[None]:
        """Let the domain's tables hold this episode's entries, and keep what is changed in them."""
        with self._domain.lock, holding(self._domain.tables, self._own):
            yield
            changes = dict[Key, Any]()
            for name, table in self._domain.tables.items():
                for row, text in table.changes(walks=writes).items():
                    self._own.setdefault(name, {})[row] = table.now(row)
                    changes[name, row] = None if text is None else json.loads(text)
            self.state.write(changes)

    def _method(self, who: str, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._objects[self._domain.kinds[who].__name__], name)
        return method

    def _synchronise(self) -> None:
        """Let what one side did reach the other: the phone learns of its line, the bill of its payment."""
        if self._domain.synchronise is not None:
            agent, user = self._objects.values()
            self._domain.synchronise(user, agent)


def _table(database: Any, name: str) -> ObjectTable:
    """Return a table of the package's, which is a dict by id or has one in `data`."""
    table, hint = getattr(database, name), type(database).model_fields[name].annotation
    if not isinstance(table, dict):
        table, hint = table.data, type(table).model_fields["data"].annotation
    return ObjectTable(table, get_args(hint)[1])


def _arguments(call: ToolCall) -> dict[str, Any]:
    """Return a copy of the arguments, as the tool takes them."""
    found = copy.deepcopy(dict(call.arguments))
    if call.name in _WITH_JSON and isinstance(found.get("arguments"), str):
        with suppress(ValueError):  # the tool says that it is no JSON
            found["arguments"] = json.dumps(json.loads(found["arguments"], parse_int=float))
    if call.name == _APPLICATION:
        with suppress(KeyError, TypeError, ValueError):  # the tool says what is missing
            found["annual_income"] = float(found["annual_income"])
    return found


def _finished(coroutine: Coroutine[Any, None, Any]) -> Any:
    """Return the result of a tool; the package's tools wait for nothing."""
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
