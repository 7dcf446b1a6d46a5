"""Files of recorded calls: export, merge, statistics, the command line."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestra_jax.money.records import Merged, deal, export, main, merge, stats
from orchestra_jax.money.replay import Replay
from orchestra_jax.money.store import Recorded
from orchestra_jax.processes import Processes
from tests.evaluation.test_runner import InThread
from tests.money.test_replay import ANSWER, REQUEST, USAGE, keys_in, recorded, refuse


async def test_export_and_merge(tmp_path: Path):
    a, b, c = tmp_path / "a.db", tmp_path / "b.db", tmp_path / "c.db"
    one, two, three = ({"q": i} for i in range(3))
    await recorded(a, (one, ANSWER), (two, Recorded("two")))
    await recorded(b, (two, Recorded("another two")), (three, Recorded("three")), (one, ANSWER))
    assert export(b, tmp_path / "b.jsonl") == 3
    assert merge(c, a, tmp_path / "b.jsonl") == Merged(added=3, same=1, conflicts=1)
    assert merge(c, a, b) == Merged(added=0, same=4, conflicts=1)
    replay = Replay(c, "replay")
    values = [(await replay.call("chat", request, refuse)).value for request in (one, two, three)]
    assert values == [ANSWER.value, "two", "three"]
    replay.close()

    # Equal sets give equal files, in whatever order they were recorded.
    await recorded(tmp_path / "d.db", (three, Recorded("three")), (two, Recorded("two")), (one, ANSWER))
    for name in ("c", "d"):
        export(tmp_path / f"{name}.db", tmp_path / f"{name}.jsonl")
    assert (tmp_path / "c.jsonl").read_bytes() == (tmp_path / "d.jsonl").read_bytes()


async def test_an_export_that_fails_leaves_the_one_before(tmp_path: Path):
    await recorded(tmp_path / "a.db", ({"q": 1}, ANSWER))
    export(tmp_path / "a.db", tmp_path / "a.jsonl")
    before = (tmp_path / "a.jsonl").read_bytes()
    with pytest.raises(FileNotFoundError, match="No replay file"):
        export(tmp_path / "mistyped.db", tmp_path / "a.jsonl")
    assert export(tmp_path / "a.jsonl", tmp_path / "a.jsonl") == 1  # onto itself
    assert (tmp_path / "a.jsonl").read_bytes() == before


async def test_merge_refuses_what_is_no_export_and_then_adds_nothing(tmp_path: Path):
    a, lines = tmp_path / "a.db", tmp_path / "a.jsonl"
    await recorded(a, ({"q": 1}, ANSWER), ({"q": 2}, ANSWER))
    export(a, lines)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    rows[1]["request"] = {"q": 3}
    lines.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=r"Line 2 of 'a.jsonl' has another key"):
        merge(tmp_path / "b.db", lines)
    assert keys_in(tmp_path / "b.db") == set()
    lines.write_text("[]")
    with pytest.raises(ValueError, match=r"Line 1 of 'a.jsonl' is no exported call"):
        merge(tmp_path / "b.db", lines)
    with pytest.raises(FileNotFoundError):
        merge(tmp_path / "b.db", tmp_path / "none.db")


async def test_the_command_line(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]):
    await recorded(file, (REQUEST, ANSWER), ({"q": 2}, Recorded("asked twice", (USAGE, USAGE))))
    assert stats(file) == {"chat": (2, pytest.approx(3 * 0.3))}
    main(["stats", str(file)])
    main(["export", str(file), str(tmp_path / "out.jsonl")])
    main(["merge", str(tmp_path / "into.db"), str(tmp_path / "out.jsonl"), str(file)])
    assert capsys.readouterr().out.splitlines() == [
        "chat                            2 calls  $0.900000",
        f"2 calls written to {tmp_path / 'out.jsonl'}",
        "2 added, 2 there already, 0 conflicts (the first is kept)",
    ]
    with pytest.raises(SystemExit, match=r"^1$"):
        main(["stats", str(tmp_path / "none.db")])
    assert capsys.readouterr().err.startswith("No replay file at")


async def test_calls_of_other_processes_are_there_for_a_start_with_fewer_or_more(tmp_path: Path):
    """On two machines, then on one, then on three: each start has all calls, of whatever process they were."""
    shared, requests = tmp_path / "calls.db", [{"q": number} for number in range(4)]

    def start(count: int) -> list[Path]:
        own = [shared] if count == 1 else [tmp_path / f"calls.db.{index}" for index in range(count)]
        table, meeting = dict[int, bytes](), threading.Barrier(count)
        with ThreadPoolExecutor(count) as threads:
            made = [Processes() if count == 1 else InThread(index, table, meeting) for index in range(count)]
            list(threads.map(lambda file, processes: deal(shared, file, processes), own, made))
        return own

    known = list[dict[str, int]]()
    for count, request in zip((2, 1, 3, 2), requests, strict=True):
        own = start(count)
        for file in own:
            replay = Replay(file, "replay_or_record")
            values = [(await replay.call("chat", asked, refuse)).value for asked in known]
            assert values == [ANSWER.value] * len(known)
            replay.close()
        await recorded(own[-1], (request, ANSWER))  # the others lack it
        for file in own:
            Replay(file, "replay_or_record").close()
        known.append(request)
    before = {file: file.read_bytes() for file in (tmp_path / "calls.db.0", tmp_path / "calls.db.1")}
    (tmp_path / "calls.db.2").unlink()
    start(2)  # as many as before: nothing is read
    assert {file: file.read_bytes() for file in before} == before
