"""JSON schemas of tools: for chat templates, and to check the arguments of calls.

A schema that says no more than a function's signature is used as it is; `foreign_schema` reads all others.
"""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from orchestra_jax.types import ToolSpec

_PLAIN = frozenset("type properties required additionalProperties items enum anyOf description default".split())
_PLAIN_BYTES, _PLAIN_LEVELS = 8 << 10, 8
_KINDS = frozenset("string integer number boolean array object null".split())


def one_text(name: str, about: str, **rule: Any) -> dict[str, Any]:
    """Return the schema of arguments that are a single text, with what the policy reads about it."""
    text = {"type": "string", **rule, "description": about}
    return {"type": "object", "properties": {name: text}, "required": [name]}


def to_openai(spec: ToolSpec, *, show_price: bool = True) -> dict[str, Any]:
    """Return the tool as the OpenAI API and Qwen3's chat template expect it.

    With `show_price` the menu's price and latency, where it has them, end the description: the policy reads them.
    """
    description = spec.description
    if show_price:
        from orchestra_jax.tools.price_note import price_note

        if note := price_note(spec):
            description += f" {note}"
    function = {"name": spec.name, "description": description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def validate_arguments(spec: ToolSpec, arguments: Mapping[str, Any]) -> str | None:
    """Return None if `arguments` fit the tool's schema, else one sentence that the policy reads as the observation."""
    error = None
    if isinstance(arguments, Mapping):
        error = checker(spec.parameters)(arguments if isinstance(arguments, dict) else dict(arguments))
        if error is None:
            return None
    from orchestra_jax.tools.argument_faults import fault_sentence

    return fault_sentence(spec, arguments, error)


def checker(schema: Mapping[str, Any]) -> Callable[[Any], ValidationError | None]:
    """Return the function that says how a value does not fit a JSON schema, in bounded work.

    Raises:
        TypeError, RecursionError: the schema is no JSON.
        ValueError: the schema cannot be used; the message is a clause that begins with the place of the fault.
    """
    # The text, not the object's identity, is the key: menus rebuild equal schemas, and identities are reused.
    return _checker(json.dumps(schema if isinstance(schema, dict) else dict(schema)))


@lru_cache(maxsize=2048)
def _checker(key: str) -> Callable[[Any], ValidationError | None]:
    schema = json.loads(key)
    if len(key) <= _PLAIN_BYTES and _is_plain(schema):
        validator = Draft202012Validator(schema)
        return lambda value: best_match(validator.iter_errors(value))
    from orchestra_jax.tools import foreign_schema

    foreign_schema.read(key)
    return lambda value: foreign_schema.fault(key, value)


def _is_plain(node: Any, levels: int = _PLAIN_LEVELS) -> bool:
    """Return whether a schema is correct and says only what a signature says, which is checked in little work."""
    if not isinstance(node, dict) or not levels or not node.keys() <= _PLAIN:
        return False
    kinds, properties, either, names = (
        node.get(word, default)
        for word, default in (("type", []), ("properties", {}), ("anyOf", [{}]), ("required", []))
    )
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(properties, dict) or not all(isinstance(each, list) for each in (kinds, either, names)):
        return False
    return (
        all(isinstance(kind, str) and kind in _KINDS for kind in kinds)
        and all(isinstance(name, str) for name in names)
        and isinstance(node.get("additionalProperties", True), bool)
        and isinstance(node.get("enum", []), list)
        and either != []
        and all(
            _is_plain(each, levels - 1) for each in (*properties.values(), *either, node.get("items", {})) if each != {}
        )
    )
