"""The state of a database world: what is shared stays as it is, hashes see content alone, and nothing leaks."""

import copy
import json
import pickle
import random

import pytest

from orchestra_jax.envs.database.frozen import FrozenDict, canonical, freeze, thaw
from orchestra_jax.envs.database.state import Database, NoEntry, State, Transaction, differing
from tests.envs.database.shop import TABLES


@pytest.fixture(scope="module")
def database() -> Database:
    return Database(TABLES)


def edited(database: Database, *changes: tuple[str, str, str, object]) -> State:
    state = State(database)
    for table, name, field, value in changes:
        step = Transaction(state)
        step.edit(table, name)[field] = value
        state.write(step.changes)
    return state


def test_a_shared_entry_refuses_every_change(database: Database) -> None:
    order = State(database).get("orders", "O1")
    for change in (
        lambda: order.update(status="shipped"), lambda: order.__setitem__("status", "x"), lambda: order.pop("status"),
        lambda: order["items"].append("ink"), lambda: order["items"].sort(), lambda: order["items"].__iadd__(["ink"]),
        lambda: order.__ior__({"status": "x"}), lambda: order.setdefault("new", 1), order.clear, order["items"].clear,
    ):  # fmt: skip
        with pytest.raises(TypeError, match="shared by all episodes"):
            change()
    assert order == TABLES["orders"]["O1"]
    assert isinstance(order, dict)
    assert json.loads(json.dumps(order)) == TABLES["orders"]["O1"]


def test_copies_are_plain_and_pickles_stay_frozen(database: Database) -> None:
    order = State(database).get("orders", "O1")
    for plain in (thaw(order), copy.deepcopy(order)):
        plain["items"].append("ink")
        assert type(plain["items"]) is list
    again = pickle.loads(pickle.dumps(order))
    assert again == order
    assert type(again) is FrozenDict
    assert order["items"] == ["pen"]


def test_what_a_caller_keeps_does_not_change_the_database() -> None:
    tables = copy.deepcopy(TABLES)
    database = Database(tables)
    tables["orders"]["O1"]["items"].append("ink")
    entry = {"customer": "C2", "items": ["cup"]}
    state = State(database)
    step = Transaction(state)
    given = step.insert("orders", "O2", entry)
    entry["items"].append("x")
    state.write(step.changes)
    given["items"].append("y")
    assert state.get("orders", "O1")["items"] == ["pen"]
    assert state.get("orders", "O2")["items"] == ["cup"]


@pytest.mark.parametrize(
    ("value", "said"), [({1: "x"}, "key"), ({"x": float("nan")}, "finite"), ({"x": {1, 2}}, "JSON values, not set")]
)
def test_what_is_no_json_is_refused(value: object, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        freeze(value)


def test_equal_numbers_have_one_text() -> None:
    assert canonical({"a": 2.0, "b": [0.1 + 0.2]}) == canonical({"b": [0.3], "a": 2})
    assert canonical(-0.0) == canonical(0)
    assert canonical([1, 2]) != canonical([2, 1])
    assert canonical(True) != canonical(1)
    assert canonical(10.01) != canonical(10.02)


def test_the_hash_is_of_content_not_of_the_way_there(database: Database) -> None:
    start = State(database).hash()
    one = edited(database, ("customers", "C1", "balance", 5), ("orders", "O1", "status", "sent"))
    other = edited(
        database, ("orders", "O1", "status", "lost"), ("orders", "O1", "status", "sent"),
        ("customers", "C1", "balance", 5.0),
    )  # fmt: skip
    assert one.hash() == other.hash() != start
    back = edited(database, ("orders", "O1", "status", "sent"), ("orders", "O1", "status", "open"))
    assert back.hash() == start
    assert back.changed == frozenset()
    assert Database({**TABLES, "orders": {}}).digest != database.digest


def test_deleted_and_new_entries_count(database: Database) -> None:
    state = State(database)
    step = Transaction(state)
    step.delete("customers", "C1")
    step.insert("customers", "C3", {"name": "Cy"})
    assert [name for name, _ in step.rows("customers")] == ["C2", "C3"]
    assert [name for name, _ in state.rows("customers")] == ["C1", "C2"]
    state.write(step.changes)
    assert [name for name, _ in state.rows("customers")] == ["C2", "C3"]
    assert state.hash() != State(database).hash()
    with pytest.raises(NoEntry, match="no 'C1' in customers"):
        state.get("customers", "C1")
    step = Transaction(state)
    step.delete("customers", "C3")
    step.insert("customers", "C1", TABLES["customers"]["C1"])
    state.write(step.changes)
    assert state.hash() == State(database).hash()


def test_a_transaction_that_is_not_committed_never_was(database: Database) -> None:
    state = State(database)
    step = Transaction(state)
    step.edit("orders", "O1")["items"].append("ink")
    assert step.get("orders", "O1")["items"] == ["pen", "ink"]
    assert state.get("orders", "O1")["items"] == ["pen"]
    assert state.hash() == State(database).hash()


def test_a_table_that_does_not_exist_is_a_bug(database: Database) -> None:
    with pytest.raises(KeyError):
        State(database).get("no_table", "x")
    with pytest.raises(KeyError):
        State(database).write({("no_table", "x"): {}})
    with pytest.raises(TypeError, match="map ids to entries"):
        Database({"orders": []})  # type: ignore[dict-item]


def test_changes_travel_as_json(database: Database) -> None:
    state = edited(database, ("orders", "O1", "status", "sent"))
    step = Transaction(state)
    step.delete("customers", "C2")
    state.write(step.changes)
    delta = json.loads(json.dumps(state.delta()))
    assert delta == {"customers": {"C2": None}, "orders": {"O1": {**TABLES["orders"]["O1"], "status": "sent"}}}
    elsewhere = State(Database(TABLES))
    elsewhere.apply(delta)
    assert elsewhere.hash() == state.hash()
    assert differing(elsewhere, State(elsewhere.database)) == [("customers", "C2"), ("orders", "O1")]


def test_states_of_different_databases_are_not_compared(database: Database) -> None:
    with pytest.raises(ValueError, match="different databases"):
        differing(State(database), State(Database({"orders": {}})))


def test_interleaved_episodes_do_not_see_each_other(database: Database) -> None:
    """Against plain deep copies, over random edits, inserts, deletes and abandoned transactions."""
    draw = random.Random(0)
    states = [State(database) for _ in range(20)]
    copies = [copy.deepcopy(TABLES) for _ in states]
    for number in range(600):
        at = draw.randrange(len(states))
        state, plain, table = states[at], copies[at], draw.choice(["customers", "orders"])
        step, name = Transaction(state), draw.choice([*plain[table], f"N{number}"])
        keep = draw.random() < 0.7
        if name not in plain[table]:
            step.insert(table, name, {"n": number, "list": [number]})
            change = {name: {"n": number, "list": [number]}}
        elif draw.random() < 0.2:
            step.delete(table, name)
            change = {name: None}
        else:
            step.edit(table, name).setdefault("list", []).append(number)
            after = copy.deepcopy(plain[table][name])
            after.setdefault("list", []).append(number)
            change = {name: after}
        if keep:
            state.write(step.changes)
            plain[table] = {k: v for k, v in {**plain[table], **change}.items() if v is not None}
    for state, plain in zip(states, copies, strict=True):
        assert {table: dict(state.rows(table)) for table in plain} == plain
        whole = State(database)
        whole.apply(state.delta())
        assert whole.hash() == state.hash()
    assert {name: dict(table) for name, table in database.tables.items()} == TABLES
