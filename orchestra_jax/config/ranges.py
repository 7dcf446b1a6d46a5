"""Rules of single fields: what values a setting may have, and the error for one that it may not."""

from collections.abc import Mapping
from dataclasses import field, fields
from difflib import get_close_matches
from enum import StrEnum
from types import UnionType
from typing import Any, get_args


class ConfigError(ValueError):
    """The run cannot start as configured; the message says what to change."""


def within(default: float, low: float, high: float) -> Any:
    """A number with low <= value <= high."""
    return field(default=default, metadata={"low": low, "high": high})


def at_least(default: float | None, low: float) -> Any:
    """A number with value >= low."""
    return field(default=default, metadata={"low": low})


def above(default: float | None, low: float) -> Any:
    """A number with value > low."""
    return field(default=default, metadata={"above": low})


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


def choices_of(kind: Any) -> type[StrEnum] | None:
    """The StrEnum of a field's type, None where it has another type."""
    parts = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    found = [part for part in parts if isinstance(part, type) and issubclass(part, StrEnum)]
    return found[0] if found else None


def unknown_choice(key: str, value: str, choices: list[Any]) -> str:
    """The sentence for a value that is none of the choices."""
    near = get_close_matches(value, choices, n=1)
    return f"{key}={value} is unknown: use {f'{near[0]}, or ' if near else ''}one of {', '.join(choices)}."


def range_problem(key: str, value: Any, rule: Mapping[str, Any]) -> str | None:
    """The sentence for a value that breaks the rule of its field, else None; None as value is always allowed."""
    if value is None:
        return None
    low, high, bound = rule.get("low"), rule.get("high"), rule.get("above")
    if high is not None and not low <= value <= high:
        return f"{key}={value} must be within [{low}, {high}]: change it."
    if high is None and low is not None and not value >= low:
        return f"{key}={value} must be at least {low}: change it."
    if bound is not None and not value > bound:
        return f"{key}={value} must be above {bound}: change it."
    return None
