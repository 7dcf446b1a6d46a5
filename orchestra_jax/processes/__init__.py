"""Several trainer processes as one run: how they find each other, agree, and end together."""

import os
from contextlib import AbstractContextManager, nullcontext

from orchestra_jax.config.schema import MeshConfig
from orchestra_jax.processes.group import Processes

__all__ = ["Processes", "joined"]


def joined(mesh: MeshConfig) -> AbstractContextManager[Processes]:
    """Join the other processes of the run before anything else starts JAX, and leave them at the end.

    A run of one process, which neither mesh.* nor a launcher says to be one of several, loads nothing for it.

    Raises:
        ConfigError: the settings contradict each other, or the others were not there in time.
    """
    launched = any(int(os.environ.get(name) or 1) > 1 for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    if mesh.processes is None and mesh.process is None and not launched:
        return nullcontext(Processes())
    from orchestra_jax.processes.start import join

    return join(mesh)
