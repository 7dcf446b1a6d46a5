"""Tables of other people's objects: shared by all episodes, changed in place by tools, and still kept apart."""

import copy
from dataclasses import asdict, dataclass, field

import pytest

from orchestra_jax.envs.database.objects import Rows, take_over
from orchestra_jax.envs.database.state import Database, State


@dataclass
class Order:
    status: str
    items: list[str] = field(default_factory=list)


BASE = {"O1": Order("open", ["pen"]), "O2": Order("open"), "O3": Order("sent")}
START = copy.deepcopy(BASE)
DATABASE = Database({"orders": {name: asdict(order) for name, order in BASE.items()}})


@pytest.fixture
def rows() -> Rows:
    return Rows(BASE)


def test_what_a_tool_changes_in_place_is_the_episodes_own(rows: Rows) -> None:
    rows["O1"].items.append("ink")
    for name, order in rows.items():
        order.status = name
    for order in rows.values():
        order.items.append("x")
    rows.get("O2").status = "lost"
    rows.setdefault("O3", Order("new")).status = "z"
    del rows["O2"]
    rows["O4"] = Order("new")
    rows.update(O5=Order("new"))
    assert start_is_untouched()
    assert Rows(BASE)["O1"] == START["O1"]
    assert rows["O1"] == Order("O1", ["pen", "ink", "x"])
    assert list(rows) == ["O1", "O3", "O4", "O5"]
    rows.clear()
    assert start_is_untouched()


def start_is_untouched() -> bool:
    return BASE == START


def test_a_call_is_undone_whole_and_the_calls_before_stay(rows: Rows) -> None:
    rows.begin(writes=True)
    rows["O1"].status = "paid"
    rows.begin(writes=True)
    rows["O1"].items.append("ink")
    rows.pop("O2")
    rows["O4"] = Order("new")
    rows["O4"].status = "newer"
    rows.undo()
    assert dict(rows) == {"O1": Order("paid", ["pen"]), "O2": START["O2"], "O3": START["O3"]}
    assert rows.handed_out == frozenset()


def test_a_walk_that_only_reads_copies_nothing_and_asks_for_nothing(rows: Rows) -> None:
    rows.begin(writes=False)
    assert all(order is BASE[name] for name, order in rows.items())
    assert rows.handed_out == rows.asked == set()
    assert rows.get("O9") is None
    with pytest.raises(KeyError):
        rows["O9"]
    assert rows.asked == set()
    assert rows["O2"] is not BASE["O2"]
    assert rows.asked == {"O2"}


def test_a_state_learns_what_changed_and_no_more(rows: Rows) -> None:
    state = State(DATABASE)
    rows.begin(writes=True)
    for order in rows.values():
        if order.status == "sent":
            order.status = "back"
    assert take_over(state, {"orders": rows}, asdict) == {("orders", "O3")}
    rows.begin(writes=True)
    rows["O4"] = Order("new")
    del rows["O1"]
    assert take_over(state, {"orders": rows}, asdict) == {("orders", "O1"), ("orders", "O4")}
    assert state.delta() == {"orders": {"O1": None, "O3": asdict(Order("back")), "O4": asdict(Order("new"))}}
    rows.begin(writes=True)
    rows["O1"], rows["O3"].status = Order("open", ["pen"]), "sent"
    del rows["O4"]
    take_over(state, {"orders": rows}, asdict)
    assert state.hash() == State(DATABASE).hash()
