"""Reading of what `group_files` and `trajectory_files` write, which training itself does only to go on."""

import base64
import functools
import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_origin, get_type_hints

import numpy as np

from orchestra_jax.evaluation.group_files import ARRAYS, NUMBERS, SUFFIX, StoredGroup, step_of
from orchestra_jax.io.whole import replacing, write_whole
from orchestra_jax.processes import Processes
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
    return _typed(Trajectory(task=task, **{**own, **made}))


def _turn(record: Mapping[str, Any]) -> Turn:
    calls = tuple(_typed(ToolCall(**call)) for call in record["calls"])
    results = tuple(_typed(ToolResult(**{**result, "usage": _rows(result["usage"])})) for result in record["results"])
    spans = tuple((int(version), int(count)) for version, count in record["version_spans"])
    arrays = {name: _unpacked(record[name]) for name in ARRAYS}
    return _typed(Turn(**{**record, **arrays, "calls": calls, "results": results, "version_spans": spans}))


def decode_task(record: Mapping[str, Any]) -> Task:
    """Return the task of a record for JSON."""
    tools = tuple(ToolSpec(**{**spec, "traits": tuple(spec["traits"])}) for spec in record["tools"])
    wish = Preference(**record["preference"])
    return Task(**{**record, "answer": tuple(record["answer"]), "tools": tools, "preference": wish})


def _group(record: Mapping[str, Any]) -> StoredGroup:
    whole = decode_task(record["task"])
    texts = [member.get("learner") for member in record["members"]]
    learner = tuple(None if scores is None else tuple(map(_unpacked, scores)) for scores in texts)
    return StoredGroup(
        step=record["step"],
        group=record["group"],
        members=tuple(decode_trajectory(member, whole) for member in record["members"]),
        rewards=tuple(record["rewards"]),
        advantages=tuple(record["advantages"]),
        kept=record["kept"],
        learner=learner if any(scores is not None for scores in learner) else (),
    )


def _unpacked(text: str) -> tuple[Any, ...]:
    if not text:
        return ()
    return tuple(np.frombuffer(base64.b64decode(text[1:]), NUMBERS[text[0]]).tolist())


def _rows(records: Sequence[Mapping[str, Any]]) -> tuple[Usage, ...]:
    return tuple(_typed(Usage(**row)) for row in records)


_Noun = TypeVar("_Noun", Trajectory, Turn, ToolCall, ToolResult, Usage)
_BEYOND = 1e300  # no figure of a trajectory; a sum of these could overflow


def _typed(noun: _Noun) -> _Noun:
    """Return a dataclass that came from a file; raise ValueError if a field has another type or is no figure."""
    own: Any = type(noun)
    for name, kind in _kinds(own).items():
        value = getattr(noun, name)
        if not isinstance(value, kind) or (isinstance(value, int | float) and not abs(value) < _BEYOND):
            raise ValueError(f"{name} is {value!r}")
    return noun


@functools.cache
def _kinds(noun: type) -> dict[str, Any]:
    """Return what `isinstance` may ask of each field; a number may be written with or without a point."""
    hints = {
        name: get_origin(kind) if get_origin(kind) in (tuple, Mapping) else kind
        for name, kind in get_type_hints(noun).items()
    }
    return {name: int | float if kind in (int, float) else kind for name, kind in hints.items()}


Kept = dict[tuple[int, int], Trajectory]  # by the number of the task and of the sample


def take_over(
    path: Path,
    rest: Path,
    policy: str,
    keys: Sequence[str],
    tasks: Sequence[Task],
    samples: int,
    line_of: Callable[[Trajectory], str],
) -> Kept:
    """Return the trajectories of these tasks in two files of an evaluation; write both anew.

    `path` then has these trajectories, and `rest` the same policy's others. A kill at any moment loses none.

    Args:
        path: file written by `trajectory_files.TrajectoryFile`.
        policy: mark of the policy in the files.
        keys: marks of the tasks, in their order.
        samples: of each task.
        line_of: gives the line of a trajectory in `path`.
    """
    places, found, others = {key: place for place, key in enumerate(keys)}, Kept(), dict[bytes, None]()
    moved, damaged = list[bytes](), list[bytes]()
    for file in (rest, path):
        lines = file.read_bytes().split(b"\n") if file.is_file() else []
        for line in lines:
            try:
                record = json.loads(line.decode())
                place, member = places.get(record["key"]), record["member"]
                if record["status"] == Status.FAILED:
                    continue
                if not isinstance(member, int) or member < 0:
                    raise ValueError(member)
                if place is not None and member < samples:
                    found[place, member] = replace(decode_trajectory(record, tasks[place]), group=place)
                    moved += [line] if file == rest else []
                elif record.get("policy") == policy:
                    others[line] = None
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
                if line != lines[-1]:  # which a kill may have cut, or is empty
                    damaged.append(line)
    if damaged:
        _put_aside(path, damaged)
    if others:  # with what moves from `rest` to `path`, until it is there
        write_whole(rest, b"\n".join([*others, *moved, b""]).decode())
    write_whole(path, "".join(map(line_of, found.values())))
    if not others:
        rest.unlink(missing_ok=True)
    elif moved:
        write_whole(rest, b"\n".join([*others, b""]).decode())
    return found


def _put_aside(path: Path, lines: Sequence[bytes]) -> None:
    """Append damaged lines to a file of their own, and say so."""
    aside = path.with_name(f"{path.name}.damaged")
    with aside.open("ab") as stream:
        stream.writelines(line + b"\n" for line in lines)
    said = (
        f"{len(lines)} damaged lines of {str(path)!r} are put aside in {aside.name!r}; what they held is asked again."
    )
    print(said, file=sys.stderr, flush=True)


class _Found(Protocol):
    found: Kept


_File = TypeVar("_File", bound=_Found)


async def dealt(
    folder: Path,
    processes: Processes,
    own: Sequence[tuple[int, int]],
    opened: Callable[[], Sequence[_File]],
) -> list[_File]:
    """Return this process's files of an evaluation; each has found what any process's has of this one's share.

    An earlier start may have had another number of processes, whose files have other shares.

    Args:
        folder: of all trajectories.
        own: places of this process's share.
        opened: opens the files, in the same order in every process.
    """
    mine, files = set(own), list[_File]()

    async def others() -> list[list[Kept]]:
        _adopt(folder, processes)
        files.extend(opened())
        return [[{place: t for place, t in file.found.items() if place not in mine} for file in files]]

    everyone = await processes.merged(others())
    for number, file in enumerate(files):
        for theirs in everyone:
            file.found = theirs[number] | file.found
        file.found = {place: file.found[place] for place in own if place in file.found}
    return files


def _adopt(folder: Path, processes: Processes) -> None:
    """Move to this process's files its part of the lines that processes left which this start lacks."""
    for gone in sorted(folder.glob("*/*.p*.jsonl")):
        named = re.fullmatch(r"(.+)\.p(\d+)\.jsonl", gone.name)
        if named is None or int(named[2]) < processes.count or int(named[2]) % processes.count != processes.index:
            continue
        path = gone.with_name(f"{named[1]}.p{processes.index}.jsonl" if processes.index else f"{named[1]}.jsonl")
        files = [file for file in (path, gone.with_name(f".{gone.name}.rest"), gone) if file.is_file()]
        whole = [file.read_bytes().rpartition(b"\n")[:2] for file in files]  # a kill may have cut a last line
        with replacing(path) as part:
            part.write_bytes(b"".join(chain(*whole)))
        for file in set(files) - {path}:
            file.unlink()
