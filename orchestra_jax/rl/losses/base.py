"""The type of a loss, a function from the log-probs of a batch to the loss of every token, and the list of all losses.

Axes: B sequences, T tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jax import Array
from jaxtyping import Bool, Float

from orchestra_jax.config.algorithm import LossConfig
from orchestra_jax.config.choices import Aggregation
from orchestra_jax.config.registry import Registry


@dataclass(frozen=True)
class LossInputs:
    """The arrays that a loss is computed from; at least float32, and 0 where the mask is 0.

    Attributes:
        logprobs: log-probs of the policy being trained; they alone carry a gradient.
        old_logprobs: log-probs of the policy at the start of the step.
        advantages: one for every token; constant along a row unless the caller gave one per token.
        mask: tokens that the policy sampled and that carry loss.
        cfg: clip ranges and other constants.
        share: tokens of the row as a share of its trajectory's; below 1 where the trajectory forked into several rows.
        other_log_ratios: sum of the log-ratios over the trajectory's other rows, without gradient.
    """

    logprobs: Float[Array, "B T"]
    old_logprobs: Float[Array, "B T"]
    advantages: Float[Array, "B T"]
    mask: Bool[Array, "B T"]
    cfg: LossConfig
    share: Float[Array, "B 1"]
    other_log_ratios: Float[Array, "B 1"]


@dataclass(frozen=True)
class LossOutputs:
    """The result of a loss.

    Attributes:
        tokens: loss of every token, to be minimised; entries where the mask is 0 change nothing.
        ratio: the ratio of new to old policy that was used, for the metrics.
        clipped: tokens whose gradient a clip stops, by the clip's name, for the metrics `clip_fraction_<name>`.
    """

    tokens: Float[Array, "B T"]
    ratio: Float[Array, "B T"]
    clipped: Mapping[str, Bool[Array, "B T"]] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss:
    """A loss, and the decorator that makes one from a function.

    Attributes:
        tokens: the function.
        aggregation: way from token losses to one number where `LossConfig.aggregation` is None.
        sequence_ratio: whether the ratio is over a whole sequence. It would collect the engine's rounding of every
            token, so `old` must be the learner's own (`recomputes_old`).
        sums_tokens: whether a trajectory's gradient is a sum over its tokens and not a mean. Its KL is summed likewise,
            and the learner divides both by the mean length, so that neither outgrows the other or `max_grad_norm`.
    """

    tokens: Callable[[LossInputs], LossOutputs]
    aggregation: Aggregation = Aggregation.token
    sequence_ratio: bool = False
    sums_tokens: bool = False


_PER_TOKEN, _PER_SEQUENCE = "orchestra_jax.rl.losses.surrogates", "orchestra_jax.rl.losses.sequence_ratio"
LOSSES: Registry[Loss] = Registry(
    "loss",
    "algorithm.loss.loss",
    group="orchestra_jax.losses",
    builtin={
        "grpo": f"{_PER_TOKEN}:grpo",
        "dr_grpo": f"{_PER_TOKEN}:dr_grpo",
        "dapo": f"{_PER_TOKEN}:dapo",
        "gspo": f"{_PER_SEQUENCE}:gspo",
        "cispo": "orchestra_jax.rl.losses.clipped_weight:cispo",
        "sequence": f"{_PER_SEQUENCE}:sequence",
    },
)


def aggregation_of(cfg: LossConfig) -> Aggregation:
    """Return the aggregation in force: the configured one, else that of the loss.

    >>> str(aggregation_of(LossConfig("gspo"))), str(aggregation_of(LossConfig("gspo", aggregation=Aggregation.token)))
    ('sequence', 'token')
    """
    return cfg.aggregation or LOSSES.get(cfg.loss).aggregation


def recomputes_old(cfg: LossConfig) -> bool:
    """Return whether `old` must be the learner's own log-probs at the start of the step, and not the engine's.

    A ratio over a sequence needs the learner's, and so does every correction, which compares old with rollout. A ratio
    per token may be taken against the engine's: that is PPO on the behaviour policy, with the mismatch of one token
    within the clip range.

    >>> recomputes_old(LossConfig("grpo")), recomputes_old(LossConfig("sequence"))
    (False, True)
    """
    return LOSSES.get(cfg.loss).sequence_ratio or cfg.corrects
