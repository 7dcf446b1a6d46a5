"""The JSON schema of a function's arguments, read from its annotations and docstring."""

import inspect
import re
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    NoneType: "null",
}
_ARGUMENT = re.compile(r" {4}(\w+)(?: \([^)]*\))?: +(.*)")  # a line below "Args:"; one that goes on is indented deeper


def signature(function: Callable[..., Any], *, filled: type) -> tuple[str, dict[str, Any], str | None]:
    """Return a function's description, the JSON schema of its arguments, and the name of the argument to fill in.

    Args:
        function: annotated function; the first paragraph of its docstring is the description, "Args:" describes the
            arguments.
        filled: type of the argument that is no part of the schema.

    Raises:
        TypeError: an argument without a name or with a type that has no schema.
    """
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    told = described("\n".join(each for each in paragraphs if each.startswith("Args:")))
    hints, hidden = get_type_hints(function), None
    properties, required = dict[str, Any](), list[str]()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"Argument {name!r} of the tool {function.__name__!r} must be one that has a name.")
        if hints.get(name) is filled:
            hidden = name
            continue
        try:
            properties[name] = _typed(hints[name])
        except LookupError:
            raise TypeError(
                f"Argument {name!r} of the tool {function.__name__!r} needs one of these types: str, int, float, bool, "
                "Literal, list, dict, or one of them and None."
            ) from None
        if name in told:
            properties[name]["description"] = told[name]
        if parameter.default is parameter.empty:
            required.append(name)
        elif parameter.default is not None:
            properties[name]["default"] = parameter.default
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return " ".join(paragraphs[0].split()), parameters, hidden


def _typed(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of an annotation; raise LookupError if there is none."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        kinds = {TYPES[type(value)] for value in inner}
        return {"type": kinds.pop() if len(kinds) == 1 else sorted(kinds), "enum": list(inner)}
    if origin in (Union, UnionType):
        parts = [_typed(each) for each in inner]
        simple = all(part.keys() == {"type"} for part in parts)
        return {"type": [part["type"] for part in parts]} if simple else {"anyOf": parts}
    if origin is list:
        return {"type": "array", "items": _typed(inner[0])}
    return {"type": TYPES[origin or hint]}


def described(section: str) -> dict[str, str]:
    """Return the description of each argument in the lines below "Args:"."""
    found, name = dict[str, str](), ""
    for line in section.splitlines():
        if start := _ARGUMENT.fullmatch(line):
            name, found[start[1]] = start[1], start[2]
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found
