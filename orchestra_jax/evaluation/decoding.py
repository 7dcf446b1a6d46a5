"""Reading of what `group_files` and `trajectory_files` write: trajectories and groups from JSON."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.evaluation.group_files import ARRAYS, NUMBERS, Scores, StoredGroup
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Trajectory, Turn, Usage


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


def decode_group(record: Mapping[str, Any]) -> StoredGroup:
    """Return the group of a line of a file of rollouts."""
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


def earlier_trajectories(
    file: Path, policy: str, keys: Sequence[str], tasks: Sequence[Task], samples: int
) -> tuple[Kept, list[str]]:
    """Return the trajectories of these tasks in a file of an evaluation, and the lines of the same policy's others.

    Args:
        file: written by `trajectory_files.TrajectoryFile`.
        policy: the mark of the policy in the file.
        keys: the marks of the tasks, in their order.
        tasks: the tasks.
        samples: of each task.
    """
    places, found, others = {key: place for place, key in enumerate(keys)}, Kept(), list[str]()
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
            place = places.get(record["key"])
            if record["status"] == Status.FAILED:
                continue
            if place is not None and record["member"] < samples:
                found[place, record["member"]] = replace(decode_trajectory(record, tasks[place]), group=place)
            elif record.get("policy") == policy:
                others.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue
    return found, others
