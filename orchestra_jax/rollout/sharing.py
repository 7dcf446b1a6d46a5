"""The rules by which a run divides among processes; a run and the planner ask the same."""

from orchestra_jax.config.choices import Device, EngineName
from orchestra_jax.config.schema import WorldConfig


def process_problems(cfg: WorldConfig, count: int, devices: int, tensor: int, beside: int = 1) -> list[str]:
    """Return one sentence, with the fix, for each setting that does not go with so many processes.

    Args:
        count: number of processes.
        devices: devices of each process.
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
