"""A domain of the authors' repository in the sandbox: a pydantic model of tables, and a class of tools on it."""

import importlib
import inspect
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from orchestra_jax.envs.database.objects import MOST_TOLD, ObjectTable, holding
from orchestra_jax.envs.database.state import WrongKind
from orchestra_jax.envs.toolscale import stand_ins

_CHECK_EVERY = 100  # one of so many calls of tools that may not write is compared whole
_SECTION = re.compile(r"(Args|Arguments|Returns|Raises|Notes?|Examples?):\s*")
_ARGUMENT = re.compile(r"\s+(\w+)(?: \([^)]*\))?:\s*(.*)")


class CloneTools:
    """The tools of one domain, as `database.workers.worker.Adapter` asks for them.

    Args:
        payload: the "domain", the "sources" of modules by name, the "tables" of the file, and the time, "now".
    """

    def __init__(self, payload: dict[str, Any]) -> None:
        stand_ins.install(payload["sources"])
        module = importlib.import_module(f"tau2.domains.{payload['domain']}.tools")
        self._kit = _last(module, stand_ins.ToolKitBase)
        model = get_type_hints(self._kit).get("db") or _last(
            importlib.import_module(f"tau2.domains.{payload['domain']}.data_model"), stand_ins.DB
        )
        self._db = model.model_validate(payload["tables"])
        self._tables = dict[str, ObjectTable]()
        for name, hint in get_type_hints(model).items():
            rows = self._db.__dict__.get(name)
            if get_origin(hint) is dict and isinstance(rows, dict):
                self._tables[name] = ObjectTable(rows, get_args(hint)[1])
        self._share()
        members = inspect.getmembers(self._kit, inspect.isfunction)
        tools = {name: function for name, function in members if hasattr(function, stand_ins.KIND)}
        self._kinds = {name: getattr(function, stand_ins.KIND) for name, function in tools.items()}
        in_order = sorted(tools.items(), key=lambda each: each[1].__code__.co_firstlineno)
        self._described = [_described(name, function) for name, function in in_order]
        self._harmless = 0
        for name in [name for name in sys.modules if name.startswith("tau2.domains.")]:  # after the types were read
            stand_ins.stop_clock(sys.modules[name], datetime.fromisoformat(payload["now"]))

    def describe(self) -> dict[str, Any]:
        tables = {
            name: {row: json.loads(text) for row, text in table.base.items()} for name, table in self._tables.items()
        }
        return {"tools": self._described, "tables": tables}

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        name, arguments = request["name"], request["arguments"]
        own = {
            table: {row: None if value is None else self._tables[table].made(value) for row, value in rows.items()}
            for table, rows in request["delta"].items()
        }
        random.seed(json.dumps([request["seed"], name, arguments], sort_keys=True))
        with holding(self._tables, own):
            failed, value = None, None
            try:
                value = to_jsonable_python(getattr(self._kit(self._db), name)(**arguments), fallback=str)
            except Exception as error:  # as for the authors, whatever a tool raises is what the policy reads
                failed = str(error) or type(error).__name__
            found = self._changes(self._kinds[name] == "write")
            if failed is not None:
                return {"text": f"Error: {failed}", "is_error": True, "refused": False}
            if found and self._kinds[name] != "write":
                raise WrongKind(
                    f"The tool {name!r} is of kind {self._kinds[name]}, but it changes {next(iter(found))}."
                )
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            read = self._read(arguments, value)
            return {"text": text, "is_error": False, "refused": False, "delta": found, "read": read}

    def _read(self, arguments: Any, value: Any) -> list[tuple[str, str]]:
        """Return the entries that the call read: by id, or of those that it walked through, those in its result.

        An entry is in the result by its id, or by an object in it that no other entry holds. A call without arguments
        lists entries, and picks none.
        """
        named, told = set(_texts(arguments)), set(_texts(value) if arguments else ())
        if isinstance(value, str) and arguments:
            with suppress(ValueError):
                value = json.loads(value)
                told |= set(_texts(value))
        tables = self._tables.items()
        read = {(name, row) for name, table in tables for row in table.read(named, told)}
        parts = list(islice(_parts(value, {row for _, row in read}), MOST_TOLD + 1)) if arguments else []
        for part in parts if len(parts) <= MOST_TOLD else ():
            holders = [(name, row) for name, table in tables for row in table.holders(part)]
            read |= set(holders if len(holders) == 1 else ())
        return sorted(read)

    def _changes(self, writes: bool) -> dict[str, dict[str, Any]]:
        """Return {table: {id: JSON value, or None if it is gone}} that the call changed."""
        for name, table in self._tables.items():
            if (now := self._db.__dict__.get(name)) is not table.rows:
                table.replace(now or {})
        self._share()
        self._harmless += not writes
        walks = writes or self._harmless % _CHECK_EVERY == 0
        found = {name: table.changes(walks=walks) for name, table in self._tables.items()}
        return {
            name: {row: None if text is None else json.loads(text) for row, text in changed.items()}
            for name, changed in found.items()
            if changed
        }

    def _share(self) -> None:
        """Let the tools find our tables in the database."""
        for name, table in self._tables.items():
            self._db.__dict__[name] = table.rows


def _last(module: Any, base: type) -> Any:
    """Return the last class of the module that derives from `base`."""
    found = [
        each
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, base) and each.__module__ == module.__name__
    ]
    if not found:
        raise ValueError(f"{module.__name__} defines no {base.__name__}")
    return found[-1]


def _described(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the specification of a tool, read off its signature and docstring."""
    description, about = _documented(inspect.cleandoc(function.__doc__ or ""))
    hints, properties, definitions, required = get_type_hints(function), dict[str, Any](), dict[str, Any](), list[str]()
    for each in list(inspect.signature(function).parameters.values())[1:]:
        schema = TypeAdapter(hints.get(each.name, Any)).json_schema(ref_template="#/$defs/{model}")
        definitions |= schema.pop("$defs", {})
        if each.default is each.empty:
            required.append(each.name)
        elif each.default is None and "anyOf" not in schema:
            schema = {"anyOf": [schema, {"type": "null"}]}
        elif each.default is not None:
            schema["default"] = to_jsonable_python(each.default)
        properties[each.name] = schema | ({"description": about[each.name]} if each.name in about else {})
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if definitions:
        parameters["$defs"] = definitions
    kind = getattr(function, stand_ins.KIND)
    return {"name": name, "description": description or name, "parameters": parameters, "kind": kind}


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """Return the description of the function in a docstring, and of its arguments by name."""
    said, about, section, last = list[str](), dict[str, str](), "", ""
    for line in text.splitlines():
        if start := _SECTION.fullmatch(line):
            section = start[1]
        elif not section:
            said.append(line.strip())
        elif section.startswith("Arg") and line.strip():
            if argument := _ARGUMENT.fullmatch(line):
                last, about[argument[1]] = argument[1], argument[2]
            elif last:
                about[last] += f" {line.strip()}"
    return " ".join(" ".join(said).split()), about


def _texts(value: Any) -> list[str]:
    """Return every text in a JSON value, names of fields included."""
    if isinstance(value, str):
        return [value]
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in _texts(part)]


def _parts(value: Any, known: Set[str]) -> Iterator[bytes]:
    """Yield the JSON of each object in a value that holds none of the known ids."""
    if isinstance(value, dict) and len(value) > 1 and known.isdisjoint(_texts(value)):
        yield json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _parts(part, known)
