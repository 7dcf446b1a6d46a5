"""A row of ToolScale (`nvidia/ToolScale`) as a task: who the user is, what is wanted, and when it is done.

The data set keeps the arguments of all tools in one column type: every call carries every argument of every tool, null
where it has none, and dates that look like dates became timestamps. Both are undone here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from orchestra_jax.envs.database.golden import Goal
from orchestra_jax.types import ToolCall


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the user of a task knows and wants; the policy is told none of it but what the user says.

    Attributes:
        domain: whose database and tools it plays with.
        reason: why the user asks.
        instructions: how the user is to behave.
        known, unknown: what the user can say when asked, and what not.
        persona: how the user is otherwise.
    """

    domain: str
    reason: str
    instructions: str
    known: str = ""
    unknown: str = ""
    persona: str = ""


def read(row: Mapping[str, Any]) -> tuple[Scenario, Goal]:
    """The task of a row.

    Raises:
        ValueError: a part that every row has is missing or of another kind; the sentence says which.
    """
    name = _text(row, "id") or "without an id"
    try:
        wanted = _part(_part(row, "user_scenario"), "instructions")
        persona = _text(_part(row, "user_scenario"), "persona")
        scenario = Scenario(
            domain=_text(wanted, "domain"), reason=_text(wanted, "reason_for_call"), persona=persona,
            instructions=_text(wanted, "task_instructions"), known=_text(wanted, "known_info"),
            unknown=_text(wanted, "unknown_info"),
        )  # fmt: skip
        criteria = _part(row, "evaluation_criteria")
        calls = [ToolCall(_text(each, "name"), _arguments(each)) for each in criteria.get("actions") or ()]
        facts = [str(fact) for fact in criteria.get("communicate_info") or ()]
        if not (scenario.domain and (scenario.instructions or scenario.reason)):
            raise ValueError("it names no domain, or nothing that the user wants")
        if nameless := [number for number, call in enumerate(calls, start=1) if not call.name]:
            raise ValueError(f"its golden call {nameless[0]} has no name")
    except ValueError as error:
        raise ValueError(f"The ToolScale row {name} cannot be read: {error}.") from None
    return scenario, Goal(f"{scenario.domain}/{name}", calls, facts)


def read_all(rows: Iterable[Mapping[str, Any]]) -> tuple[list[tuple[Scenario, Goal]], list[str]]:
    """The tasks of the rows, and a sentence for each row that is none: none is dropped in silence."""
    tasks, problems = list[tuple[Scenario, Goal]](), list[str]()
    for row in rows:
        try:
            tasks.append(read(row))
        except ValueError as error:
            problems.append(str(error))
    return tasks, problems


def plain(value: Any) -> Any:
    """The value without nulls at any depth, with dates as text: a midnight is the day, as no tool asks for one."""
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
