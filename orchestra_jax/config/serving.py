"""Settings of servers that follow from those of rollouts."""

from orchestra_jax.config.choices import Device, DType
from orchestra_jax.config.rollout import RolloutConfig


def serving_dtype(rollout: RolloutConfig) -> DType:
    """Return the dtype that servers sample in; they do not choose it, as SGLang's `auto` makes float16 of float32."""
    on_cpu = not rollout.urls and rollout.server.device is Device.cpu
    return rollout.weight_dtype or (DType.float32 if on_cpu else DType.bfloat16)
