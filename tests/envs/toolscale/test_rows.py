"""Rows of ToolScale as they come out of parquet: nulls of other tools, dates as timestamps, rows that are none."""

import copy
import re
from datetime import datetime
from typing import Any

import pytest

from orchestra_jax.envs.database.golden import Goal, replay
from orchestra_jax.envs.toolscale.rows import plain, read
from orchestra_jax.envs.toolscale.tasks import fitted
from orchestra_jax.tools.schema import validate_arguments
from orchestra_jax.types import ToolCall, ToolSpec
from tests.envs.database.shop import shop
from tests.envs.toolscale import library

CALLS = [("get_customer", {"customer": "C1"}), ("set_status", {"order": "O1", "status": "sent"})]
ROW = library.row(17, CALLS, ["1,200"])


def changed(*path: Any, to: Any) -> dict[str, Any]:
    row = copy.deepcopy(ROW)
    at: Any = row
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = to
    return row


def test_a_row_is_a_scenario_and_a_goal_that_replays() -> None:
    user, goal = read(ROW)
    assert (user.domain, user.reason) == ("library", "You want something of the library.")
    assert (user.known, user.unknown) == ("You are Ada, member M1.", "")
    assert goal.id == "library/17"
    assert goal.calls[0] == ToolCall("get_customer", {"customer": "C1"})
    assert goal.facts == ["1,200"]
    session, failed = replay(shop(), goal)
    assert failed == []
    assert session.state.changed == {("orders", "O1")}


def test_nulls_go_at_every_depth_and_nothing_else_does() -> None:
    given = {"a": None, "b": [{"c": None, "d": 0}, None, {"e": False}], "f": "", "g": []}
    assert plain(given) == {"b": [{"d": 0}, {"e": False}], "f": "", "g": []}
    row = changed("evaluation_criteria", "actions", 0, "arguments", to={"address": {"zip": None}, "customer": "C1"})
    assert read(row)[1].calls[0].arguments == {"customer": "C1"}


def test_dates_are_text_again() -> None:
    assert plain({"start_date": datetime(2025, 8, 15)}) == {"start_date": "2025-08-15"}
    assert plain([datetime(2025, 8, 15, 12, 30)]) == ["2025-08-15T12:30:00"]


def test_dates_that_a_json_file_keeps_as_milliseconds_are_text_where_the_tool_wants_one() -> None:
    text, whole = {"type": "string"}, {"type": "integer"}
    fields = {
        "day": text, "at": {"anyOf": [text, {"type": "null"}]}, "phone": text, "number": whole,
        "amount": {"type": "number"},
        "legs": {"type": "array", "items": {"type": "object", "properties": {"day": text}}},
    }  # fmt: skip
    spec = ToolSpec("book", "", {"type": "object", "properties": fields})
    day, at = 1_755_216_000_000, 1_755_261_000_000
    given = {"day": day, "at": float(at), "phone": 4_915_112_345_678, "number": day, "amount": day}
    given |= {"legs": [{"day": day}]}
    (call,) = fitted(Goal("x", [ToolCall("book", given)]), {"book": spec}).calls
    dated = {"day": "2025-08-15", "at": "2025-08-15T12:30:00", "legs": [{"day": "2025-08-15"}]}
    assert call.arguments == {**given, **dated}
    assert validate_arguments(spec, {**call.arguments, "phone": ""}) is None


def test_a_row_without_calls_or_facts_is_one() -> None:
    row = changed("evaluation_criteria", to={"actions": None, "communicate_info": None})
    assert read(row)[1].calls == []
    assert read(row)[1].facts == []


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("user_scenario",), None, "it has no 'user_scenario'"),
        (("evaluation_criteria",), "x", "it has no 'evaluation_criteria'"),
        (("user_scenario", "instructions", "domain"), "", "it names no domain"),
        (("evaluation_criteria", "actions", 1, "name"), None, "its golden call 2 has no name"),
        (("evaluation_criteria", "actions", 0), "call", "a golden call is no struct"),
        (("evaluation_criteria", "actions", 0, "arguments"), "{}", "the arguments of 'get_customer' are no struct"),
        (("user_scenario", "instructions", "known_info"), ["x"], "its 'known_info' is no text"),
    ],
)
def test_a_row_that_is_none_is_told(path: tuple[Any, ...], to: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"row 17 cannot be read: {re.escape(said)}"):
        read(changed(*path, to=to))
