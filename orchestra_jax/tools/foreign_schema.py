"""JSON schemas that others wrote: read once, within limits, and then used in bounded work.

Reading follows references within the document and makes one schema without them, of the keywords below; all others
only describe. Nothing is fetched, and patterns run in time linear in the text (google-re2).
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from threading import local
from typing import Any, NamedTuple
from urllib.parse import unquote

from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.exceptions import best_match

MOST_BYTES = 256 << 10
MOST_LEVELS = 32  # schemas within schemas, references followed
MOST_PARTS = 10_000  # schemas in a schema, each counted as often as references lead to it
MOST_STEPS = 100_000  # keywords tried in one check: about a second
_PATTERN_BYTES = 1 << 20  # of a compiled pattern
_LARGEST = 1e300

_ONE = frozenset("additionalProperties propertyNames items contains not if then else".split())
_MANY = frozenset("allOf anyOf oneOf prefixItems".split())
_NAMED = frozenset("properties patternProperties dependentSchemas".split())
_REFUSED = frozenset(
    "$anchor $dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor unevaluatedProperties unevaluatedItems".split()
)
_TYPES = frozenset("array boolean integer null number object string".split())
_work = local()


class BadSchema(ValueError):  # noqa: N818  named like the fact it states
    """A schema cannot be used; the message is a clause that begins with the place of the fault."""


def fault(text: str, value: Any) -> ValidationError | None:
    """Return how a value does not fit the schema of this JSON text, or None if it fits.

    Raises:
        BadSchema: see `read`.
    """
    validator = _Validator(read(text))
    _work.left = MOST_STEPS
    try:
        return best_match(validator.iter_errors(value))
    except _TooLong:
        return ValidationError(f"checking this takes more than {MOST_STEPS} steps")


@lru_cache(maxsize=2048)
def read(text: str) -> Any:
    """Return the schema of a JSON text without references.

    Raises:
        BadSchema: it is none, a reference leaves it or leads in a circle, it is too large, or has a keyword or pattern
            that cannot be checked in bounded work.
    """
    if len(text) > MOST_BYTES:
        raise BadSchema(f"at the top level: it has more than {MOST_BYTES >> 10} KiB")
    return _Reader(json.loads(text)).read_part((), ()).schema


class _Part(NamedTuple):
    """A schema that was read, and how many levels and parts it has."""

    schema: Any
    levels: int
    parts: int


class _Reader:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[tuple[str, ...], _Part | None] = {}  # by place in the document; None: being read

    def read_part(self, place: tuple[str, ...], way: tuple[str, ...]) -> _Part:
        """Return the schema at a place. `way` leads to it from the top, for a sentence."""
        if place in self._known:
            if (found := self._known[place]) is None:
                raise _bad(way, "its references lead in a circle")
            return found
        if len(way) > 3 * MOST_LEVELS:
            raise _bad(way[:6], f"it has more than {MOST_LEVELS} levels")
        self._known[place] = None
        self._known[place] = found = self._read(self._at(place, way), place, way)
        return found

    def _read(self, node: Any, place: tuple[str, ...], way: tuple[str, ...]) -> _Part:
        """Return one schema with its known keywords alone; those inside it and its reference are read in turn."""
        if isinstance(node, bool):
            return _Part(node, 1, 1)
        if not isinstance(node, dict):
            raise _bad(way, f"{_shown(node)} is no schema")
        made, inner = dict[str, Any](), list[_Part]()

        def add(*more: str) -> Any:
            inner.append(self.read_part((*place, *more), (*way, *more)))
            return inner[-1].schema

        for word, value in node.items():
            here = (*way, word)
            if word in _REFUSED or (word == "$id" and way):
                raise _bad(here, "this keyword is not supported")
            if word in _ONE:
                made[word] = add(word)
            elif word in _MANY:
                if not isinstance(value, list) or not value:
                    raise _bad(here, "it must be a list of schemas")
                made[word] = [add(word, str(index)) for index in range(len(value))]
            elif word in _NAMED:
                if not isinstance(value, dict):
                    raise _bad(here, "it must map names to schemas")
                made[word] = {name: add(word, name) for name in value}
                for name in value if word == "patternProperties" else ():
                    _checked_pattern(name, here)
            elif word in _VALUES:
                if not _VALUES[word](value):
                    raise _bad(here, f"{_shown(value)} is no value of this keyword")
                made[word] = value
                if word == "pattern":
                    _checked_pattern(value, here)
        if "$ref" in node:
            target = self._place(node["$ref"], (*way, "$ref"))
            inner.append(self.read_part(target, (*way, "$ref")))
            made["allOf"] = [*made.get("allOf", ()), inner[-1].schema]
        levels, parts = 1 + max((each.levels for each in inner), default=0), 1 + sum(each.parts for each in inner)
        if levels > MOST_LEVELS:
            raise _bad(way, f"it has more than {MOST_LEVELS} levels")
        if parts > MOST_PARTS:
            raise _bad(way, f"it stands for more than {MOST_PARTS} schemas, references followed")
        return _Part(made, levels, parts)

    def _place(self, reference: Any, way: tuple[str, ...]) -> tuple[str, ...]:
        if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
            raise _bad(way, f"it refers to {_shown(reference)}, which is not in the schema")
        parts = unquote(reference).split("/")[1:]
        return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)

    def _at(self, place: tuple[str, ...], way: tuple[str, ...]) -> Any:
        node = self._root
        for part in place:
            if isinstance(node, list) and part.isdecimal() and len(part) < 8 and int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, dict) and part in node:
                node = node[part]
            else:
                raise _bad(way, f"it refers to {_shown('#/' + '/'.join(place))}, which is not in the schema")
        return node


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and math.floor(value) == value


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_type(value: Any) -> bool:
    kinds = value if isinstance(value, list) else [value]
    return bool(value) and all(isinstance(kind, str) and kind in _TYPES for kind in kinds)


def _is_flat(value: Any, levels: int = MOST_LEVELS) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_flat(each, levels - 1) for each in inner)


_VALUES: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **{f"{end}{what}": _is_count for end in ("min", "max") for what in ("Length", "Items", "Properties", "Contains")},
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "type": _is_type,
    "enum": lambda value: isinstance(value, list) and _is_flat(value),
    "const": _is_flat,
    "required": _are_names,
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
    "uniqueItems": lambda value: isinstance(value, bool),
    "pattern": lambda value: isinstance(value, str),
}


def _bad(way: tuple[str, ...], why: str) -> BadSchema:
    where = "/".join(way) or "the top level"
    return BadSchema(f"at {where if len(where) <= 200 else f'{where[:200]}...'}: {why}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _checked_pattern(pattern: str, way: tuple[str, ...]) -> None:
    try:
        _search(pattern)
    except ImportError:
        raise _bad(way, f"a pattern needs the package google-re2 (pip install google-re2): {_shown(pattern)}") from None
    except ValueError as error:
        raise _bad(way, f"the pattern {_shown(pattern)} {error}") from None


@lru_cache(maxsize=2048)
def _search(pattern: str) -> Callable[[str], bool]:
    """Return a search that is linear in the text; raise ValueError, a clause, if there is none for the pattern."""
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = _PATTERN_BYTES, False
    try:
        found = re2.compile(_encodable(pattern), options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise ValueError(f"cannot be searched for in linear time: {why}") from None
    return lambda text: found.search(_encodable(text)) is not None


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class _TooLong(Exception):  # noqa: N818
    """A check used up its steps."""


def _spend(steps: int) -> None:
    _work.left -= steps
    if _work.left < 0:
        raise _TooLong


def _counted(check: Callable[..., Any]) -> Callable[..., Iterator[ValidationError]]:
    """Return the check of a keyword so that its work, and the length of its messages, count as steps."""

    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _spend(1 + (len(value) if isinstance(value, list | dict) else 0))
        for error in check(validator, value, instance, schema) or ():
            _spend(1 + len(error.message) // 100)
            yield error

    return counted


def _matches(pattern: str, text: str) -> bool:
    _spend(1 + len(text) // 100)
    return _search(pattern)(text)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError(f"{_shown(instance)} does not match {_shown(pattern)}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    for pattern, inner in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [name for name in instance if name not in named and not any(_matches(each, name) for each in patterns)]
    if isinstance(rule, dict):
        for name in extra:
            yield from validator.descend(instance[name], rule, path=name)
    elif not rule and extra:
        told, verb = ", ".join(map(repr, sorted(extra))), "was" if len(extra) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({told} {verb} unexpected)")


def _unique(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if wanted and isinstance(instance, list):
        _spend(len(instance))
        if len({json.dumps(_one_form(each), sort_keys=True) for each in instance}) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _one_form(value: Any) -> Any:
    """Return the value with every whole number as an int: 1 equals 1.0, but not true."""
    _spend(1)
    if isinstance(value, dict):
        return {name: _one_form(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_one_form(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


_OWN = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "uniqueItems": _unique,
}
_Validator = validators.extend(
    Draft202012Validator,
    {word: _counted(check) for word, check in {**Draft202012Validator.VALIDATORS, **_OWN}.items()},
)
