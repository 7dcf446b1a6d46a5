"""Policy-gradient losses, each chosen by name: `LOSSES`. `policy_loss` has an example."""

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
