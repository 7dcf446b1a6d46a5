"""Worlds whose tools run in the sandbox: the same calls come to the same, and whatever dies is replaced."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestra_jax.envs.database import golden
from orchestra_jax.envs.database.criteria import judge
from orchestra_jax.envs.database.remote import RemoteWorld, harmless_schema
from orchestra_jax.envs.database.session import Session
from orchestra_jax.envs.database.state import WrongKind
from orchestra_jax.envs.database.workers.pool import WorkerLimits, WorldError
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import InfrastructureError, ToolSpec
from tests.envs.database import shop as shop_module
from tests.envs.database.shop import TABLES, call, shop
from tests.isolation import available

ISOLATION = "auto" if available() else "none"
NOW = datetime(2025, 2, 25, 12, tzinfo=UTC)
MORE = '''

@database_tool(Kind.GENERIC)
def power(desk: Desk, base: int, top: int) -> str:
    """Raises to a power, and again."""
    return str(len(str(base ** top ** top)))


@database_tool(Kind.GENERIC)
def end(desk: Desk) -> str:
    """Ends the process."""
    import os
    os.kill(os.getpid(), 9)


@database_tool(Kind.GENERIC)
def outside(desk: Desk, path: str) -> str:
    """Reads a file."""
    try:
        return open(path).read()
    except OSError as error:
        raise ValueError(type(error).__name__)


@database_tool(Kind.READ)
def wrong_kind(desk: Desk) -> str:
    """Says that it only reads."""
    return str(desk.edit("orders", "O1"))


@database_tool(Kind.READ)
def broken(desk: Desk) -> str:
    """Has a bug."""
    return desk.get("orders", "O1")["nothing"]


@database_tool(Kind.WRITE)
def give_all(desk: Desk, customer: str) -> str:
    """Two new entries, the later one first by name; and one that is deleted."""
    desk.insert("orders", "Z", {"customer": customer})
    desk.insert("orders", "A", {"customer": customer})
    desk.delete("orders", "O1")
    return ", ".join(name for name, _ in desk.rows("orders"))


@database_tool(Kind.WRITE)
def drop(desk: Desk, order: str) -> str:
    """Deletes an order, and changes nothing else."""
    desk.delete("orders", order)
    return "dropped"


@database_tool(Kind.READ)
def list_orders(desk: Desk) -> str:
    """All ids in their order."""
    return ", ".join(name for name, _ in desk.rows("orders"))
'''
SOURCE = Path(shop_module.__file__).read_text(encoding="utf-8") + MORE


@pytest.fixture(scope="module")
def world() -> Iterator[RemoteWorld]:
    made = RemoteWorld.of_source("shop", SOURCE, TABLES, NOW, isolation=ISOLATION, limits=WorkerLimits(cpu_s=0.3))
    yield made
    made.close()


def test_the_tools_are_those_of_a_world_in_this_process(world: RemoteWorld) -> None:
    ours = shop()
    assert {name: world.specs[name] for name in ours.specs} == ours.specs
    assert {name: world.kinds[name] for name in ours.specs} == ours.kinds


CALLS = [
    call("get_customer", customer="C1"),
    call("get_customer", customer="C9"),
    call("get_customer"),
    call("nothing"),
    call("find_customer", name="Bo"),
    call("set_status", order="O1", status="sent"),
    call("set_status", order="O1", status="open"),
    call("pay", customer="C1", amount=4.5),
    call("pay", customer="C1", amount=4.5),
    call("pay", customer="C2", amount=1.0),
    call("hand_over", summary="x"),
]


@pytest.mark.parametrize("seed", range(4))
def test_interleaved_sessions_come_to_what_each_comes_to_alone_in_this_process(world: RemoteWorld, seed: int) -> None:
    """One worker serves them all: nothing of one is seen by another."""
    rng, ours = random.Random(seed), shop()
    pairs = [(Session(ours, seed=number), world.session(number)) for number in range(5)]
    for _ in range(60):
        here, there = rng.choice(pairs)
        wanted = rng.choice(CALLS)
        assert there.call(wanted) == here.call(wanted)
    for here, there in pairs:
        assert there.state.hash() == here.state.hash()
        assert (there.read, there.written, there.done) == (here.read, here.written, here.done)
        assert there.state.delta() == here.state.delta()
    assert len(world.pids) == 1


def test_golden_calls_are_replayed_sifted_and_judged(world: RemoteWorld) -> None:
    goals = [
        golden.Goal("pays", [call("pay", customer="C1", amount=2.0)], ["8"]),
        golden.Goal("fails", [call("get_customer", customer="C9")]),
        golden.Goal("bug", [call("broken")]),
    ]
    usable, reasons = golden.solutions(world, goals)
    assert list(usable) == ["pays"]
    assert set(reasons) == {"fails", "bug"}
    assert "WorldError" in reasons["bug"]
    session = usable["pays"]
    assert not judge(session, world.session(), ["8"], ["It is 8 now."]).solved
    made = world.session()
    made.call(goals[0].calls[0])
    assert judge(session, made, ["8"], ["It is 8 now."]).solved


def test_new_entries_keep_the_order_of_their_making_and_the_next_session_sees_none(world: RemoteWorld) -> None:
    session = world.session()
    assert session.call(call("give_all", customer="C1")).text == "Z, A"
    assert session.call(call("list_orders")).text == "Z, A"
    assert world.session().call(call("list_orders")).text == "O1"


def test_a_call_that_takes_too_long_is_an_observation_and_changes_nothing(world: RemoteWorld) -> None:
    session = world.session()
    for _ in range(2):  # the second in a worker that was started for it, and has to load the world first
        outcome = session.call(call("power", base=9, top=9))
        assert outcome.is_error
        assert "took too long" in outcome.text
    assert not session.call(call("get_customer", customer="C1")).is_error
    assert session.done == [call("get_customer", customer="C1")]


def test_an_entry_that_is_all_that_was_deleted_is_gone(world: RemoteWorld) -> None:
    session = world.session()
    assert session.call(call("drop", order="O1")).text == "dropped"
    assert session.state.delta() == {"orders": {"O1": None}}
    assert session.written == {("orders", "O1")}


def call_until_it_fails(session: Session) -> None:
    """Call until a call fails: the inner process dies a moment after the outer one."""
    for _ in range(3000):
        session.call(call("get_customer", customer="C1"))
        time.sleep(0.01)


def test_a_worker_that_dies_is_an_infrastructure_failure_and_is_replaced(world: RemoteWorld) -> None:
    session = world.session()
    session.call(call("pay", customer="C1", amount=1.0))
    before = session.state.hash()
    with pytest.raises(InfrastructureError, match="signal 9"):
        session.call(call("end"))
    assert session.state.hash() == before
    assert not session.call(call("pay", customer="C1", amount=1.0)).is_error
    old = world.pids
    os.kill(old[0], signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="died"):
        call_until_it_fails(session)
    assert not session.call(call("get_customer", customer="C1")).is_error
    assert world.pids != old


def test_a_worker_that_hangs_is_an_infrastructure_failure_and_is_replaced() -> None:
    source = SOURCE + (
        "\n\n@database_tool(Kind.GENERIC)\ndef sleep(desk: Desk) -> str:\n"
        '    """Sleeps."""\n    import time\n    time.sleep(600)\n'
    )
    world = RemoteWorld.of_source("shop", source, TABLES, NOW, isolation=ISOLATION)
    try:
        limits, world._workers._limits = world._workers._limits, WorkerLimits(timeout_s=0.2)
        with pytest.raises(InfrastructureError, match="no answer in"):
            world.session().call(call("sleep"))
        world._workers._limits = limits
        assert not world.session().call(call("get_customer", customer="C1")).is_error
    finally:
        world.close()
    assert world.pids == ()
    with pytest.raises(InfrastructureError, match="closed"):
        world.session().call(call("get_customer", customer="C1"))


def test_a_cancelled_call_changes_nothing(world: RemoteWorld) -> None:
    async def cancelled() -> Session:
        session = world.session()
        task = asyncio.create_task(session.call_async(call("pay", customer="C1", amount=1.0)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return session

    session = asyncio.run(cancelled())  # ends when the thread has its answer
    assert session.done == []
    assert session.state.delta() == {}
    assert not asyncio.run(session.call_async(call("pay", customer="C1", amount=1.0))).is_error


def test_a_world_that_hangs_keeps_no_thread_of_others(world: RemoteWorld) -> None:
    """The default threads of the loop are few, and everybody's."""

    async def meanwhile() -> bool:
        sessions = [world.session() for _ in range(100)]
        slow = [asyncio.create_task(each.call_async(call("power", base=9, top=9))) for each in sessions]
        await asyncio.sleep(0)
        await asyncio.to_thread(int)
        done = any(each.done() for each in slow)
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return done

    assert not asyncio.run(meanwhile())


def test_bugs_of_the_world_are_told_by_name(world: RemoteWorld) -> None:
    with pytest.raises(WrongKind, match="'wrong_kind' of 'shop' is of kind read, but it changes"):
        world.session().call(call("wrong_kind"))
    with pytest.raises(WorldError, match="'broken' of 'shop' is broken: KeyError: 'nothing'"):
        world.session().call(call("broken"))


@pytest.mark.skipif(ISOLATION == "none", reason="nothing isolates here")
def test_the_code_sees_no_file_of_this_machine(world: RemoteWorld, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("seen")
    for path in (tmp_path / "secret", Path(shop_module.__file__), Path("/proc/1/environ")):
        assert world.session().call(call("outside", path=str(path))).text in (
            "Error: FileNotFoundError",
            "Error: PermissionError",
        )


@pytest.mark.parametrize(
    ("source", "reason"),
    [("1 / 0", "ZeroDivisionError"), ("import nothing_such", "ModuleNotFoundError"), ("x = 1", "it has none")],
)
def test_code_that_cannot_be_loaded_is_told(source: str, reason: str) -> None:
    with pytest.raises(WorldError, match=f"of the world 'bad' cannot be used: .*{reason}"):
        RemoteWorld.of_source("bad", source, TABLES, NOW, isolation=ISOLATION)


def test_a_schema_from_outside_keeps_common_keywords_and_may_not_refer_to_a_file() -> None:
    schema = {
        "type": "object",
        "title": "x",
        "properties": {"pattern": {"type": "string", "pattern": "(a+)+$"}, "b": {"$ref": "file:///etc/passwd"}},
        "required": ["pattern"],
        "$defs": {"C": {"enum": ["title"], "format": "uri"}},
    }
    assert harmless_schema(schema) == {
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "b": {"$ref": "file:///etc/passwd"}},
        "required": ["pattern"],
        "$defs": {"C": {"enum": ["title"]}},
    }
    with pytest.raises(ValueError, match="refers to 'file:///etc/passwd', which is not in the schema"):
        check_spec(ToolSpec("t", "d", harmless_schema(schema)))
