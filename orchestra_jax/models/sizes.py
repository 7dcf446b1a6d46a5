"""The number of a model's parameters, for plans and benchmarks."""

import math

import jax

from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.decoder import abstract_params


def num_params(config: DecoderConfig) -> int:
    """Return the number of parameters; a tied head counts once."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_params(config)))
