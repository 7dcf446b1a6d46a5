"""The division of a step's groups among several processes, and their joint position in the tasks."""

from collections.abc import Sequence
from typing import Any

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.choices import Device, EngineName
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.data.pipeline import TaskIterator
from orchestra_jax.processes import Processes
from orchestra_jax.types import Task


def process_problems(
    algorithm: AlgorithmConfig, rollout: RolloutConfig, count: int, devices: int, tensor: int, beside: int = 1
) -> list[str]:
    """Return one sentence, with the fix, for each setting that does not go with so many processes.

    Args:
        count: number of processes.
        devices: devices of each process.
        tensor: devices along that axis of the mesh.
        beside: processes on one machine.
    """
    found = []
    if devices % max(1, tensor):
        found.append(
            f"mesh.tensor={tensor} does not divide the {devices} device(s) of a process: keep mesh.tensor within a "
            "process."
        )
    if count == 1:
        return found
    if algorithm.tasks_per_step % algorithm.minibatches or algorithm.tasks_per_step < count * algorithm.minibatches:
        found.append(
            f"algorithm.tasks_per_step={algorithm.tasks_per_step} in {algorithm.minibatches} minibatches does not give "
            f"each of {count} processes whole groups of each: raise it, or lower algorithm.minibatches."
        )
    if algorithm.reference_offload:
        found.append("A reference in host memory is for one process: set algorithm.reference_offload=false.")
    if rollout.engine is not EngineName.sglang:
        return found
    if 0 < len(rollout.urls) < count:
        found.append(f"rollout.urls names {len(rollout.urls)} server(s) for {count} processes: give each at least one.")
    if beside > 1 and not rollout.urls and rollout.server.device is Device.cuda:
        found.append(
            f"{beside} processes of one machine would start their servers on the same GPUs (rollout.server.gpus): "
            "start one process a machine (srun --ntasks-per-node=1), or name servers that are there in rollout.urls."
        )
    return found


def joint_position(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the position of all processes' streams together: that of the slowest process.

    Args:
        parts: of each process, `GroupStream.get_state()` whose `used` are places in the whole batches, with `own`, the
            process's places, and `size`, the groups of a batch.

    Returns:
        A state of one stream of whole batches. Another number of processes may go on from it.
    """
    first = min(parts, key=lambda part: part["number"])
    used = set()
    for part in parts:
        used |= {
            number * part["size"] + place for number in range(first["number"], part["number"]) for place in part["own"]
        }
        used |= set(part["used"])
    return {"batches": first["batches"], "number": first["number"], "used": sorted(used)}


class TasksOfProcess:
    """The tasks at this process's places of every batch. Its state is that of whole batches, alike in all processes."""

    def __init__(self, batches: TaskIterator, places: Sequence[int]) -> None:
        self._batches, self._places = batches, places
        self.get_state, self.set_state = batches.get_state, batches.set_state

    def __iter__(self) -> "TasksOfProcess":
        return self

    def __next__(self) -> list[Task]:
        batch = next(self._batches)
        return [batch[place] for place in self._places]


def groups_of_process(algorithm: AlgorithmConfig, processes: Processes) -> list[int]:
    """Return the groups of a step that this process collects: its share of every minibatch.

    So what a minibatch is made of, and each group's seeds, do not depend on the number of processes.
    """
    size = algorithm.tasks_per_step // algorithm.minibatches
    if processes.count == 1 or not size:
        return list(range(algorithm.tasks_per_step))
    return [g for g in range(algorithm.tasks_per_step) if g % size * processes.count // size == processes.index]
