"""JSON schemas of tools: for chat templates, and to check the arguments of calls."""

import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import NoneType
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match

from orchestra_jax.types import ToolSpec

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    NoneType: "null",
}


def to_openai(spec: ToolSpec, *, show_price: bool = True) -> dict[str, Any]:
    """Return the tool as the OpenAI API and Qwen3's chat template expect it.

    With `show_price` the menu's price and latency, where it has them, end the description: the policy reads them.
    """
    note = price_note(spec) if show_price else ""
    description = f"{spec.description} {note}" if note else spec.description
    function = {"name": spec.name, "description": description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def price_note(spec: ToolSpec) -> str:
    """Return price per call, latency and place in words, e.g. "Price: $0.002 per call. Latency: 3 s. Runs locally."."""
    parts = []
    if spec.price_usd is not None:
        parts.append(f"Price: ${spec.price_usd:.6g} per call." if spec.price_usd else "Price: free.")
    if spec.latency_s is not None:
        parts.append(f"Latency: {spec.latency_s:.6g} s.")
    if parts and spec.local:
        parts.append("Runs locally.")
    return " ".join(parts)


def validate_arguments(spec: ToolSpec, arguments: Mapping[str, Any]) -> str | None:
    """Return None if `arguments` fit the tool's schema, else one sentence that the policy reads as the observation."""
    if not isinstance(arguments, Mapping):
        return f"The arguments of {spec.name} must be a JSON object, not {_json_type(arguments)}."
    validator = _validator(_key(spec.parameters))
    instance = arguments if isinstance(arguments, dict) else dict(arguments)
    error = best_match(validator.iter_errors(instance))
    return None if error is None else _sentence(spec, error)


def check_spec(spec: ToolSpec) -> None:
    """Raise ValueError, one sentence, if the tool cannot be offered to a policy."""
    if not _NAME.fullmatch(spec.name):
        raise ValueError(f"Tool name {spec.name!r} must be 1 to 64 letters, digits, '_' or '-'.")
    if not spec.description.strip():
        raise ValueError(f"Tool {spec.name!r} has no description; write one paragraph of plain text.")
    for label, value in (("price_usd", spec.price_usd), ("latency_s", spec.latency_s)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"Tool {spec.name!r} has {label}={value}; it must be finite and not negative.")
    parameters = spec.parameters
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise ValueError(f"The parameters of tool {spec.name!r} must be a JSON schema with type 'object'.")
    try:
        Draft202012Validator.check_schema(parameters)
        _key(parameters)
    except SchemaError as error:
        where = "/".join(map(str, error.path)) or "the top level"
        raise ValueError(
            f"The parameters of tool {spec.name!r} are no JSON schema, at {where}: {error.message}."
        ) from None
    except TypeError as error:
        raise ValueError(f"The parameters of tool {spec.name!r} are not JSON: {error}.") from None
    unknown = [name for name in parameters.get("required", ()) if name not in parameters.get("properties", {})]
    if unknown:
        raise ValueError(f"Tool {spec.name!r} requires the parameter {unknown[0]!r} but does not define it.")


def _key(parameters: Mapping[str, Any]) -> str:
    # The text, not the object's identity, is the key: menus rebuild equal schemas, and identities are reused.
    return json.dumps(parameters if isinstance(parameters, dict) else dict(parameters))


@lru_cache(maxsize=2048)
def _validator(key: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(key))


def _sentence(spec: ToolSpec, error: ValidationError) -> str:
    where = ".".join(map(str, error.absolute_path))
    subject = f"Argument {where!r} of {spec.name}" if where else f"The arguments of {spec.name}"
    match error.validator:
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            return f"{subject} lack the required {', '.join(repr(name) for name in missing)}."
        case "type":
            kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
            return f"{subject} must be of type {' or '.join(kinds)}, not {_json_type(error.instance)}."
        case "enum":
            return f"{subject} must be one of {json.dumps(error.validator_value)}."
        case _:
            message = error.message if len(error.message) <= 300 else error.message[:300] + "..."
            return f"{subject} are not valid: {message}." if not where else f"{subject} is not valid: {message}."


def _json_type(value: Any) -> str:
    return TYPES.get(type(value), type(value).__name__)
