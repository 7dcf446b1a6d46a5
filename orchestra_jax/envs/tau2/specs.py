"""The package's tools as the policy sees them, read from their signatures and docstrings."""

import inspect
import re
from collections.abc import Callable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from orchestra_jax.tools.signatures import described
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import ToolSpec

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
