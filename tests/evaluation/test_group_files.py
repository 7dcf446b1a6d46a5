"""Rollouts on the disk are those of the step, to the last bit."""

import contextlib
import dataclasses
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra_jax.evaluation.decoding import decode_trajectory, read_groups
from orchestra_jax.evaluation.group_files import StoredGroup, encode_trajectory, write_groups
from orchestra_jax.evaluation.trajectory_files import TrajectoryFile
from orchestra_jax.processes import Processes
from orchestra_jax.training.loggers.rollouts import RolloutFiles
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Trajectory, Turn, Usage

TASK = Task(
    "t-1", "What?", ("a", "b"), (ToolSpec("search", "finds", {"type": "object"}, 0.25, None, True, ("free",)),),
    Preference("cost", "cheap, please", {"search": 0.5}, 1.0, 0.25, 0.0), "lookup", {"instance": {"seed": 3}},
)  # fmt: skip
ROW = Usage("search", "tool", 3, 1, 2, 0.1, 0.2, "list", True)


def trajectory(member: int = 0, group: int = 0, ids: tuple[int, ...] = (5, 151_668)) -> Trajectory:
    turn = Turn(
        ids, ids, tuple(float(np.float32(-0.1 * n)) for n in range(len(ids))), 7, "stop", "text \ud83d",
        (ToolCall("search", {"q": "x"}),), (ToolResult("found", (ROW,), final="b", refused=True),), ((6, 1), (7, 1)),
        "and?",
    )  # fmt: skip
    turns, wrong = ((turn,), (turn, turn)), {"said": "no"}
    return Trajectory(TASK, group, member, turns, Status.MALFORMED, "why", None, False, (ROW, ROW), wrong)


def stored(step: int, group: int, members: int = 2) -> StoredGroup:
    made = tuple(trajectory(member, group) for member in range(members))
    return StoredGroup(step, group, made, (0.25,) * members, (-1.0,) * members, True)


@given(st.lists(st.integers(0, 2**31 - 1)), st.lists(st.floats(allow_nan=False)))
def test_every_bit_comes_back(ids: list[int], logprobs: list[float]) -> None:
    one = trajectory()
    turn = dataclasses.replace(one.turns[0], prompt_ids=tuple(ids), sampled_ids=(), logprobs=tuple(logprobs))
    one = dataclasses.replace(one, sequences=((turn,),))
    assert decode_trajectory(encode_trajectory(one), TASK) == one


def test_groups_of_several_processes_come_in_their_order(tmp_path: Path) -> None:
    write_groups(tmp_path / "step-000002.jsonl.gz", [stored(2, 0), stored(2, 2)])
    write_groups(tmp_path / "step-000002.1.jsonl.gz", [stored(2, 1), stored(2, 3)])
    write_groups(tmp_path / "step-000010.jsonl.gz", [stored(10, 0)])
    found = list(read_groups(tmp_path))
    assert found == [*(stored(2, group) for group in range(4)), stored(10, 0)]
    assert list(read_groups(tmp_path, [10, 11])) == [stored(10, 0)]


@pytest.mark.parametrize("damage", ["cut", "no gzip", "no group"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "step-000001.jsonl.gz"
    write_groups(file, [stored(1, 0)])
    content = {"cut": file.read_bytes()[:-20], "no gzip": b"{}", "no group": gzip.compress(b"{}\n")}[damage]
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"step-000001.jsonl.gz' is damaged: delete it"):
        list(read_groups(tmp_path))


def test_a_run_that_goes_on_removes_what_it_does_again(tmp_path: Path) -> None:
    files = RolloutFiles(tmp_path, 1, Processes())
    for step in (1, 2, 3):
        rows = [dataclasses.replace(m, group=g) for g in (0, 1) for m in stored(step, g).members]
        files.add(step, rows, np.full((2, 2), 0.25), np.full((2, 2), -1.0), np.array([True, True]))
    files.close()
    (tmp_path / "rollouts" / ".step-000004.jsonl.gz.part").write_text("half")
    RolloutFiles(tmp_path, 3, Processes()).close()
    assert sorted(file.name for file in (tmp_path / "rollouts").iterdir()) == [
        "step-000001.jsonl.gz", "step-000002.jsonl.gz",
    ]  # fmt: skip
    assert list(read_groups(tmp_path / "rollouts", [2])) == [stored(2, 0), stored(2, 1)]


def test_a_step_that_could_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "rollouts").write_text("a file")
    files = RolloutFiles(tmp_path, 1, Processes())
    files.add(1, stored(1, 0).members, np.zeros((1, 2)), np.zeros((1, 2)), np.array([True]))
    with pytest.raises(OSError, match="rollouts"):
        files.close()


def test_a_kill_while_trajectories_are_sorted_into_files_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tasks = [dataclasses.replace(TASK, id=str(number), extra={}) for number in range(6)]
    file = TrajectoryFile(tmp_path / "held_out.jsonl", "weights", tasks)
    for number, task in enumerate(tasks):
        file.add(dataclasses.replace(trajectory(group=number), task=task))

    def found(count: int) -> set[int]:
        return {place for place, _ in TrajectoryFile(file.path, "weights", tasks[:count]).found}

    for count in (2, 6, 3, 6):  # some leave the file, come back, and others leave it
        for writes in range(3):
            with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
                patched.setattr(Path, "replace", _killed_after(writes))
                found(count)
        assert found(count) == set(range(count))
        assert len(file.path.read_text().splitlines()) == count
    assert {each.name for each in tmp_path.iterdir() if each.suffix != ".part"} == {"held_out.jsonl"}


def _killed_after(writes: int) -> Callable[[Path, Path], None]:
    done: list[Path] = []

    def replace(path: Path, target: Path) -> None:
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(target)
        os.replace(path, target)

    return replace
