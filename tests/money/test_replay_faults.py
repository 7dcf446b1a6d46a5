"""A record that is broken, foreign, locked or on a full disk: a sentence, nothing paid twice, what is paid is kept."""

import asyncio
import errno
import os
import sqlite3
import stat
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from orchestra_jax.money import records, store, unsaved
from orchestra_jax.money.replay import Replay
from orchestra_jax.money.store import CANONICAL, Recorded, key
from orchestra_jax.types import InfrastructureError, ReplayMiss, Usage
from tests.money.test_replay import Service, keys_in, refuse

ANSWER = Recorded({"text": "42"}, (Usage("gpt-5", cost_usd=0.5),))
LONG = Recorded({"text": "x" * 200_000}, (Usage("gpt-5", cost_usd=0.5),))


@pytest.mark.parametrize("mode", ["record", "replay_or_record"])
@pytest.mark.parametrize("fails", [0, 1, 5])
async def test_of_identical_calls_one_pays_whoever_fails_before(file: Path, mode: str, fails: int):
    replay, service = Replay(file, mode), Service(ANSWER, fails)
    found = await asyncio.gather(*(replay.call("chat", {"q": 1}, service) for _ in range(20)), return_exceptions=True)
    assert [type(each) for each in found] == [InfrastructureError] * fails + [Recorded] * (20 - fails)
    assert (service.paid, service.calls, len(keys_in(file))) == (1, fails + 1, 1)
    replay.close()


async def test_a_waiter_that_gives_up_lets_the_next_one_go_on(file: Path):
    replay, service, gate = Replay(file, "replay_or_record"), Service(ANSWER), asyncio.Event()

    async def fails_late() -> Recorded:
        await gate.wait()
        raise InfrastructureError("status 500")

    first = asyncio.create_task(replay.call("chat", {"q": 1}, fails_late))
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(replay.call("chat", {"q": 1}, service)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    gate.set()
    found = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [type(each) for each in found] == [InfrastructureError, asyncio.CancelledError, Recorded, Recorded]
    assert service.paid == 1
    replay.close()


def full(replay: Replay) -> None:
    """No page can be added to the file any more, as on a full disk."""
    assert replay._writer is not None
    replay._writer._database.execute("PRAGMA max_page_count=1")


def room(replay: Replay) -> None:
    assert replay._writer is not None
    replay._writer._database.execute("PRAGMA max_page_count=1000000")


async def test_an_answer_that_finds_no_room_is_given_kept_and_taken_up(file: Path):
    replay, service = Replay(file, "replay_or_record"), Service(LONG)
    full(replay)
    assert await replay.call("chat", {"q": 1}, service) == LONG  # it is paid and right
    assert await replay.call("chat", {"q": 1}, service) == LONG
    assert service.paid == 1
    for _ in range(2):
        with pytest.raises(ReplayMiss) as caught:
            await replay.call("chat", {"q": 2}, service)
        assert service.paid == 1  # nothing more is paid that could not be kept
        said = str(caught.value)
        assert "cannot be written: database or disk is full" in said
        assert "calls.db.unsaved.jsonl" in said
        assert len(said) < 400
    replay.close()
    for mode, waits in (("replay", True), ("replay_or_record", False), ("replay", False)):  # a reader loses nothing
        later = Replay(file, mode)
        assert await later.call("chat", {"q": 1}, refuse) == LONG
        later.close()
        assert (file.parent / "calls.db.unsaved.jsonl").exists() == waits


async def test_a_run_goes_on_where_there_is_room_again(file: Path):
    replay, service = Replay(file, "replay_or_record"), Service(LONG)
    full(replay)
    await replay.call("chat", {"q": 1}, service)
    room(replay)
    await replay.call("chat", {"q": 2}, service)
    assert (service.paid, len(keys_in(file))) == (2, 2)
    replay.close()
    assert not (file.parent / "calls.db.unsaved.jsonl").exists()
    assert records.stats(file) == {"chat": (2, 1.0)}


async def test_what_is_put_aside_while_the_rest_is_taken_up_goes_on_waiting(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    replay, gate, service = Replay(file, "replay_or_record"), asyncio.Event(), Service(ANSWER)

    async def slow() -> Recorded:
        await gate.wait()
        return ANSWER

    late = asyncio.create_task(replay.call("chat", {"q": "late"}, slow))
    await asyncio.sleep(0)
    full(replay)
    await replay.call("chat", {"q": "first"}, Service(LONG))
    writer, held = replay._writer, Future[None]()
    assert writer is not None
    failed = Future[None]()
    failed.set_exception(OSError("locked"))
    monkeypatch.setattr(writer, "put", lambda row: failed if '"late"' in row[2] else held)
    going_on = asyncio.create_task(replay.call("chat", {"q": "next"}, service))
    await asyncio.sleep(0)
    gate.set()
    assert await late == ANSWER
    held.set_result(None)  # "first" has found its place, "late" has none
    await going_on
    monkeypatch.undo()
    room(replay)
    await replay.call("chat", {"q": "last"}, service)
    assert await replay.call("chat", {"q": "late"}, refuse) == ANSWER
    replay.close()
    assert key("chat", {"q": "late"}) in keys_in(file)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders for temporary files and in memory, where no other test leaves anything."""
    folders = [tmp_path / "temporary", tmp_path / "memory"]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setattr(unsaved.tempfile, "tempdir", str(folders[0]))
    monkeypatch.setattr(unsaved, "_MEMORY", folders[1])
    return folders


@pytest.mark.parametrize("place", [0, 1])
async def test_where_nothing_can_be_written_beside_the_file_it_waits_elsewhere_and_is_taken_up_once(
    file: Path, elsewhere: list[Path], monkeypatch: pytest.MonkeyPatch, place: int
):
    replay, service, append, no_room = Replay(file, "replay_or_record"), Service(LONG), unsaved._append, set[Path]()

    def appended(path: Path, data: bytes) -> None:
        if path.parent in no_room:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(path, data)

    monkeypatch.setattr(unsaved, "_append", appended)
    no_room |= {file.parent, *elsewhere[:place]}
    full(replay)
    assert await replay.call("chat", {"q": 1}, service) == LONG
    (kept,) = elsewhere[place].iterdir()
    with pytest.raises(ReplayMiss, match=str(kept)):
        await replay.call("chat", {"q": 2}, service)
    replay.close()
    assert kept.stat().st_mode & 0o077 == 0
    later = Replay(file, "replay_or_record")
    assert await later.call("chat", {"q": 1}, refuse) == LONG
    later.close()
    assert not kept.exists()
    assert records.stats(file) == {"chat": (1, 0.5)}


async def test_what_somebody_else_left_among_temporary_files_is_not_taken(
    file: Path, elsewhere: list[Path], monkeypatch: pytest.MonkeyPatch
):
    planted = unsaved.places(file)[1]
    unsaved._append(planted, b"x")
    assert unsaved.waiting(file) == [planted]
    monkeypatch.setattr(os, "geteuid", lambda: planted.stat().st_uid + 1)
    assert unsaved.waiting(file) == []
    with pytest.raises(PermissionError):
        unsaved._append(planted, b"y")
    link = elsewhere[1] / planted.name
    link.symlink_to(planted)
    monkeypatch.setattr(unsaved, "_is_own", lambda status: not stat.S_ISLNK(status.st_mode))
    assert unsaved.waiting(file) == [planted]
    with pytest.raises(OSError, match="symbolic link"):
        unsaved._append(link, b"y")


QUESTIONS = [store.row_of("chat", {"q": number}, store.encode(ANSWER)) for number in range(3)]


def test_rows_that_wait_in_several_files_are_all_found(
    file: Path, elsewhere: list[Path], monkeypatch: pytest.MonkeyPatch
):
    """The next one fits nowhere: it is in memory alone, and that is told."""
    unsaved.Unsaved(file).add(QUESTIONS[0])
    beside, temporary, _ = unsaved.places(file)
    monkeypatch.chdir(file.parent)
    assert unsaved.places(Path(file.name))[1] == temporary != unsaved.places(file.parent / "other" / file.name)[1]
    beside.rename(temporary)
    unsaved.Unsaved(file).add(QUESTIONS[1])
    waiting = unsaved.Unsaved(file)
    assert waiting.rows == {row[0]: row for row in QUESTIONS[:2]}
    monkeypatch.setattr(unsaved, "places", lambda record: [])
    with pytest.raises(OSError, match="No space left"):
        waiting.add(QUESTIONS[2])
    assert waiting.file is None
    assert waiting.rows == {row[0]: row for row in QUESTIONS}


def test_rows_that_the_record_did_not_take_go_on_waiting(file: Path, elsewhere: list[Path]):
    """Another process has added a row, and another answer to a row of ours; one of ours is in memory alone."""
    first, second, third = QUESTIONS
    another = (*first[:3], store.encode(LONG))
    here, there = unsaved.Unsaved(file), unsaved.Unsaved(file)
    here.add(first)
    there.add(second)
    with unsaved.places(file)[0].open("ab") as cut:
        cut.write(b'{"key": "ab')  # by a kill
    there.add(another)
    here.rows[third[0]] = third
    here.saved(frozenset([first]))
    assert here.rows == {row[0]: row for row in (another, second, third)}
    assert unsaved.Unsaved(file).rows == {row[0]: row for row in (another, second)}
    here.saved(frozenset([another, second, third]))
    assert (here.rows, unsaved.waiting(file)) == ({}, [])


@pytest.mark.parametrize("kept_before", [0, 1])
@pytest.mark.parametrize("call", ["fsync", "write"])  # a disk that fills up may take a part, and tell nothing
def test_a_row_that_did_not_fit_leaves_nothing_of_it_beside_the_record(
    file: Path, elsewhere: list[Path], monkeypatch: pytest.MonkeyPatch, kept_before: int, call: str
):
    waiting, beside = unsaved.Unsaved(file), file.parent / "calls.db.unsaved.jsonl"
    for number in range(kept_before):
        waiting.add((str(number), "chat", "{}", "{}"))
    before, whole, failures = beside.read_bytes() if kept_before else None, getattr(os, call), [errno.ENOSPC]

    def full_once(file: int, *data: bytes) -> int | None:
        if failures and data:
            return failures.pop() and whole(file, data[0][:10])
        if failures:
            raise OSError(failures.pop(), "No space left on device")
        return whole(file, *data)

    monkeypatch.setattr(os, call, full_once)
    waiting.add(("k", "chat", "{}", "{}"))
    assert (beside.read_bytes() if beside.exists() else None) == before
    assert waiting.file is not None
    assert waiting.file != beside
    assert len(waiting.file.read_text().splitlines()) == 1


async def test_a_locked_file_is_waited_for_and_then_told(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "BUSY_S", 0.05)
    replay, service = Replay(file, "replay_or_record"), Service(ANSWER)
    with sqlite3.connect(file, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert await replay.call("chat", {"q": 1}, service) == ANSWER
        with pytest.raises(ReplayMiss, match="locked"):
            await replay.call("chat", {"q": 2}, service)
        other.execute("ROLLBACK")
    await replay.call("chat", {"q": 2}, service)
    assert (service.paid, len(keys_in(file))) == (2, 2)
    replay.close()


def spoil(file: Path) -> None:
    """All but the first pages are gone."""
    data = file.read_bytes()[: 4096 * 3]
    file.write_bytes(data + b"\xff" * (file.stat().st_size - len(data)))


@pytest.mark.parametrize("mode", ["record", "replay", "replay_or_record"])
async def test_a_file_that_breaks_under_the_run_ends_it_with_a_sentence(file: Path, mode: str):
    first = Replay(file, "record")
    for number in range(200):
        await first.call("chat", {"q": number}, Service(Recorded("x" * 3000)))
    first.close()
    spoil(file)
    service, said = Service(ANSWER), ""
    try:
        replay = Replay(file, mode)
        for number in range(200):
            await replay.call("chat", {"q": number}, service)
        replay.close()
    except (ReplayMiss, ValueError) as error:
        said = str(error)
    assert "calls.db" in said
    assert len(said) < 400
    assert service.paid <= 1


ROWS = ["", "[]", "{}", '{"value": 1}', '{"value": 1, "usage": 7, "is_error": false}', "[" * 100_000,
        '{"value": 1, "usage": [{"nme": "x"}], "is_error": false}', '{"value": NaN}',
        '{"value": 1, "usage": [{"name": "x", "cost_usd": "free"}], "is_error": false}',
        '{"value": 1, "usage": [{"name": "x", "cost_usd": 1e999}], "is_error": false}',
        '{"value": 1, "usage": [{"name": "x", "prompt_tokens": 1e999}], "is_error": false}',
        '{"value": 1, "usage": [{"name": "x", "a\\n\\u001b[31m\\ud83d": 1}], "is_error": false}']  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
async def test_a_row_that_is_none_of_ours_is_told_and_not_paid_again(file: Path, row: str):
    Replay(file, "record").close()
    with sqlite3.connect(file) as database:
        request = CANONICAL.encode({"q": 1})
        database.execute("INSERT INTO calls VALUES (?, ?, ?, ?)", (key("chat", {"q": 1}), "chat", request, row))
    for mode in ("replay", "replay_or_record"):
        replay, service = Replay(file, mode), Service(ANSWER)
        with pytest.raises(ReplayMiss, match=r"calls\.db") as refused:
            await replay.call("chat", {"q": 1}, service)
        assert str(refused.value).isprintable()
        assert service.paid == 0
        replay.close()
    with pytest.raises(ValueError, match=r"calls\.db"):
        records.stats(file)


def test_a_row_that_cannot_be_written_is_in_the_way_of_no_other(file: Path):
    writer, (name, kind, request, answer) = store.Writer(file, False), store.row_of("chat", {}, store.encode(ANSWER))
    with pytest.raises(OSError, match="cannot be written: 'utf-8' codec"):
        writer.put((name, "\ud83d", request, answer)).result()
    writer.put((name, kind, request, answer)).result()
    writer.close()
    assert keys_in(file) == {name}


@pytest.mark.parametrize("mode", ["record", "replay", "replay_or_record"])
def test_a_file_whose_tables_have_no_readable_name_is_none_of_ours(file: Path, mode: str):
    """SQLite repeats the bytes in its error, and Python cannot read that."""
    Replay(file, "record").close()
    file.write_bytes(file.read_bytes().replace(b"CREATE TABLE calls", b"CREATE \xff\xfeBLE calls"))
    with pytest.raises(ValueError, match=r"calls\.db") as refused:
        Replay(file, mode)
    assert type(refused.value) is ValueError


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b'"q\\":2', b'"q\\":3').replace(b'"q":2', b'"q":3'),
        lambda data: data.replace(b"0.5", b"0.6", 1),
        lambda data: data[: data.index(b"\n") - 9] + data[data.index(b"\n") :],
        lambda data: data + b'{"key": "ab',
        lambda data: data + b"\xff\x00\n",
    ],
    ids=["request", "dollars", "sum", "torn", "foreign"],
)
async def test_damaged_lines_of_what_waited_are_put_aside_with_a_sentence(
    file: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
):
    waiting, beside = unsaved.Unsaved(file), file.parent / "calls.db.unsaved.jsonl"
    for number in range(3):
        waiting.add(store.row_of("chat", {"q": number}, store.encode(ANSWER)))
    whole = beside.read_bytes()
    beside.write_bytes(damage(whole))
    assert beside.read_bytes() != whole
    later, service = Replay(file, "replay_or_record"), Service(ANSWER)
    (said,) = capsys.readouterr().err.splitlines()
    assert f"damaged line(s) of {str(beside)!r} are put aside in 'calls.db.unsaved.jsonl.damaged'" in said
    assert not beside.exists()
    assert (file.parent / "calls.db.unsaved.jsonl.damaged").exists()
    for number in range(3):
        await later.call("chat", {"q": number}, service)
    later.close()
    assert service.paid <= 1
    Replay(file, "replay_or_record").close()
    assert capsys.readouterr().err == ""


async def test_an_answer_that_waits_nowhere_but_in_memory_is_not_said_to_be_kept(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    replay = Replay(file, "replay_or_record")

    def nowhere(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(unsaved, "_append", nowhere)
    full(replay)
    assert await replay.call("chat", {"q": 1}, Service(LONG)) == LONG
    with pytest.raises(ReplayMiss) as refused:
        await replay.call("chat", {"q": 2}, Service(ANSWER))
    assert "are kept in" not in str(refused.value)
    replay.close()
