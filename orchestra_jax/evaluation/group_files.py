"""Files of the groups of each training step, without loss: gzipped lines of JSON, a group to a line."""

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.io.whole import replacing
from orchestra_jax.types import Task, Trajectory, Turn

SUFFIX = ".jsonl.gz"
Scores = tuple[tuple[float, ...], ...]  # log-probs of the sampled ids of each sequence
ARRAYS = ("prompt_ids", "sampled_ids", "logprobs")
NUMBERS = {"i": "<i4", "f": "<f4", "d": "<f8"}  # of arrays, by the first letter of their text


@dataclass(frozen=True)
class StoredGroup:
    """One group of a training step (counted from 1), with the rewards and advantages that the update used.

    Attributes:
        group: its index within the step.
        kept: the group has a gradient.
        learner: by member and sequence, the learner's own log-probs of the sampled ids before the update; None for a
            member that it did not score, empty where it scored none.
    """

    step: int
    group: int
    members: tuple[Trajectory, ...]
    rewards: tuple[float, ...]
    advantages: tuple[float, ...]
    kept: bool
    learner: tuple[Scores | None, ...] = ()

    @property
    def task(self) -> Task:
        """The task of all members."""
        return self.members[0].task


def write_groups(path: Path, groups: Sequence[StoredGroup]) -> None:
    """Write one file of groups, which replaces the file before and is never there in part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part, gzip.open(part, "wt", encoding="utf-8", compresslevel=1) as stream:
        for group in groups:
            own = {"step": group.step, "group": group.group, "kept": group.kept}
            figures = {"rewards": group.rewards, "advantages": group.advantages}
            members = [encode_trajectory(member) for member in group.members]
            for record, scores in zip(members, group.learner, strict=False):
                if scores is not None:
                    record["learner"] = [_packed(own) for own in scores]
            stream.write(json.dumps({**own, "task": asdict(group.task), **figures, "members": members}) + "\n")


def step_of(file: Path) -> int:
    """Return the step of a file of rollouts: 12 for step-000012.1.jsonl.gz."""
    return int(file.name.removeprefix("step-").partition(".")[0])


def encode_trajectory(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory for JSON, without its task; `decoding.decode_trajectory` is the inverse."""
    own = {entry.name: getattr(trajectory, entry.name) for entry in fields(trajectory) if entry.name != "task"}
    sequences = [[_encoded_turn(turn) for turn in turns] for turns in trajectory.sequences]
    return {
        **own,
        "solved": bool(trajectory.solved),
        "sequences": sequences,
        "ledger": list(map(asdict, trajectory.ledger)),
    }


def _encoded_turn(turn: Turn) -> dict[str, Any]:
    # `asdict` would copy the arrays number by number.
    record = asdict(replace(turn, prompt_ids=(), sampled_ids=(), logprobs=()))
    return record | {name: _packed(getattr(turn, name)) for name in ARRAYS}


def _packed(values: Sequence[float]) -> str:
    """Return numbers in base64, a tenth of the time and half of the space of digits; the first letter is their type."""
    if not len(values):
        return ""
    if isinstance(values[0], int | np.integer):
        code = "i"
    else:
        exact = np.asarray(values, np.float64)
        with np.errstate(over="ignore"):
            code = "f" if np.array_equal(exact.astype(np.float32), exact, equal_nan=True) else "d"
    return code + base64.b64encode(np.asarray(values, NUMBERS[code]).tobytes()).decode()
