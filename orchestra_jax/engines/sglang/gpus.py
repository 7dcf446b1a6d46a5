"""Check which GPUs are the trainer's and which are the servers', before either takes memory for long.

JAX takes every GPU that its process sees, and 75 % of its memory at once. So a trainer beside servers is started with
CUDA_VISIBLE_DEVICES, which the servers of the run do not inherit (`rollout.server.gpus` names theirs). On shared GPUs
JAX's own allocator would keep what the first update took. "platform" gives it back, but allocates every buffer from
the driver.
"""

import os
from collections.abc import Mapping, Sequence

import jax

from orchestra_jax.config.rollout import RolloutConfig, ServerOptions

_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_KEEPS = ("", "default", "bfc")  # allocators that give nothing back


def gpu_conflicts(rollout: RolloutConfig) -> list[str]:
    """Return a sentence if servers of the run get in the way of this process on a GPU; none if JAX has no GPU."""
    if rollout.urls or rollout.server.device != "cuda":
        return []
    found = [device.local_hardware_id for device in jax.local_devices() if device.platform == "gpu"]
    return _conflicts(rollout, [number for number in found if number is not None], os.environ)


def server_problems(server: ServerOptions, trainer: int, node: int | None = None) -> list[str]:
    """Return a sentence for each thing that is wrong with rollout.server.gpus, for the planner and for a run.

    Args:
        trainer: number of GPUs of the process.
        node: number of GPUs of its node, if known.
    """
    found, taken = [], sorted(gpu for gpus in server.gpus for gpu in gpus)
    if len(set(taken)) < len(taken) or (node is not None and any(gpu >= node for gpu in taken)):
        of = "" if node is None else f" of a node of {node} (plan.gpus_per_node)"
        found.append(f"rollout.server.gpus={list(map(list, server.gpus))} does not name distinct GPUs{of}.")
    if server.share_gpus and len(taken) not in (0, trainer):
        found.append(
            f"Each process has {trainer} GPU(s) and {len(taken)} of them have servers in turns: "
            "name each of its GPUs in rollout.server.gpus."
        )
    return found


def _conflicts(rollout: RolloutConfig, local: Sequence[int], environment: Mapping[str, str]) -> list[str]:
    """Return `gpu_conflicts`, where `local` are the numbers of JAX's GPUs among those that its process sees."""
    if not local:
        return []
    server = rollout.server
    if found := server_problems(server, len(local)):
        return found
    if server.share_gpus:
        if environment.get(_ALLOCATOR, "").lower() not in _KEEPS:
            return []
        return [
            f"rollout.server.share_gpus needs memory that JAX gives back: set {_ALLOCATOR}=platform before it starts."
        ]
    if not server.gpus:
        return [
            "The servers would start on the trainer's GPUs: name theirs in rollout.server.gpus=[[4],[5]] and start the "
            f"trainer with {_VISIBLE}=0,1,2,3, or share them in turns (+placement=shared)."
        ]
    ours = _numbers(local, environment.get(_VISIBLE))
    theirs = {gpu for gpus in server.gpus for gpu in gpus}
    if both := sorted(theirs.intersection(ours)):
        left = ",".join(str(gpu) for gpu in ours if gpu not in theirs) or "the numbers of other GPUs"
        return [
            f"GPU {both[0]} is the trainer's and in rollout.server.gpus: start the trainer with {_VISIBLE}={left}, or "
            "share in turns (+placement=shared)."
        ]
    return []


def _numbers(local: Sequence[int], visible: str | None) -> list[int]:
    """Return the node's numbers of JAX's GPUs; none if CUDA_VISIBLE_DEVICES has names instead of numbers."""
    if visible is None:
        return list(local)
    names = visible.split(",")
    return [int(names[index]) for index in local if index < len(names) and names[index].strip().isdigit()]
