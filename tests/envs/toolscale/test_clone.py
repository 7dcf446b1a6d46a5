"""The authors' domains in the sandbox, on a small domain of the same form and, where they are, on theirs."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.database import golden
from orchestra_jax.envs.database.criteria import judge
from orchestra_jax.envs.database.remote import RemoteWorld
from orchestra_jax.envs.database.state import WrongKind
from orchestra_jax.envs.database.workers.pool import WorkerLimits, WorldError
from orchestra_jax.envs.toolscale import domains
from tests.envs.database.shop import call
from tests.envs.toolscale import library
from tests.isolation import available

ISOLATION = "auto" if available() else "none"


def load(repo: Path) -> RemoteWorld:
    code = domains.code_folder(repo)
    data = domains.data_folders(None, repo)
    return domains.world("library", code, data, isolation=ISOLATION, limits=WorkerLimits(cpu_s=0.5))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteWorld]:
    made = load(library.write(tmp_path_factory.mktemp("clone")))
    yield made
    made.close()


def test_the_database_is_the_file_with_what_the_types_fill_in(world: RemoteWorld) -> None:
    assert world.database.tables["members"]["M1"] == {"name": "Ada", "fees": 2.0, "loans": []}
    assert list(world.database.tables["books"]) == ["B1", "B2", "B3"]
    assert world.now.isoformat() == "2024-05-15T15:00:00-05:00"
    assert world.policy == library.POLICY


def test_tools_are_read_off_signatures_and_docstrings(world: RemoteWorld) -> None:
    assert list(world.specs)[:4] == ["get_member", "find_member", "list_books", "lend"]
    assert world.kinds["lend"] == "write"
    spec = world.specs["get_member"]
    assert spec.description == "Show a member, with all loans. Not more."
    assert spec.parameters["properties"] == {
        "member_id": {"type": "string", "description": "The id, such as M1, as it stands on the card."}
    }
    assert world.specs["list_books"].parameters["properties"]["status"] == {
        "anyOf": [{"enum": ["in", "out"], "type": "string"}, {"type": "null"}]
    }
    assert world.specs["add_book"].parameters["properties"]["book"]["required"] == ["title"]


def test_calls_change_their_own_session_only(world: RemoteWorld) -> None:
    one, other = world.session(), world.session()
    lent = json.loads(one.call(call("lend", member_id="M1", book_id="B1")).text)
    assert lent == {"title": "Emma", "status": "out", "since": "2024-05-15T20:00:00Z"}  # the clock stands
    assert one.state.delta() == {
        "members": {"M1": {"name": "Ada", "fees": 2.0, "loans": ["B1"]}},
        "books": {"B1": lent},
    }
    assert one.written == {("members", "M1"), ("books", "B1")}
    assert one.read >= one.written
    assert other.call(call("list_books", status="out")).text == '["B2"]'
    assert one.call(call("list_books", status="out")).text == '["B1", "B2"]'


def test_a_call_that_fails_is_rolled_back_whole(world: RemoteWorld) -> None:
    """The tool had made its record already; for the authors the record stays."""
    session = world.session()
    assert session.call(call("lend", member_id="M1", book_id="B2")).text == "Error: The book is out"
    assert session.call(call("lend", member_id="M1", book_id="B9")).text == "Error: 'B9'"
    assert (session.state.delta(), session.read, session.done) == ({}, set(), [])
    assert '"loans": []' in session.call(call("get_member", member_id="M1")).text


def test_a_walk_that_changes_an_entry_is_seen(world: RemoteWorld) -> None:
    session = world.session()
    assert session.call(call("add_fee", name="Bo", amount=1.5, times=2)).text == "3.0"
    assert session.written == {("members", "M2")}
    assert session.call(call("find_member", name="Bo")).text == "M2"
    assert session.read == {("members", "M2")}  # of a walk, the entry that its result tells


def test_a_walk_reads_what_its_result_tells(world: RemoteWorld) -> None:
    def read(tool: str, /, **arguments: Any) -> set[tuple[str, str]]:
        session = world.session()
        assert not session.call(call(tool, **arguments)).is_error
        return session.read

    assert read("find_member", name="Ada") == {("members", "M1")}
    assert read("find_book", title="Emma") == {("books", "B1")}  # by an object that only this entry holds
    assert read("find_book", title="No such") == set()
    assert read("list_books", status="out") == {("books", "B2")}
    assert read("list_books") == set()  # a plain list picks none


def test_a_long_list_picks_no_entry(world: RemoteWorld) -> None:
    session = world.session()
    for _ in range(30):
        session.call(call("add_book", book={"title": "Persuasion"}))
    assert len(json.loads(session.call(call("list_books", status="in")).text)) > 20
    assert not session.call(call("find_book", title="Persuasion")).is_error
    assert session.read == session.written


def test_a_fact_that_was_looked_up_by_a_walk_needs_the_look(world: RemoteWorld) -> None:
    goal = golden.Goal("who", [call("find_member", name="Ada")], ["M1"])
    after = golden.solution(world, goal)
    assert not isinstance(after, str)
    said = judge(after, world.session(), goal.facts, ["It is M1."])
    assert said.untouched == (("members", "M1"),)
    looked = world.session()
    assert not looked.call(call("get_member", member_id="M1")).is_error
    assert judge(after, looked, goal.facts, ["It is M1."]).solved
    assert not isinstance(golden.solution(world, golden.Goal("look", goal.calls)), str)  # was "solved by doing nothing"


def test_tables_keep_their_order_whatever_is_dropped_added_or_replaced(world: RemoteWorld) -> None:
    session = world.session()
    assert not session.call(call("drop_book", book_id="B1")).is_error
    assert session.call(call("add_book", book={"title": "Persuasion"})).text == "B3"  # theirs: the length and one
    assert session.call(call("list_books")).text == '["B2", "B3"]'
    assert not session.call(call("start_over")).is_error
    assert session.call(call("list_books")).text == "[]"
    assert world.session().call(call("list_books")).text == '["B1", "B2", "B3"]'
    assert session.state.delta()["books"] == dict.fromkeys(("B1", "B2", "B3"))


def test_an_entry_that_its_types_refuse_stays_as_the_tool_left_it(world: RemoteWorld) -> None:
    """Nothing checks it in the authors' harness either; later calls work with it, in objects of the same classes."""
    session = world.session()
    assert session.call(call("spoil", book_id="B1")).text == "Spoilt"
    assert session.state.delta() == {"books": {"B1": {"title": "Emma", "status": "lost", "since": None}}}
    assert session.call(call("list_books", status="in")).text == '["B3"]'
    assert not session.call(call("lend", member_id="M1", book_id="B1")).is_error
    assert world.session().call(call("list_books", status="in")).text == '["B1", "B3"]'


def test_a_tool_that_writes_in_secret_is_a_bug_of_the_world(world: RemoteWorld) -> None:
    with pytest.raises(WrongKind, match="'peek' is of kind read, but it changes books"):
        world.session().call(call("peek", book_id="B1"))
    assert not world.session().call(call("list_books", status="in")).is_error


def test_an_expression_that_never_ends_is_stopped(world: RemoteWorld) -> None:
    session = world.session()
    assert "took too long" in session.call(call("calculate", expression="9**9**9")).text
    assert session.call(call("calculate", expression="2 * 3")).text == "6"


@pytest.mark.parametrize("seed", range(3))
def test_interleaved_sessions_come_to_what_each_comes_to_alone(world: RemoteWorld, seed: int) -> None:
    rng = random.Random(seed)
    calls = [
        call("lend", member_id="M1", book_id="B1"),
        call("lend", member_id="M2", book_id="B3"),
        call("add_fee", name="Ada", amount=1.0),
        call("add_book", book={"title": "Persuasion"}),
        call("drop_book", book_id="B1"),
        call("start_over"),
        call("spoil", book_id="B3"),
        call("list_books"),
        call("get_member", member_id="M1"),
    ]
    plans = [rng.choices(calls, k=8) for _ in range(4)]
    alone = []
    for plan in plans:
        session = world.session()
        alone.append(([session.call(each) for each in plan], session.state.hash()))
    mixed = [(world.session(), list[Any]()) for _ in plans]
    order = [number for number in range(len(plans)) for _ in range(8)]
    rng.shuffle(order)
    for number in order:
        session, outcomes = mixed[number]
        outcomes.append(session.call(plans[number][len(outcomes)]))
    assert [(outcomes, session.state.hash()) for session, outcomes in mixed] == alone


def test_a_call_without_arguments_stands_for_no_golden_call(world: RemoteWorld) -> None:
    """The released check compares only the arguments that the prediction gave; the state does not care what it gave."""
    goal = golden.Goal("fee", [call("add_fee", name="Ada", amount=1.0)])
    made = world.session()
    assert made.call(call("add_fee")).refused
    assert judge(golden.replay(world, goal)[0], made, (), ()).differs


def test_golden_calls_that_fail_are_told_and_completeness_holds(world: RemoteWorld) -> None:
    """The released evaluation swallows what golden calls raise, and asks for no call beside the state."""
    goals = [
        golden.Goal("bad", [call("lend", member_id="M9", book_id="B1")]),
        golden.Goal("look", [call("get_member", member_id="M1")], ["2"]),
    ]
    usable, reasons = golden.solutions(world, goals)
    assert reasons == {"bad": "Golden call 1 (lend) failed: Error: Member not found"}
    verdict = judge(usable["look"], world.session(), ["2"], ["You owe 2."])
    assert (verdict.differs, verdict.unsaid) == ((), ())
    assert verdict.untouched


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"must be a clone of the authors' repository .git clone"):
        domains.code_folder(tmp_path)
    repo = library.write(tmp_path)
    shutil.rmtree(repo / "evaluation/data_dir")
    monkeypatch.delenv("ORCHESTRA_DATA", raising=False)
    with pytest.raises(ConfigError, match=r"no databases of ToolScale's domains .* set env.options.data"):
        domains.data_folders(None, repo)
    (domains.data_of("library", domains.data_folders(None, library.write(tmp_path))) / "db.json").write_text(
        "version https://git-lfs.github.com/spec/v1"
    )
    with pytest.raises(ConfigError, match="no database of the ToolScale domain 'library' in"):
        load(repo)
    library.write(tmp_path)
    (domains.code_folder(repo) / "library/tools.py").write_text("import nothing_such")
    with pytest.raises(WorldError, match=r"'library' cannot be used: .*nothing_such"):
        load(repo)


@pytest.mark.skipif(
    not (os.environ.get("TOOLSCALE_REPO") and os.environ.get("ORCHESTRA_DATA")),
    reason="no clone of the authors' repository (TOOLSCALE_REPO)",
)
def test_the_released_domains_have_the_released_tools() -> None:
    code = domains.code_folder(os.environ["TOOLSCALE_REPO"])
    data = domains.data_folders(Path(os.environ["ORCHESTRA_DATA"]) / "toolscale_domains", "")
    count = 0
    for domain in domains.DOMAINS:
        world = domains.world(domain, code, data, isolation=ISOLATION)
        try:
            listed = json.loads((data[0] / domain / "tools.json").read_text())
            assert {each["name"]: each["kind"] for each in listed} == {n: str(kind) for n, kind in world.kinds.items()}
            count += len(listed)
            if domain == "bank":
                assert_the_bank_writes_the_time_of_its_world(world)
        finally:
            world.close()
    assert count == 156


def assert_the_bank_writes_the_time_of_its_world(world: RemoteWorld) -> None:
    """The released tool asks the machine for it."""
    session = world.session()
    owned = [
        (client, each) for client, row in world.database.tables["clients"].items() for each in row["beneficiary_ids"]
    ]
    client, beneficiary = owned[0]
    assert not session.call(
        call("verify_beneficiary", client_id=client, beneficiary_id=beneficiary, method="by word")
    ).is_error
    (entry,) = session.state.delta()["beneficiaries"].values()
    assert entry["verification"]["verified_at"] == "2024-05-15T20:00:00Z"
    assert not session.call(call("get_beneficiary_details", beneficiary_id=beneficiary)).is_error
