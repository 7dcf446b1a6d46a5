"""Files of an evaluation's trajectories, a line each as they end: to be read, and to resume from after a stop."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestra_jax.evaluation.calls import offered_models
from orchestra_jax.evaluation.group_files import encode_trajectory
from orchestra_jax.io.whole import write_whole
from orchestra_jax.types import Task, Trajectory


class TrajectoryFile:
    """The trajectories of one set of tasks in a file, and in a second file beside it others of the same policy.

    So a run with fewer questions or samples loses nothing: a later run with all of them finds the rest again.

    Args:
        policy: tells this policy and its sampling from others; None: earlier trajectories are not taken over.
        tasks: in the order in which they are numbered.
        model: the name of the policy's own model, None if it is not known.

    Attributes:
        found: earlier trajectories, by the task's number and the sample's.
    """

    def __init__(
        self, path: Path, policy: str | None, tasks: Sequence[Task], samples: int = 1, model: str | None = None
    ) -> None:
        self.path, self._model, self._policy = path, model, _digest(policy)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._keys = [_digest(policy, task) for task in tasks]
        self.found: dict[tuple[int, int], Trajectory] = {}
        rest = path.with_name(f".{path.name}.rest")
        if policy is not None and (path.is_file() or rest.is_file()):
            from orchestra_jax.evaluation.decoding import take_over  # only to resume

            self.found = take_over(path, rest, self._policy, self._keys, tasks, samples, self._line)
        else:
            rest.unlink(missing_ok=True)
            write_whole(path, "")

    def add(self, trajectory: Trajectory) -> None:
        """Append a trajectory that ended."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(self._line(trajectory))

    def _line(self, trajectory: Trajectory) -> str:
        own = {"key": self._keys[trajectory.group], "policy": self._policy, "policy_model": self._model}
        return json.dumps({**own, **_record(trajectory)}) + "\n"


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def _record(trajectory: Trajectory) -> dict[str, Any]:
    """Return what reports and readers need: no token ids or log-probs, and of the task its words only."""
    task = trajectory.task
    return {
        "id": task.id,
        "question": task.question,
        "family": task.family,
        "preference": task.preference.instruction,
        "weights": {name: getattr(task.preference, name) for name in ("tools", "outcome", "compute", "latency")},
        "reference": task.answer,
        "menu": task.extra.get("instance") or [spec.name for spec in task.tools],
        "tools": [spec.name for spec in task.tools],
        "offers": {spec.name: [spec.price_usd, spec.latency_s] for spec in task.tools},
        "models": offered_models(task),
        "cost_usd": trajectory.cost_usd,
        "latency_s": trajectory.latency_s,
        **encode_trajectory(trajectory.without_ids()),
    }
