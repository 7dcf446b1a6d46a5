"""Several trainer processes as one run: how they find each other, agree, and end together."""

from orchestra_jax.processes.group import Processes
from orchestra_jax.processes.start import joined

__all__ = ["Processes", "joined"]
