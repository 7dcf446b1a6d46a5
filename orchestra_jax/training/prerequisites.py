"""Check what a run needs from elsewhere: the hub, a checkpoint's policy, servers, the processes beside it."""

import contextlib
import re
import socket
from pathlib import Path

import jax

from orchestra_jax.config.choices import EngineName, ReplayMode
from orchestra_jax.config.schema import ConfigError, ModelConfig, ReplayConfig, RunConfig
from orchestra_jax.io import hub
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.checkpoint.reading import read_config
from orchestra_jax.models.families import run_settings
from orchestra_jax.processes import Processes
from orchestra_jax.rl.setup import device_mesh
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.sharing import process_problems
from orchestra_jax.types import ToolSpec

_MOUNTS = Path("/proc/self/mountinfo")  # Linux alone has it
_NETWORK = re.compile(r"nfs4?|cifs|smb\w*|lustre|beegfs\w*|gpfs|ceph|glusterfs|wekafs|pvfs2|afs|9p|fuse\..*")
_OF_THIS_MACHINE = ("fuse.fuse-overlayfs", "fuse.mergerfs")


def hub_problems(cfg: RunConfig) -> list[str]:
    """Return a sentence for every id that the hub does not give; fetch what is not in the cache yet."""
    model, evaluated = cfg.model, cfg.data.evaluation()
    key = "data.path" if cfg.data.path is not None else "data.mixture"
    sources = [(key, source.path) for source in cfg.data.training()]
    sources += [("data.eval_path", evaluated.path)] if evaluated and cfg.evaluation.questions else []
    tokenizer = None if model.tokenizer in ("environment", model.path) else model.tokenizer
    found = [hub.problem("model.path", model.path, "model")] if model.path else []
    if tokenizer:
        found.append(hub.problem("model.tokenizer", tokenizer, "model", hub.SMALL))
    found += [hub.problem(name, path, "dataset") for name, path in sources]
    return [problem for problem in found if problem]


def checkpoint_config(model: ModelConfig, chat: ChatFormat) -> DecoderConfig:
    """Return the architecture of the policy at model.path.

    Raises:
        ConfigError: its config.json cannot be read, or its vocabulary is not the tokenizer's.
    """
    try:
        config = read_config(str(model.path), **run_settings(model))
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    tokenizer = chat.tokenizer
    # Added tokens count where prompts have them: some tokenizers have one for pictures that their text models lack.
    tool = ToolSpec("tool", "", {"type": "object", "properties": {}})
    written = (*chat.prompt_ids([{"role": "user", "content": ""}], [tool]), *chat.observation_ids([""]))
    if (known := max(tokenizer.vocab_size, 1 + max(written))) > config.vocab_size:
        raise ConfigError(
            f"The run's tokenizer has {known} tokens, and the policy in {model.path!r} knows {config.vocab_size}: "
            "set model.tokenizer to the policy's own."
        )
    if model.tokenizer == "environment" and len(tokenizer) != config.vocab_size:  # no word would be the policy's
        raise ConfigError(
            f"The world of this run has {len(tokenizer)} words (model.tokenizer=environment), and the policy in "
            f"{model.path!r} knows {config.vocab_size}, of another world: set env.name to that of its run."
        )
    return config


def beside_problems(cfg: RunConfig, processes: Processes) -> list[str]:
    """Return a sentence for all that does not fit the servers and the other processes of a run."""
    found = list[str]()
    if cfg.rollout.engine is EngineName.sglang:
        from orchestra_jax.engines.sglang.gpus import gpu_conflicts
        from orchestra_jax.engines.sglang.server_check import silent_servers

        found += silent_servers(cfg.rollout.urls) + gpu_conflicts(cfg.rollout)
    if processes.count > 1:
        with contextlib.suppress(ValueError):  # `preflight` tells what is wrong with the mesh itself
            mesh = device_mesh(cfg.mesh)
            count, devices = processes.count, jax.local_device_count()
            if mesh is None:
                found.append(f"The mesh of one device does not go with {count} processes: set mesh.fsdp=-1.")
            tensor = 1 if mesh is None else mesh.shape["tensor"]
            found += process_problems(cfg.algorithm, cfg.rollout, count, devices, tensor, processes.beside)
    return found


def refuse_shared_record(replay: ReplayConfig, processes: Processes) -> None:
    """Refuse a file of recorded calls on a network disk that several machines would write: it would be damaged.

    Raises:
        ConfigError: in all processes.
    """
    if replay.mode in (ReplayMode.off, ReplayMode.replay) or not replay.path:
        return
    path = Path(replay.path).resolve()
    own = socket.gethostname(), path, network_disk(path)
    everyone = set(processes.gather(own))
    with processes.together():
        for _, path, disk in sorted(everyone, key=repr):
            hosts = sorted({host for host, other, _ in everyone if other == path})
            if disk and len(hosts) > 1:
                raise ConfigError(
                    f"replay.path={replay.path} lies on a network disk ({disk}), where {' and '.join(hosts[:2])} must "
                    f"not write one SQLite file: set a path on a disk of each machine, as replay.path=/tmp/{path.name}."
                )


def network_disk(path: Path) -> str | None:
    """Return the kind of the network disk that an absolute path lies on, such as nfs4; None: no such disk is known."""
    found, longest = None, -1
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
            mount, _, kind = line.partition(" - ")
            place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), mount.split(" ")[4])
            if path.is_relative_to(place) and len(place) >= longest:  # a later mount hides one at the same place
                found, longest = kind.split(" ")[0], len(place)
    return found if found and _NETWORK.fullmatch(found) and found not in _OF_THIS_MACHINE else None
