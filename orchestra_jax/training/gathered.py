"""Gather the policy of a run of several processes, whole, for the engine of each."""

from typing import Any

import jax

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.models.base import Params
from orchestra_jax.models.checkpoint.hf_names import TURNED
from orchestra_jax.processes.several import on_host


def gathered_params(rollout: RolloutConfig, params: Any) -> Params:
    """Return the parameters as the run's engine takes them; all processes call it together, once for each version.

    An engine may need them again when no other process takes part. What servers read lies in memory as their files do.
    """
    if rollout.engine is EngineName.embedded:
        return jax.device_put(on_host(params, None), jax.local_devices()[0])
    return on_host(params, rollout.serving_dtype, lambda path: path[-1].key in TURNED)
