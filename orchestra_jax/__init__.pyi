from orchestra_jax.api import load_run as load_run
from orchestra_jax.api import play as play
from orchestra_jax.config.compose import compose as compose
from orchestra_jax.rl import advantages as advantages
from orchestra_jax.rl import losses as losses
from orchestra_jax.rl import rewards as rewards
from orchestra_jax.rl.groups import group_arrays as group_arrays
from orchestra_jax.serving.orchestrator import Orchestrator as Orchestrator
from orchestra_jax.tools.base import tool as tool

__version__: str
