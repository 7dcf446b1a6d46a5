"""Tables of foreign objects: shared by all episodes, changed in place by tools, and still kept apart."""

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestra_jax.envs.database.objects import ObjectTable, holding


@dataclass
class Order:
    status: str
    items: list[str] = field(default_factory=list)


START = {"O1": Order("open", ["pen"]), "O2": Order("open"), "O3": Order("sent")}


@pytest.fixture
def table() -> ObjectTable:
    return ObjectTable(copy.deepcopy(START), Order)


def changes(table: ObjectTable, *, walks: bool = True) -> dict[str, Any]:
    return {name: text and text.decode() for name, text in table.changes(walks=walks).items()}


def is_as_at_the_start(table: ObjectTable) -> bool:
    return list(dict.items(table.rows)) == list(START.items())


def test_whatever_a_tool_changes_in_place_is_told_and_put_back(table: ObjectTable) -> None:
    rows = table.rows
    with holding({"orders": table}, {}):
        rows["O1"].items.append("ink")
        for name, order in rows.items():
            order.status = name
        rows.get("O2").status = "lost"
        rows.setdefault("O3", Order("new")).status = "z"
        del rows["O2"]
        rows["O4"] = Order("new")
        rows.update(O5=Order("new"))
        found = changes(table)
    assert found == {
        "O2": None,
        "O1": '{"status":"O1","items":["pen","ink"]}',
        "O3": '{"status":"z","items":[]}',
        "O4": '{"status":"new","items":[]}',
        "O5": '{"status":"new","items":[]}',
    }
    assert is_as_at_the_start(table)
    with holding({"orders": table}, {}):
        rows.clear()
        assert changes(table) == dict.fromkeys(START)
    assert is_as_at_the_start(table)
    with holding({"orders": table}, {}):
        table.replace({"O9": Order("new")})
        assert list(changes(table)) == [*START, "O9"]
    assert is_as_at_the_start(table)


def test_an_episode_keeps_its_objects_and_another_sees_none_of_them(table: ObjectTable) -> None:
    with holding({"orders": table}, {}):
        table.rows["O1"].status = "paid"
        table.rows["O4"] = Order("new")
        del table.rows["O2"]
        own = {name: table.now(name) for name in table.changes(walks=True)}
    with holding({"orders": table}, {}):
        assert table.rows["O1"] == START["O1"]
        assert changes(table) == {}
    with holding({"orders": table}, {"orders": own}):
        assert table.rows["O1"] is own["O1"]
        assert list(dict.keys(table.rows)) == ["O1", "O3", "O4"]
        assert changes(table) == {}  # they are as the calls before left them
        table.rows["O2"] = table.made({"status": "back", "items": []})
        assert changes(table) == {"O2": '{"status":"back","items":[]}'}
    assert is_as_at_the_start(table)


def test_a_walk_asks_for_nothing_by_id_and_is_compared_only_if_the_call_may_write(table: ObjectTable) -> None:
    with holding({"orders": table}, {}):
        for order in table.rows.values():
            order.status = "back" if order.status == "sent" else order.status
        assert table.read({"O1"}) == []
        assert changes(table, walks=False) == {}
        assert list(changes(table)) == ["O3"]
        assert table.rows.get("O9") is None
        with pytest.raises(KeyError):
            table.rows["O9"]
        assert table.rows["O2"].status == "open"
        assert table.read({"O2"}) == ["O2"]
        assert table.read({"O1"}) == []  # after a walk only what the call names was read
    assert is_as_at_the_start(table)
