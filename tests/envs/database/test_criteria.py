"""The three criteria, golden replay, and the traps of the released code, each by hand."""

import itertools
import random
from collections.abc import Sequence

import pytest

from orchestra_jax.envs.database.criteria import CriteriaVerdict, judge
from orchestra_jax.envs.database.facts import unsaid
from orchestra_jax.envs.database.golden import Goal, opened, replay, solutions
from orchestra_jax.envs.database.session import Desk, Kind, database_tool
from orchestra_jax.types import ToolCall
from tests.envs.database.shop import call, get_customer, shop

LOOK, SEND = call("get_customer", customer="C1"), call("set_status", order="O1", status="sent")
GOAL = Goal("send", [LOOK, SEND], facts=["1,200"])
RIGHT = {"executed": "", "faithful": "", "complete": ""}
SAID = ["The total is $1200.00."]


def verdict(made: Sequence[ToolCall], said: Sequence[str], goal: Goal = GOAL) -> CriteriaVerdict:
    world = shop()
    golden, failed = replay(world, goal)
    assert failed == []
    session = opened(world, goal)
    for each in made:
        session.call(each)
    return judge(golden, session, goal.facts, said)


def holds(found: CriteriaVerdict) -> tuple[bool, bool, bool]:
    return not found.differs, not found.unsaid, not found.untouched


def test_the_golden_calls_and_facts_solve_it() -> None:
    found = verdict([LOOK, SEND], SAID)
    assert found.solved
    assert found.criteria() == RIGHT


@pytest.mark.parametrize(
    ("made", "said", "wrong"),
    [
        ([LOOK, call("set_status", order="O1", status="lost")], SAID, {"executed": "Not as it should be: orders O1."}),
        ([LOOK, SEND], ["The total is 1201."], {"faithful": "Not said: '1,200'."}),
        ([SEND], SAID, {"complete": "Not operated on: customers C1."}),
    ],
)
def test_each_criterion_fails_alone(made: list[ToolCall], said: list[str], wrong: dict[str, str]) -> None:
    assert verdict(made, said).criteria() == {**RIGHT, **wrong}


def test_none_is_enough_alone() -> None:
    assert CriteriaVerdict().solved
    parts = ((), (("orders", "O1"),)), ((), ("fact",)), ((), (("orders", "O1"),))
    assert [CriteriaVerdict(*each).solved for each in itertools.product(*parts)] == [True] + [False] * 7


def test_a_write_that_changes_nothing_still_has_to_be_made() -> None:
    goal = Goal("same", [call("set_status", order="O1", status="open")])
    assert holds(verdict([], [], goal)) == (True, True, False)
    assert verdict([call("set_status", order="O1", status="open")], [], goal).solved


def test_a_call_that_failed_operated_on_nothing() -> None:
    goal = Goal("look", [call("get_customer", customer="C2")])
    assert verdict([call("pay", customer="C2", amount=9.0)], [], goal).untouched


def test_more_than_the_golden_calls_is_wrong_only_where_it_changes_something() -> None:
    assert verdict([call("get_customer", customer="C2"), LOOK, SEND, call("hand_over")], SAID).solved
    assert verdict([LOOK, SEND, call("pay", customer="C1", amount=1.0)], SAID).differs


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ("1,200", "It is 1200."), ("1200", "It is $1,200.00, all in all."), ("-5", "That makes -$5."), ("4", "4 bags"),
        ("481.5", "481.50 dollars"), ("$1,628", "1628"), ("Boston, MA", "to  boston MA"), ("12%", "12 % of it"),
        ("polyester", "It is Polyester."), ("0042", "order 0042"), ("746342064230", "tracking 746342064230,"),
        ("2024-05-15", "on 2024-05-15"), ("l\u2019eau", "L'EAU"), ("10,000,000", "10000000"), ("5", "(5)"),
        ("5", "Bags - 5."), ("-5", "It is $-5"), ("March", "on March 12"), ("2025-03-12", "at 2025-03-12T10:30"),
        ("12 March at 10:30", "It is 2025-03-12 at 10:30."), ("2025-03-12 10:30", "March 12, 2025, 10:30"),
    ],
)  # fmt: skip
def test_facts_that_are_said(fact: str, text: str) -> None:
    assert unsaid([fact], ["Hello.", text]) == ()


@pytest.mark.parametrize("said", ["5:30 PM", "5:30pm", "5:30 p.m.", "5:30\u202fPM", "5:30 P. M."])
def test_an_hour_is_said_in_any_common_form(said: str) -> None:
    assert unsaid(["5:30 PM", "5:30pm", "5:30 p.m.", "5:30"], [f"It begins at {said}, on Monday."]) == ()
    assert unsaid(["5:30 am", "15:30"], [f"It begins at {said}, on Monday."]) == ("5:30 am", "15:30")


def test_a_hyphen_that_does_not_break_is_one() -> None:
    text = "ORD\u201112 left on 2025\u201103\u201112."
    assert unsaid(["ORD-12", "12 March"], [text]) == ()


DAYS = (
    "12 March 2025", "March 12, 2025", "march 12 2025", "12th of March, 2025", "Mar. 12th, 2025", "12-Mar-2025",
    "2025-03-12", "2025/3/12", "03/12/2025", "3-12-2025", "12.03.2025", "12.3.2025", "2025-03-12T00:00:00",
)  # fmt: skip


@pytest.mark.parametrize("said", DAYS)
def test_a_date_is_said_in_any_common_form(said: str) -> None:
    text = f"It is on Wednesday, {said}."
    facts = [*DAYS[:-1], "12 March", "March 12", "Mar 12", "12th of March", "on Wednesday 12 March"]
    assert unsaid(facts, [text]) == ()
    others = ["13 March", "2025-03-13", "2024-03-12", "12 April 2025", "2025-12-03"]
    assert unsaid(others, [text]) == tuple(others)


def test_a_day_above_twelve_is_no_month() -> None:
    assert unsaid(["2025-03-25"], ["25/03/2025"]) == ()
    assert unsaid(["2025-03-25"], ["03/25/2025"]) == ()
    assert unsaid(["2025-03-25"], ["31/25/2025"]) == ("2025-03-25",)


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ("10", "in 2010"), ("10", "at 10:30 on 2024-10-10"), ("4", "A4 or 4th"), ("5", "It is -5."), ("5", "5.5"),
        ("12 March", "March 13"), ("12 March", "12 May"), ("March 1", "March 12"), ("12 March", "2025-12-03"),
        ("2025-03-12", "March 12"), ("2025-03-12", "March 12, 2024"), ("2025-03-12", "12 March 2025.5"),
        ("2025-13-12", "12 March 2025"), ("12 March", "112 March"), ("12 March", "12 marches"),
        ("12 March 10:30", "12 March 11:30"), ("no", "I note it"), ("0042", "42"), ("1,200", "1,200,000"),
        ("41.6", "41.64"), ("327", ""), ("200", "1,200"),
    ],
)  # fmt: skip
def test_facts_that_are_not_said(fact: str, text: str) -> None:
    assert unsaid([fact], [text]) == (fact,)


def test_a_fact_is_not_put_together_from_two_messages() -> None:
    assert unsaid(["New York"], ["New", "York"]) == ("New York",)


@database_tool(Kind.WRITE)
def stamp(desk: Desk) -> str:
    """Writes what is never the same."""
    desk.edit("orders", "O1")["status"] = str(random.random())
    return "done"


@database_tool(Kind.READ)
def broken(desk: Desk) -> str:
    """Has a bug."""
    return str(desk.get("customers", "C1")["no_field"])


@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        (Goal("fails", [call("get_customer", customer="C9")]), "Golden call 1 (get_customer) failed: Error: There is"),
        (Goal("unknown", [LOOK, call("fly")]), "Golden call 2 (fly) failed: Unknown tool"),
        (Goal("arguments", [call("get_customer", who="C1")]), "Golden call 1 (get_customer) failed: The arguments"),
        (Goal("bug", [call("broken")]), "Golden call 1 (broken) raised KeyError"),
        (Goal("chance", [call("stamp")]), "another content each time"),
        (Goal("nothing", [call("hand_over")]), "solved by doing nothing"),
        (Goal("fact", [LOOK], facts=["?"]), "neither a letter nor a digit"),
        (Goal("start", [LOOK], start={"no_table": {"x": {}}}), "start does not fit"),
    ],
    ids=lambda value: value.id if isinstance(value, Goal) else "",
)
def test_a_task_that_cannot_be_used_is_listed_with_the_reason(goal: Goal, reason: str) -> None:
    usable, reasons = solutions(shop(stamp, broken), [goal, GOAL])
    assert list(usable) == [GOAL.id]
    assert list(reasons) == [goal.id]
    assert reason in reasons[goal.id]


def test_a_task_may_start_elsewhere() -> None:
    goal = Goal(
        "later", [SEND], start={"orders": {"O1": {"customer": "C1", "status": "paid"}}, "customers": {"C2": None}}
    )
    session, failed = replay(shop(), goal)
    assert failed == []
    assert session.state.get("orders", "O1") == {"customer": "C1", "status": "sent"}
    assert session.call(ToolCall(get_customer.spec.name, {"customer": "C2"})).is_error
