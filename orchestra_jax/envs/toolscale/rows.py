"""Rows of ToolScale (`nvidia/ToolScale`) as tasks: the user, and the goal that decides.

The data set keeps the arguments of all tools in one column type: every call carries every argument of every tool, null
where it has none, and dates that look like dates became timestamps. Both are undone here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from orchestra_jax.envs.database.golden import Goal
from orchestra_jax.types import ToolCall


@dataclass(frozen=True, slots=True)
class ToolScaleUser:
    """The user of a task, who knows and wants something; the policy is told only what the user says.

    Attributes:
        domain: name of the database and tools.
        reason: the user's reason to ask.
        instructions: the user's behaviour.
        known: facts that the user can tell when asked.
        unknown: facts that the user does not know.
        persona: character of the user.
    """

    domain: str
    reason: str
    instructions: str
    known: str = ""
    unknown: str = ""
    persona: str = ""

    @property
    def words(self) -> str:
        """All that a user without a model says, at once."""
        return "\n".join(filter(None, (self.reason, self.instructions, self.known)))

    @property
    def situation(self) -> str:
        """The text that a model that plays the user is told."""
        parts = {
            "Who you are": self.persona,
            "Why you ask": self.reason,
            "How you behave": self.instructions,
            "What you know": self.known,
            "What you do not know": self.unknown,
        }
        return "\n".join(f"{head}: {text}" for head, text in parts.items() if text)


def read(row: Mapping[str, Any]) -> tuple[ToolScaleUser, Goal]:
    """Return the user and the goal of a row.

    Raises:
        ValueError: a part that every row has is missing or of another kind; the sentence says which.
    """
    name = _text(row, "id") or "without an id"
    try:
        wanted = _part(_part(row, "user_scenario"), "instructions")
        persona = _text(_part(row, "user_scenario"), "persona")
        user = ToolScaleUser(
            domain=_text(wanted, "domain"),
            reason=_text(wanted, "reason_for_call"),
            instructions=_text(wanted, "task_instructions"),
            known=_text(wanted, "known_info"),
            unknown=_text(wanted, "unknown_info"),
            persona=persona,
        )
        criteria = _part(row, "evaluation_criteria")
        calls = [ToolCall(_text(each, "name"), _arguments(each)) for each in criteria.get("actions") or ()]
        facts = [str(fact) for fact in criteria.get("communicate_info") or ()]
        if not (user.domain and (user.instructions or user.reason)):
            raise ValueError("it names no domain, or nothing that the user wants")
        if nameless := [number for number, call in enumerate(calls, start=1) if not call.name]:
            raise ValueError(f"its golden call {nameless[0]} has no name")
    except ValueError as error:
        raise ValueError(f"The ToolScale row {name} cannot be read: {error}.") from None
    return user, Goal(f"{user.domain}/{name}", calls, facts)


def plain(value: Any) -> Any:
    """Return the value without nulls at any depth, and with dates as text; a midnight stands for its day."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value if each is not None]
    if isinstance(value, datetime):
        midnight = value.hour == value.minute == value.second == value.microsecond == 0
        return value.date().isoformat() if midnight else value.isoformat()
    return value.isoformat() if isinstance(value, date) else value


def _arguments(action: Any) -> dict[str, Any]:
    if not isinstance(action, Mapping):
        raise ValueError("a golden call is no struct")
    given = action.get("arguments")
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"the arguments of {action.get('name')!r} are no struct")
    # A struct of nulls inside the arguments is one that the call does not have.
    return {name: each for name, each in plain(given or {}).items() if each != {}}


def _part(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = row.get(name)
    if not isinstance(part, Mapping):
        raise ValueError(f"it has no {name!r}")
    return part


def _text(row: Any, name: str) -> str:
    value = row.get(name) if isinstance(row, Mapping) else None
    if value is None:
        return ""
    if not isinstance(value, str | int):
        raise ValueError(f"its {name!r} is no text")
    return str(value).strip()
