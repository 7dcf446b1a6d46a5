"""Find the other processes of a run: told by mesh.*, or by the launcher (Slurm's srun, Open MPI's mpirun)."""

import ctypes
import os
import re
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import jax

from orchestra_jax.config.schema import ConfigError, MeshConfig
from orchestra_jax.processes.group import Processes
from orchestra_jax.processes.lifeline import Lifeline
from orchestra_jax.processes.several import SeveralProcesses

_LIBC = ctypes.CDLL(None)
_LIBC.signal.argtypes, _LIBC.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p

_ENDS_S = 5.0  # the lifeline says within so many seconds whether an error comes from a process that is gone


@dataclass(frozen=True)
class Ranks:
    """One process among those that a launcher started.

    Attributes:
        coordinator: HOST:PORT where the first process listens.
        index: number of this process.
        count: number of processes.
        device: number of its only device, if several processes share those of a node; None: all that it sees.
    """

    coordinator: str
    index: int
    count: int
    device: int | None = None


def ranks(mesh: MeshConfig, environment: Mapping[str, str]) -> Ranks | None:
    """Return what the configuration or else the launcher says; None for a single process.

    Raises:
        ConfigError: several processes, but nothing tells where the first one listens.
    """

    def number(name: str, otherwise: int) -> int:
        return int(environment.get(name) or otherwise)

    if mesh.processes is not None or mesh.process is not None:
        if mesh.coordinator is None or mesh.processes is None or mesh.process is None:
            raise ConfigError(
                "Set mesh.coordinator=HOST:PORT, mesh.processes=COUNT and mesh.process=INDEX together, or none of them."
            )
        if mesh.process >= mesh.processes:
            raise ConfigError(f"mesh.process={mesh.process} must be below mesh.processes={mesh.processes}.")
        return Ranks(mesh.coordinator, mesh.process, mesh.processes) if mesh.processes > 1 else None
    # SLURM_NTASKS is there in a batch script too, which is one process; srun sets the number of the step.
    if (count := number("SLURM_STEP_NUM_TASKS", 1)) > 1:
        job = number("SLURM_JOB_ID", 0)
        coordinator = f"{_first_host(environment.get('SLURM_STEP_NODELIST', ''))}:{61440 + job % 4096}"
        index, local = number("SLURM_PROCID", 0), number("SLURM_LOCALID", 0)
        shared = number("SLURM_STEP_NUM_NODES", count) < count
    elif (count := number("OMPI_COMM_WORLD_SIZE", 1)) > 1:
        index, local = number("OMPI_COMM_WORLD_RANK", 0), number("OMPI_COMM_WORLD_LOCAL_RANK", 0)
        here = number("OMPI_COMM_WORLD_LOCAL_SIZE", 1)
        shared = here > 1
        # On one machine all of them are children of one mpirun.
        coordinator = f"127.0.0.1:{61440 + os.getppid() % 4096}" if here == count else ""
    else:
        return None
    coordinator = mesh.coordinator or environment.get("JAX_COORDINATOR_ADDRESS") or coordinator
    if not coordinator or coordinator.startswith(":"):
        raise ConfigError(
            f"The launcher started {count} processes, but does not tell where the first one is: set "
            "mesh.coordinator=HOST:PORT."
        )
    return Ranks(coordinator, index, count, local if shared else None)


@contextmanager
def join(mesh: MeshConfig) -> Iterator[Processes]:
    """Join the other processes of the run, and leave them at the end.

    Only the first of several processes prints. When one of them is gone or fails alone, all end.

    Raises:
        ConfigError: see `ranks`; or the others were not there in time.
    """
    found = ranks(mesh, os.environ)
    if found is None:
        yield Processes()
        return
    processes, lifeline = _join(found)
    processes.lifeline = lifeline
    stdout = sys.stdout
    before = _abort_after_the_lifeline()
    try:
        if not processes.first:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  for as long as the run prints
        yield processes
    except BaseException as error:
        if not processes.agreed:
            _fail_alone(error)
        raise
    finally:
        sys.stdout = stdout
        lifeline.close()
        jax.distributed.shutdown()
        _LIBC.signal(signal.SIGABRT, before)


def _join(found: Ranks) -> tuple[Processes, Lifeline]:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            found.coordinator,
            found.count,
            found.index,
            # By default JAX takes one device for each process of a launcher, even if a process has a whole node.
            local_device_ids=[] if found.device is None else [found.device],
            cluster_detection_method="deactivate",
            initialization_timeout=180,
            shutdown_timeout_seconds=60,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"Process {found.index} of {found.count} did not meet the others at {found.coordinator}: {error}"
        ) from error
    processes = SeveralProcesses(found.index, found.count)
    machines = processes.gather(socket.gethostname())
    processes.beside = machines.count(machines[found.index])
    host = found.coordinator.rpartition(":")[0].strip("[]")

    def share_port(port: int | None) -> int:
        first = processes.gather(port)[0]
        assert first is not None
        return first

    return processes, Lifeline(found.index, found.count, host, share_port)


def _abort_after_the_lifeline() -> int | None:
    """Let a process that aborts sleep first, in C, so that the lifeline tells the reason and sets the exit status.

    JAX's runtime aborts at once when the first process is gone, and no callback of ours may prevent that (jaxlib
    0.10.2 cannot hand its status to Python). `sleep` gets the signal's number, 6, as its seconds.

    Returns:
        The address of the handler before, for `signal`.
    """
    before: int | None = _LIBC.signal(signal.SIGABRT, ctypes.cast(_LIBC.sleep, ctypes.c_void_p))
    return before


def _fail_alone(error: BaseException) -> None:
    """End this process with the trace of its error, unless it has told its reason already.

    An ordinary exit would wait for the others, which wait for this process. They see that it is gone.
    """
    threading.Event().wait(_ENDS_S)  # if the error is that another process is gone, the lifeline ends this one
    status = error.code if isinstance(error, SystemExit) else None
    with suppress(OSError):  # of a full disk
        if status is None:
            traceback.print_exc()
        sys.stdout.flush()
    os._exit(status if isinstance(status, int) else 1)


def _first_host(nodes: str) -> str:
    """Return the first host of Slurm's list: node001-ib of "node[001-004,7]-ib,other"."""
    head = re.match(r"(?:[^,\[]|\[[^\]]*\]?)*", nodes)
    assert head is not None  # it matches anything
    return re.sub(r"\[([^,\-\]]*)[^\]]*\]?", r"\1", head[0])
