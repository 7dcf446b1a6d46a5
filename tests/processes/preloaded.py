"""What a process that trains imports; the server of `forked` imports it once, and no backend of JAX starts."""

import gc

import grain  # noqa: F401
import hydra  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import optax  # noqa: F401
import orbax.checkpoint  # noqa: F401
from transformers import PreTrainedTokenizerFast  # noqa: F401

import orchestra_jax.engines.embedded
import orchestra_jax.envs.quickstart.environment
import orchestra_jax.envs.registry
import orchestra_jax.training.evaluate
import orchestra_jax.training.main  # noqa: F401

gc.collect()
gc.freeze()  # a process that looks for garbage need not copy all of this
