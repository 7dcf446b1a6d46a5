"""Policy-gradient losses, each chosen by name: `LOSSES`.

Example: on policy, two tokens of advantage 1 have the loss -1, whatever the loss's name.
    >>> import jax.numpy as jnp
    >>> from orchestra_jax.rl.losses import LossConfig, policy_loss
    >>> logprobs, mask = jnp.log(jnp.array([[0.5, 0.25]])), jnp.ones((1, 2), bool)
    >>> loss, metrics = policy_loss(logprobs, logprobs, jnp.array([1.0]), mask, LossConfig("grpo"))
    >>> float(loss), float(metrics["ratio_mean"])
    (-1.0, 1.0)
"""

from orchestra_jax.config.algorithm import LossConfig
from orchestra_jax.rl.losses.base import LOSSES, Loss, LossInputs, LossOutputs, aggregation_of, recomputes_old
from orchestra_jax.rl.losses.masked import masked_percentiles
from orchestra_jax.rl.losses.policy import kl_estimate, policy_loss

__all__ = [
    "LOSSES",
    "Loss",
    "LossConfig",
    "LossInputs",
    "LossOutputs",
    "aggregation_of",
    "kl_estimate",
    "masked_percentiles",
    "policy_loss",
    "recomputes_old",
]
