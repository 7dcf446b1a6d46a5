"""The reference of the KL: the policy as training starts from it, frozen; loaded only by a run with a KL.

Under LoRA the frozen base is the reference, and nothing here is used.
"""

from typing import Any

import jax
import jax.numpy as jnp

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.models.base import Params


def starting_reference(algorithm: AlgorithmConfig, params: Params) -> Any:
    """Return a frozen copy of the policy, sharded like it, or in host memory as numpy arrays."""
    dtype = jnp.dtype(algorithm.reference_dtype)

    def frozen(leaf: Any) -> Any:
        copy = jnp.array(leaf, dtype, copy=True)
        return jax.device_get(copy) if algorithm.reference_offload else copy  # one after the other

    return jax.tree.map(frozen, params)
