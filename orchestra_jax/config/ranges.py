"""Rules of single fields: the values that a setting may have, and the sentence for one that it may not.

Every value keeps to these rules without being told: a number is one that a float of 32 bits holds, a whole number has
32 bits (lengths and seeds have no more in JAX), and a text is not empty, no longer than a path, and on one line.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields
from difflib import get_close_matches
from enum import StrEnum
from types import UnionType
from typing import Any, get_args

from orchestra_jax.io.untrusted import valid_text

LARGEST = 2**31 - 1  # whole number where a field says nothing else
LARGE = 2**53 - 1  # of what adds up over a run, such as tokens: still exact in JSON
_MOST, _LEAST = 3.4e38, 1.2e-38  # of a float of 32 bits, but for 0
_LONGEST = 4096  # characters of a text: the longest path
_SHOWN = 300  # characters of a value that a sentence repeats: a path is not cut
NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", list: "a list", dict: "a map"}


class ConfigError(ValueError):
    """An error of the user's settings; the message says what to change."""


def within(default: float | None, low: float, high: float) -> Any:
    """Return the field of a number with low <= value <= high."""
    return field(default=default, metadata={"low": low, "high": high})


def at_least(default: float | None, low: float) -> Any:
    """Return the field of a number with value >= low."""
    return field(default=default, metadata={"low": low})


def above(default: float | None, low: float) -> Any:
    """Return the field of a number with value > low."""
    return field(default=default, metadata={"above": low})


def seconds(default: float | None) -> Any:
    """Return the field of a time above 0 that every clock and lock can wait."""
    return field(default=default, metadata={"above": 0, "high": 1e9})


def several(default: Sequence[Any] = (), **rule: Any) -> Any:
    """Return the field of a list whose entries keep to low, high, above or url; with some=True it may not be empty."""
    return field(default_factory=lambda: list(default), metadata=rule)


def text(default: str | None, **rule: Any) -> Any:
    """Return the field of a text: url (an http address; "if http": or a path), address (HOST:PORT), blank (allowed)."""
    return field(default=default, metadata=rule)


class Settings:
    """Base of the configuration's dataclasses: a value outside its range cannot be constructed.

    Plain strings become members of the StrEnum that the field has as its type.

    Raises:
        ConfigError: one sentence for the first wrong value.
    """

    def __post_init__(self) -> None:
        for entry in fields(self):  # type: ignore[arg-type]
            value, kind = getattr(self, entry.name), choices_of(entry.type)
            if kind is not None and value is not None and not isinstance(value, kind):
                if value not in list(kind):
                    raise ConfigError(unknown_choice(entry.name, str(value), list(kind)))
                object.__setattr__(self, entry.name, kind(value))
            elif problem := range_problem(entry.name, value, entry.metadata):
                raise ConfigError(problem)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain containers, for JSON."""
        return asdict(self)  # type: ignore[call-overload]  # every subclass is a dataclass


def choices_of(kind: Any) -> type[StrEnum] | None:
    """Return the StrEnum of a field's type, or None if it has another type."""
    parts = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    found = [part for part in parts if isinstance(part, type) and issubclass(part, StrEnum)]
    return found[0] if found else None


def unknown_choice(key: str, value: str, choices: list[Any]) -> str:
    """Return the sentence for a value that is none of the choices."""
    near = get_close_matches(value[:_SHOWN], choices, n=1)
    return f"{key}={shown(value)} is unknown: use {f'{near[0]}, or ' if near else ''}one of {', '.join(choices)}."


def range_problem(key: str, value: Any, rule: Mapping[str, Any]) -> str | None:
    """Return the sentence for a value that breaks the rule of its field, or None; the value None is always allowed.

    Entries of lists keep to the rule too. Values of a mapping, such as an environment's options, are free as long as
    they have a written form.
    """
    if isinstance(value, Mapping):
        named = ((f"{key}.{shown(name)}", item) for name, item in value.items())
        return _first(((key, name) for name in value), {}) or _first(named, {"free": True})
    if isinstance(value, list | tuple):
        if not value and rule.get("some"):
            return f"{key} is an empty list: name at least one."
        return _first(((f"{key}[{index}]", item) for index, item in enumerate(value)), rule)
    if isinstance(value, str):
        return _text_problem(key, value, rule)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number_problem(key, value, rule)
    return None


# An address with a password, an option of a command with a key, or a key by its form.
_SECRET = re.compile(
    r"://[^/\s?#]*@|(?i:(?:^|\s)--?(?:\w+[-_])*(?:key|token|secret|password)[=\s]\s*\S)|\b(?:sk|hf|ghp|gsk|xai|tvly)[-_][\w-]{20,}"
)


def shown(value: object) -> str:
    """Return a value as a sentence repeats it: on one line, not too long, with nothing that a terminal cannot print."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write the digits of a longer one
        return f"a number of about {value.bit_length() * 3 // 10} digits"
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value)[: _SHOWN + 1])
    return plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}..."


def _first(values: Iterator[tuple[str, Any]], rule: Mapping[str, Any]) -> str | None:
    return next(filter(None, (range_problem(key, value, rule) for key, value in values)), None)


def _number_problem(key: str, value: float, rule: Mapping[str, Any]) -> str | None:
    low, high, bound = rule.get("low"), rule.get("high"), rule.get("above")
    if isinstance(value, float) and not math.isfinite(value):
        return f"{key}={value} is not finite: change it."
    if rule.get("free"):
        return None
    if low is not None and high is not None and not low <= value <= high:
        return f"{key}={shown(value)} must be within [{low}, {high}]: change it."
    if low is not None and not value >= low:
        return f"{key}={shown(value)} must be at least {low}: change it."
    if bound is not None and not value > bound:
        return f"{key}={shown(value)} must be above {bound}: change it."
    most = high if high is not None else LARGEST if isinstance(value, int) else _MOST
    if value > most:
        return f"{key}={shown(value)} must be at most {most}: change it."
    if value < -_MOST or 0 < abs(value) < _LEAST:
        return f"{key}={shown(value)} is a number that 32 bits do not hold: change it."
    return None


def _text_problem(key: str, value: str, rule: Mapping[str, Any]) -> str | None:
    free = rule.get("free")
    if _SECRET.search(value):
        return (
            f"{key} holds a password or a key, which the record of the run would keep: put it into an environment "
            "variable, and name that (api_key_env; env and headers of an MCP server)."
        )
    if not value.strip():
        return None if free or rule.get("blank") else f"{key} is an empty text: change it."
    if valid_text(value) != value or (not free and any(c < " " or c == "\x7f" for c in value)):
        return f"{key}={shown(value)} has a character that no name or path has: change it."
    if len(value) > _LONGEST and not free:
        return f"{key}={shown(value)} has {len(value)} characters, more than {_LONGEST}: change it."
    if rule.get("url") or rule.get("address"):
        from orchestra_jax.config.addresses import wanted_address

        if wanted := wanted_address(value, rule):
            return f"{key}={shown(value)} must be {wanted}: change it."
    return None
