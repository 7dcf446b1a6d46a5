"""Record and replay: keys, modes, single flight, what survives a kill, many processes."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.limits import Limiter
from orchestra_jax.money.paid import Lost, PaidCalls
from orchestra_jax.money.replay import Replay
from orchestra_jax.money.store import Recorded, key
from orchestra_jax.types import InfrastructureError, ReplayMiss, Usage

USAGE = Usage("gpt-5", prompt_tokens=1200, cached_tokens=100, completion_tokens=7, cost_usd=0.1 + 0.2, seconds=1 / 3)
ANSWER = Recorded({"text": "42", "finish_reason": "stop"}, (USAGE, Usage("gpt-5", "judge", estimated=True)))
REQUEST = {"model": "gpt-5", "messages": [{"role": "user", "content": "6 x 7?"}], "sample": 0}


class Service:
    """Fails in its first calls, and then answers; counts its calls, and those that it was paid for."""

    def __init__(self, answer: Recorded = ANSWER, fails: int = 0, seconds: float = 0.0) -> None:
        self.calls, self.paid, self.answer, self.fails, self.seconds = 0, 0, answer, fails, seconds

    async def __call__(self) -> Recorded:
        self.calls += 1
        number = self.calls
        await asyncio.sleep(self.seconds)
        if number <= self.fails:
            raise InfrastructureError("status 500")
        self.paid += 1
        return self.answer


async def recorded(path: Path, *pairs: tuple[dict[str, Any], Recorded], mode: str = "replay_or_record") -> None:
    replay = Replay(path, mode)
    for request, answer in pairs:
        await replay.call("chat", request, Service(answer))
    replay.close()


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def refuse() -> Recorded:
    raise AssertionError("A replayed call must not be made.")


def test_a_key_is_the_content():
    swapped = dict(reversed(REQUEST.items()))
    assert key("chat", REQUEST) == key("chat", swapped) == key("chat", json.loads(json.dumps(REQUEST)))
    others = [key("chat", {**REQUEST, "sample": 1}), key("chat", {**REQUEST, "x": None}), key("search", REQUEST)]
    assert len({key("chat", REQUEST), *others}) == 4
    assert len(key("chat", {"text": "half a pair \ud800 and ünïcode"})) == 64
    with pytest.raises(TypeError):
        key("chat", {"x": object()})
    with pytest.raises(ValueError, match="not JSON compliant"):
        key("chat", {"x": float("nan")})


async def test_replayed_calls_give_what_was_recorded_without_a_call(file: Path):
    first = Replay(file, "record")
    original = await first.call("chat", REQUEST, Service())
    first.close()
    second = Replay(file, "replay")
    again = await second.call("chat", dict(REQUEST), refuse)
    assert original == again == ANSWER
    assert (again.usage[0].cost_usd, again.usage[0].seconds) == (USAGE.cost_usd, USAGE.seconds)  # to the bit
    assert (first.replayed, second.replayed, keys_in(file)) == (0, 1, {key("chat", REQUEST)})
    second.close()
    second.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.builds(
    Usage,
    name=st.text(),
    role=st.sampled_from(["tool", "judge"]),
    prompt_tokens=st.integers(0, 10**6),
    cost_usd=st.floats(0, 10),
    seconds=st.floats(0, 1e3),
    price_list=st.text(),
    estimated=st.booleans(),
)


@given(JSON, st.lists(ROWS, max_size=3), st.booleans())
def test_whatever_is_recorded_is_replayed(tmp_path_factory, value, rows, is_error):
    path = tmp_path_factory.mktemp("replay") / "calls.db"
    answer = Recorded(value, tuple(rows), is_error)

    async def both() -> tuple[Recorded, Recorded]:
        replay = Replay(path, "replay_or_record")
        pair = await replay.call("k", {"v": value}, Service(answer)), await replay.call("k", {"v": value}, refuse)
        replay.close()
        return pair

    assert asyncio.run(both()) == (answer, answer)


async def test_a_value_is_read_back_alike_when_it_is_recorded(file: Path):
    replay = Replay(file, "replay_or_record")
    answer = Recorded({"hits": ("a", "b"), "by_page": {1: 2}})
    assert (await replay.call("search", {}, Service(answer))).value == {
        "hits": ["a", "b"],
        "by_page": {"1": 2},
    }
    replay.close()


async def test_modes(file: Path):
    service = Service()
    off = Replay(file, "off")
    for _ in range(2):
        assert await off.call("chat", {"any": object()}, service) is ANSWER
    assert (service.calls, listing(file.parent)) == (2, [])
    off.close()

    both = Replay(file, "replay_or_record")
    for _ in range(3):
        await both.call("chat", REQUEST, service)
    assert (service.calls, len(keys_in(file)), both.replayed) == (3, 1, 2)

    newer = Recorded("newer")
    record = Replay(file, "record")
    assert await record.call("chat", REQUEST, Service(newer)) == newer
    assert await both.call("chat", REQUEST, refuse) == newer  # another connection of this process sees it at once
    for replay in (both, record):
        replay.close()

    replay = Replay(file, "replay")
    with pytest.raises(ReplayMiss) as caught:
        await replay.call("chat", {"content": "x" * 1000}, refuse)
    assert str(caught.value).startswith("""No 'chat' call {"content":"xxx""")
    assert str(caught.value).endswith("... was recorded; record it with mode replay_or_record.")
    assert len(str(caught.value)) < 300
    assert not isinstance(caught.value, InfrastructureError)
    replay.close()


async def test_failures_are_not_recorded(file: Path):
    replay = Replay(file, "replay_or_record")
    broken = Service(fails=2)
    for _ in range(2):
        with pytest.raises(InfrastructureError):
            await replay.call("chat", REQUEST, broken)
    assert (broken.calls, keys_in(file)) == (2, set())
    assert await replay.call("chat", REQUEST, Service(Recorded("bad argument", is_error=True))) == Recorded(
        "bad argument", is_error=True
    )
    replay.close()


@pytest.mark.parametrize("mode", ["record", "replay_or_record"])
async def test_identical_calls_at_the_same_time_are_made_once(file: Path, mode: str):
    replay, service = Replay(file, mode), Service()
    answers = await asyncio.gather(*(replay.call("chat", {**REQUEST, "sample": i % 2}, service) for i in range(100)))
    assert answers == [ANSWER] * 100
    assert (service.calls, len(keys_in(file))) == (2, 2)
    await replay.call("chat", REQUEST, service)
    assert service.calls == (3 if mode == "record" else 2)
    replay.close()


async def test_of_two_answers_to_one_request_all_callers_see_the_recorded_one(file: Path):
    here, there = Replay(file, "replay_or_record"), Replay(file, "replay_or_record")  # as of two processes
    answers = [Recorded("one", (USAGE,)), Recorded("another", (USAGE,))]
    calls = (
        replay.call("chat", REQUEST, Service(answer)) for replay, answer in zip((here, there), answers, strict=True)
    )
    seen = await asyncio.gather(*calls)

    async def after_a_late_one() -> Recorded:  # a first request timed out, and its answer comes while this one is made
        await here.keep("chat", {"q": "late"}, answers[0])
        return answers[1]

    late = await here.call("chat", {"q": "late"}, after_a_late_one)
    for replay in (here, there):
        replay.close()
    again = Replay(file, "replay")
    assert seen == [await again.call("chat", REQUEST, refuse)] * 2
    assert late == await again.call("chat", {"q": "late"}, refuse)
    again.close()


@pytest.mark.parametrize("mode", ["record", "replay_or_record"])
async def test_an_answer_that_comes_late_takes_the_place_of_none(file: Path, mode: str):
    replay = Replay(file, mode)
    seen = await replay.call("chat", REQUEST, Service(ANSWER))  # made again after a time-out
    await replay.keep("chat", REQUEST, Recorded("of the first request"))
    await replay.keep("chat", {"q": "never made again"}, Recorded("late"))
    replay.close()
    again = Replay(file, "replay")
    assert await again.call("chat", REQUEST, refuse) == seen
    assert (await again.call("chat", {"q": "never made again"}, refuse)).value == "late"
    again.close()


@pytest.mark.parametrize("cut", [False, True])
async def test_what_was_lost_before_a_late_answer_is_booked_once(file: Path, cut: bool):
    """The caller books the lost request from the error; the record of the overdue answer has its own bill alone.

    If the call itself is cut, nobody is told of the lost request: the record has both.
    """
    replay, budget, began, late = Replay(file, "replay_or_record"), Budget(), asyncio.Event(), asyncio.Event()
    calls = PaidCalls(Limiter(1), replay=replay, timeout_s=60.0 if cut else 0.1, retries=4, backoff_s=0.001)
    ends = iter([Lost("It broke."), Recorded("late", (Usage("gpt-5", cost_usd=0.5),))])

    async def send() -> Recorded | Lost:
        if isinstance(end := next(ends), Recorded):
            began.set()
            await late.wait()
        return end

    worst = Usage("gpt-5", cost_usd=1.0)
    call = asyncio.create_task(calls.call("chat", REQUEST, worst, send, budget=budget))
    await began.wait()
    if cut:
        (under_way,) = replay._flights.values()
        under_way.cancel()
    (failed,) = await asyncio.gather(call, return_exceptions=True)
    assert isinstance(failed, asyncio.CancelledError if cut else InfrastructureError)
    late.set()
    await calls.close()
    found = await replay.call("chat", REQUEST, refuse)
    booked = [row.cost_usd for row in (*getattr(failed, "usage", ()), *found.usage)]
    assert (found.value, booked, budget.spent.usd) == ("late", [1.0, 0.5], 1.5)
    replay.close()


async def test_a_call_whose_caller_gives_up_is_kept(file: Path):
    replay = Replay(file, "replay_or_record")
    service, broken = Service(seconds=0.01), Service(fails=1, seconds=0.01)
    for request, run in ((REQUEST, service), ({"other": 1}, broken)):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await replay.call("chat", request, run)
    assert await replay.call("chat", REQUEST, refuse) == ANSWER  # joins the call under way
    assert await replay.call("chat", {"other": 1}, Service()) == ANSWER  # one that failed is made again
    assert (service.calls, broken.calls, len(keys_in(file))) == (1, 1, 2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await replay.call("chat", {"other": 2}, service)
    await replay.drain()
    assert (service.paid, len(keys_in(file))) == (2, 3)
    replay.close()


def test_a_loop_that_was_stopped_leaves_no_call_under_way(file: Path):
    replay, started = Replay(file, "replay_or_record"), []

    async def never() -> Recorded:
        started.append(1)
        await asyncio.Event().wait()
        return ANSWER

    async def stopped() -> None:
        asyncio.create_task(replay.call("chat", REQUEST, never))  # noqa: RUF006  cancelled with its loop
        await asyncio.sleep(0.01)

    asyncio.run(stopped())
    assert started
    assert asyncio.run(asyncio.wait_for(replay.call("chat", REQUEST, Service()), 30)) == ANSWER
    replay.close()


async def test_nothing_is_recorded_after_close(file: Path):
    replay = Replay(file, "record")
    replay.close()
    with pytest.raises(RuntimeError, match="is closed"):
        await replay.call("chat", REQUEST, Service())


def test_bad_arguments(tmp_path: Path, file: Path):
    with pytest.raises(ValueError, match="one of off, record"):
        Replay(file, "replay_and_record")
    for mode in ("record", "replay", "replay_or_record"):
        with pytest.raises(ValueError, match="needs the path"):
            Replay(None, mode)
    with pytest.raises(FileNotFoundError, match="No replay file"):
        Replay(file, "replay")
    assert not file.exists()
    file.write_text("no database, but long enough to look at " * 100)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as database:
        database.execute("CREATE TABLE calls (other)")
    before = foreign.read_bytes()
    for path in (file, foreign):
        for mode in ("record", "replay"):
            with pytest.raises(ValueError, match=r"no replay file|cannot be opened"):
                Replay(path, mode)
    assert foreign.read_bytes() == before


async def test_a_set_can_be_read_from_a_read_only_folder(file: Path, monkeypatch: pytest.MonkeyPatch):
    await recorded(file, (REQUEST, ANSWER))
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may write anywhere
    replay = Replay(file, "replay")
    assert await replay.call("chat", REQUEST, refuse) == ANSWER
    replay.close()
    assert listing(file.parent) == [file.name]


# A process that records calls one after the other and says so after each: ARGV = file, name, number of calls.
WRITER = textwrap.dedent("""
    import asyncio, sys
    from orchestra_jax.money.replay import Recorded, Replay
    path, name, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])
    async def main():
        replay = Replay(path, "replay_or_record")
        async def one(i):
            async def run():
                return Recorded([name, i])
            await replay.call("chat", {"writer": name, "call": i}, run)
            print(name, i, flush=True)
        for i in range(0, calls, 4):
            await asyncio.gather(*(one(j) for j in range(i, min(i + 4, calls))))
        replay.close()
    asyncio.run(main())
""")


def writer(path: Path, name: str, calls: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(calls)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def keys_of(lines: list[str]) -> set[str]:
    return {key("chat", {"writer": name, "call": int(call)}) for name, call in map(str.split, lines)}


def keys_in(path: Path) -> set[str]:
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return {name for (name,) in database.execute("SELECT key FROM calls")}


@pytest.mark.slow
def test_eight_processes_write_one_new_file_without_losing_a_row(file: Path):
    processes = [writer(file, f"w{i}", 60) for i in range(8)]
    lines = [process.communicate(timeout=300)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    expected = keys_of([line for part in lines for line in part])
    assert len(expected) == 480
    assert keys_in(file) == expected


def test_a_killed_writer_loses_no_call_that_had_returned(file: Path):
    survivor, victim = writer(file, "a", 200), writer(file, "b", 10**6)
    assert victim.stdout is not None
    seen = [victim.stdout.readline() for _ in range(100)]
    victim.send_signal(signal.SIGKILL)
    seen += victim.communicate(timeout=60)[0].splitlines()
    lines = survivor.communicate(timeout=300)[0].splitlines()
    assert (victim.returncode, survivor.returncode, len(lines)) == (-signal.SIGKILL, 0, 200)
    assert keys_of(seen) | keys_of(lines) <= keys_in(file)
    replay = Replay(file, "replay")
    answer = asyncio.run(replay.call("chat", {"writer": "b", "call": 99}, refuse))
    assert answer == Recorded(["b", 99])
    replay.close()
