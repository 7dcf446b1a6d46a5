"""The GPUs and nodes that a run would use: its processes, its servers, and the reasons why it cannot start."""

import math
from dataclasses import dataclass

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.engines.sglang.gpus import server_problems
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.sharing import groups_of_process, process_problems


@dataclass(frozen=True)
class Layout:
    """The place of each part of a run.

    Attributes:
        nodes: nodes with a trainer; there is one process on each.
        trainer: the trainer's GPUs on each of these nodes.
        servers: GPUs of each server that a process starts itself; empty if they run on other hosts, or in the trainer.
        turns: True if servers and trainer use the same GPUs in turns.
        urls: number of servers on other hosts.
        groups: most groups of a step that one process collects.
        problems: one sentence, with the fix, for each thing that cannot run.
    """

    nodes: int
    trainer: int
    servers: tuple[tuple[int, ...], ...]
    turns: bool
    urls: int
    groups: int
    problems: tuple[str, ...]

    def text(self) -> str:
        """Return the sentence that `experiments/plan.py` prints."""
        each = "one process" if self.nodes == 1 else f"{self.nodes} processes, one on each node,"
        where = f"{each} with {self.trainer} GPU{'s' if self.trainer > 1 else ''} for the trainer"
        if self.urls:
            where += f"; {self.urls} servers on other nodes, dealt out among the processes"
        elif self.servers:
            gpus = ", ".join("+".join(map(str, server)) for server in self.servers)
            how = "on the same GPUs in turns" if self.turns else "beside it"
            where += f"; {len(self.servers)} server{'s' if len(self.servers) > 1 else ''} {how} (GPUs {gpus})"
        else:
            where += ", whose first one also samples"
        return f"Layout: {where}. A process collects at most {self.groups} groups of a step."


def layout_of(cfg: RunConfig) -> Layout:
    """Return the layout of a run on nodes of `plan.gpus_per_node` GPUs, started with one process a node."""
    rollout, server, node = cfg.rollout, cfg.rollout.server, cfg.plan.gpus_per_node
    devices = math.prod(size for size in (cfg.mesh.data, cfg.mesh.fsdp, cfg.mesh.tensor) if size > 0)
    own = rollout.engine is EngineName.sglang and not rollout.urls
    servers = tuple(tuple(gpus) for gpus in server.gpus) if own else ()
    taken = sorted(gpu for gpus in servers for gpu in gpus)
    free = node if server.share_gpus or not own else node - len(taken)
    problems = []
    if free < 1:
        problems.append("The servers take all GPUs of the node: leave some to the trainer, or +placement=shared.")
        free = 1
    nodes, trainer = (1, devices) if devices <= free else (-(-devices // free), free)
    if own:
        problems += server_problems(server, trainer, node)
    if devices > free and devices % free:
        problems.append(
            f"{devices} trainer GPUs do not fill nodes that have {free} for it: make mesh.* a multiple of {free}."
        )
    problems += process_problems(cfg.algorithm, cfg.rollout, nodes, trainer, cfg.mesh.tensor)
    urls = len(rollout.urls) if rollout.engine is EngineName.sglang else 0
    most = max(len(groups_of_process(cfg.algorithm, Processes(index, nodes))) for index in range(nodes))
    return Layout(nodes, trainer, servers, server.share_gpus and own, urls, most, tuple(problems))
