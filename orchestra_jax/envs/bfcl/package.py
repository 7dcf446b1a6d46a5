"""Files of the package `bfcl-eval`: four sets of 200 tasks, and the descriptions of the APIs' tools.

Only files are read here. A task's menu is all functions of its APIs, less those that the task leaves out.
"""

import ast
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import ToolCall, ToolSpec

PACKAGE = "bfcl_eval"
SETS = ("base", "miss_func", "miss_param", "long_context")
MISSING = "BFCL needs the package bfcl-eval: run pip install --no-deps bfcl-eval mpmath"
# Class of an API -> name of its module and of the file of its functions.
APIS: Mapping[str, str] = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


@dataclass(frozen=True)
class BFCLScenario:
    """One task.

    Attributes:
        id: such as "multi_turn_base_0".
        kind: name of its set.
        number: its place in the set; the same number in another set is a variant of the same scenario.
        words: the user's words by turn; None: the user brings the tools that were missing until then.
        golden: the calls that answer each turn, with their arguments by name.
        apis: classes of the APIs.
        state: initial state of each API.
        tools: all functions, also those that come later.
        late: names of the functions that come with a turn, by its number.
    """

    id: str
    kind: str
    number: int
    words: tuple[str | None, ...]
    golden: tuple[tuple[ToolCall, ...], ...]
    apis: tuple[str, ...]
    state: Mapping[str, Any]
    tools: tuple[ToolSpec, ...]
    late: Mapping[int, tuple[str, ...]]

    def offered(self, turn: int) -> tuple[ToolSpec, ...]:
        """Return the menu in a turn of the user, counted from 0."""
        hidden = {name for start, names in self.late.items() if start > turn for name in names}
        return tuple(spec for spec in self.tools if spec.name not in hidden)


def folder() -> Path | None:
    """Return the folder of the package without importing it, or None if it is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    return Path(next(iter(found.submodule_search_locations))) if found and found.submodule_search_locations else None


def scenarios(kind: str) -> Sequence[BFCLScenario]:
    """Return the tasks of one of `SETS`, in their order.

    Raises:
        ConfigError: the package is not installed, or holds something else.
    """
    root = folder()
    if root is None:
        raise ConfigError(f"{MISSING}.")
    name = f"BFCL_v4_multi_turn_{kind}.json"
    try:
        rows, answers = _lines(root / "data" / name), _lines(root / "data" / "possible_answer" / name)
        golden = {row["id"]: row["ground_truth"] for row in answers}
        return [_scenario(root, kind, row, golden[row["id"]]) for row in rows]
    except (OSError, LookupError, TypeError, ValueError, SyntaxError) as error:
        raise ConfigError(
            f"The bfcl-eval in {root} is not one that we read: {type(error).__name__}: {error}."
        ) from error


def _scenario(root: Path, kind: str, row: Mapping[str, Any], golden: Sequence[Sequence[str]]) -> BFCLScenario:
    left_out = set(row.get("excluded_function") or ())
    tools = [spec for api in row["involved_classes"] for spec in _functions(root, api) if spec.name not in left_out]
    orders = {spec.name: tuple(spec.parameters["properties"]) for spec in tools}
    words = tuple("\n".join(message["content"] for message in turn) or None for turn in row["question"])
    if len(words) != len(golden) or not words[0]:
        raise ValueError(f"{row['id']} has {len(words)} turns and answers to {len(golden)}")
    return BFCLScenario(
        id=row["id"],
        kind=kind,
        number=int(row["id"].rpartition("_")[2]),
        words=words,
        golden=tuple(tuple(_call(text, orders) for text in turn) for turn in golden),
        apis=tuple(row["involved_classes"]),
        state=row["initial_config"],
        tools=tuple(tools),
        late={int(turn): tuple(names) for turn, names in (row.get("missed_function") or {}).items()},
    )


def _call(text: str, orders: Mapping[str, Sequence[str]]) -> ToolCall:
    """Return a golden call, which is Python with literals for arguments, as a call by name; nothing is evaluated."""
    call = ast.parse(text.strip(), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{text!r} is no call")
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    places = dict(zip(orders.get(call.func.id, ()), call.args, strict=False))
    return ToolCall(call.func.id, {name: ast.literal_eval(value) for name, value in {**places, **named}.items()})


@cache
def _functions(root: Path, api: str) -> tuple[ToolSpec, ...]:
    found = []
    for row in _lines(root / "data" / "multi_turn_func_doc" / f"{APIS[api]}.json"):
        parameters = {"required": [], **_schema(row["parameters"]), "additionalProperties": False}
        spec = ToolSpec(row["name"], row["description"], parameters)
        check_spec(spec)
        found.append(spec)
    return tuple(found)


def _schema(node: Any) -> Any:
    """Return a schema with JSON schema's names of types in the place of the package's."""
    if isinstance(node, list):
        return [_schema(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: _schema(value) for key, value in node.items()}
    if isinstance(kind := made.get("type"), str):
        made["type"] = _TYPES.get(kind, kind)
        if made["type"] is None:
            del made["type"]
    return made


def _lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_bytes().splitlines() if line.strip()]
