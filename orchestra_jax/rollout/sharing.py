"""What belongs to which process: groups of a step and its part of the stream of tasks; and what cannot be divided."""

from collections.abc import Awaitable, Sequence
from typing import Any

from orchestra_jax.config.choices import Device, EngineName
from orchestra_jax.config.schema import AlgorithmConfig, WorldConfig
from orchestra_jax.data.pipeline import TaskIterator
from orchestra_jax.engines.base import Engine
from orchestra_jax.envs.base import Script
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.types import Task, Trajectory


def own_groups(algorithm: AlgorithmConfig, processes: Processes) -> list[int]:
    """The groups of a step that this process collects: its share of every minibatch.

    So what a minibatch is made of, and each group's seeds, do not depend on the number of processes.
    """
    size = algorithm.tasks_per_step // algorithm.minibatches
    if processes.count == 1 or not size:
        return list(range(algorithm.tasks_per_step))
    return [g for g in range(algorithm.tasks_per_step) if g % size * processes.count // size == processes.index]


def process_problems(cfg: WorldConfig, count: int, devices: int, tensor: int, beside: int = 1) -> list[str]:
    """One sentence, with the fix, for all that does not go with so many processes; the planner and a run ask the same.

    Args:
        count: processes.
        devices: of each.
        tensor: devices along that axis of the mesh.
        beside: processes on one machine.
    """
    found, algorithm, rollout = [], cfg.algorithm, cfg.rollout
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


class OwnTasks:
    """The tasks of some places of every batch; the state is that of the batches, the same in every process."""

    def __init__(self, batches: TaskIterator, places: Sequence[int]) -> None:
        self._batches, self._places = batches, places

    def __iter__(self) -> "OwnTasks":
        return self

    def __next__(self) -> list[Task]:
        batch = next(self._batches)
        return [batch[place] for place in self._places]

    def get_state(self) -> dict[str, Any]:
        return self._batches.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._batches.set_state(state)


def whole_position(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The position of all processes' streams together, whatever their number: that of the one that is behind.

    Args:
        parts: of the processes: `GroupStream.get_state()` whose `used` are places in the whole batches, with `own`, the
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


async def collect_all(
    processes: Processes, collector: Collector, engine: Engine, tasks: Sequence[Task], **settings: Any
) -> list[Trajectory]:
    """`Collector.collect` with one trajectory a task, where each process plays its share and gets all of them.

    Those of several processes come without ids and log-probs.
    """
    numbers = processes.mine(range(len(tasks)))
    work = collector.collect(engine, processes.mine(tasks), numbers=numbers, **settings)
    return await share_all(processes, work)


async def play_all(
    processes: Processes, collector: Collector, script: Script, tasks: Sequence[Task], **settings: Any
) -> list[Trajectory]:
    """`Collector.play`, likewise."""
    return await share_all(processes, collector.play(script, processes.mine(tasks), **settings))


async def share_all(processes: Processes, work: Awaitable[list[Trajectory]]) -> list[Trajectory]:
    """All trajectories, where `work` gives this process's share; those of several come without ids and log-probs."""
    if processes.count == 1:
        return await work

    async def sendable() -> list[Trajectory]:
        return [trajectory.without_ids() for trajectory in await work]

    return await processes.merged(sendable())
