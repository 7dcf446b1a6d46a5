"""The smallest policy: what one layer costs to trace and compile is most of a micro run."""

from orchestra_jax.models.qwen3 import Qwen3Config


class OneLayer(Qwen3Config):
    presets = {"tiny": Qwen3Config.presets["tiny"] | {"num_layers": 1}}  # noqa: RUF012 - as in the base
