"""Reading of what `group_files` and `trajectory_files` write, which training itself does only to go on."""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.evaluation.group_files import ARRAYS, NUMBERS, SUFFIX, Scores, StoredGroup, step_of
from orchestra_jax.io.whole import write_whole
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Trajectory, Turn, Usage


def read_groups(folder: Path, steps: Sequence[int] | None = None) -> Iterator[StoredGroup]:
    """Yield every group in a run's folder, or those of some steps, by step and index.

    Raises:
        ValueError: a file is damaged.
    """
    for step in steps_in(folder) if steps is None else sorted(steps):
        files = [file for file in folder.glob(f"step-*{SUFFIX}") if step_of(file) == step]  # of one process each
        yield from sorted((group for file in files for group in _read(file)), key=lambda group: group.group)


def steps_in(folder: Path) -> list[int]:
    """Return the steps in a folder, in order."""
    return sorted({step_of(file) for file in folder.glob(f"step-*{SUFFIX}")})


def _read(file: Path) -> Iterator[StoredGroup]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            for line in stream:
                yield _group(json.loads(line))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(file)!r} is damaged: delete it and its step is left out. ({error})") from error


def decode_trajectory(record: Mapping[str, Any], task: Task) -> Trajectory:
    """Return the trajectory that `group_files.encode_trajectory` was given."""
    sequences = tuple(tuple(_turn(turn) for turn in turns) for turns in record["sequences"])
    own = {entry.name: record[entry.name] for entry in fields(Trajectory) if entry.name in record}
    made = {"status": Status(record["status"]), "sequences": sequences, "ledger": _rows(record["ledger"])}
    return Trajectory(task=task, **{**own, **made})


def _turn(record: Mapping[str, Any]) -> Turn:
    calls = tuple(ToolCall(**call) for call in record["calls"])
    results = tuple(ToolResult(**{**result, "usage": _rows(result["usage"])}) for result in record["results"])
    spans = tuple((int(version), int(count)) for version, count in record["version_spans"])
    arrays = {name: _unpacked(record[name]) for name in ARRAYS}
    return Turn(**{**record, **arrays, "calls": calls, "results": results, "version_spans": spans})


def _group(record: Mapping[str, Any]) -> StoredGroup:
    task = record["task"]
    tools = tuple(ToolSpec(**{**spec, "traits": tuple(spec["traits"])}) for spec in task["tools"])
    whole = Task(
        **{**task, "answer": tuple(task["answer"]), "tools": tools, "preference": Preference(**task["preference"])}
    )
    learner = tuple(_scores(member.get("learner")) for member in record["members"])
    return StoredGroup(
        step=record["step"],
        group=record["group"],
        members=tuple(decode_trajectory(member, whole) for member in record["members"]),
        rewards=tuple(record["rewards"]),
        advantages=tuple(record["advantages"]),
        kept=record["kept"],
        learner=learner if any(scores is not None for scores in learner) else (),
    )


def _scores(texts: Sequence[str] | None) -> Scores | None:
    return None if texts is None else tuple(map(_unpacked, texts))


def _unpacked(text: str) -> tuple[Any, ...]:
    if not text:
        return ()
    return tuple(np.frombuffer(base64.b64decode(text[1:]), NUMBERS[text[0]]).tolist())


def _rows(records: Sequence[Mapping[str, Any]]) -> tuple[Usage, ...]:
    return tuple(Usage(**row) for row in records)


Kept = dict[tuple[int, int], Trajectory]  # by the number of the task and of the sample


def take_over(path: Path, rest: Path, policy: str, keys: Sequence[str], tasks: Sequence[Task], samples: int) -> Kept:
    """Return the trajectories of these tasks in two files of an evaluation; `rest` then has the same policy's others.

    Args:
        path: file written by `trajectory_files.TrajectoryFile`.
        rest: file beside it.
        policy: mark of the policy in the files.
        keys: marks of the tasks, in their order.
        tasks: the tasks.
        samples: of each task.
    """
    places, found, others = {key: place for place, key in enumerate(keys)}, Kept(), dict[str, None]()
    for file in (rest, path):
        for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
            try:
                record = json.loads(line)
                place = places.get(record["key"])
                if record["status"] == Status.FAILED:
                    continue
                if place is not None and record["member"] < samples:
                    found[place, record["member"]] = replace(decode_trajectory(record, tasks[place]), group=place)
                elif record.get("policy") == policy:
                    others[line + "\n"] = None
            except (ValueError, KeyError, TypeError):
                continue
    if others:
        write_whole(rest, "".join(others))
    else:
        rest.unlink(missing_ok=True)
    return found
