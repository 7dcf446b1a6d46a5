"""Settings of the update: loss, advantages, optimizer, and the batches they work on."""

import math
from dataclasses import dataclass, field

from orchestra_jax.config.choices import KL, Aggregation, DType, Importance, InvalidMode, OptimizerName, Schedule
from orchestra_jax.config.ranges import ConfigError, Settings, above, at_least, within


@dataclass(frozen=True)
class LossConfig(Settings):
    """Which loss, and its constants. Hashable, so it can be a static argument of jit.

    Attributes:
        loss: a name of `rl.losses.LOSSES`, which says what each is, or `module:attribute` (docs/add_a_loss.md).
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high]; 0.2 and 0.28 in the paper's script.
        dual_clip: if given (10 in the script), the loss of a token with A < 0 is at most `-A * dual_clip`; no effect on
            cispo.
        kl_coef: weight of the KL to the reference policy, 0 keeps no reference; 1e-4 in the script.
        kl: estimator of that KL; k2 in the script.
        aggregation: "token" is the mean over all masked tokens of the batch, "sequence" the mean over sequences of each
            sequence's token mean, "constant" the sum over tokens divided by `constant`. None takes the published
            choice of the loss; a given value always wins. GRPO's first paper is "sequence".
        constant: divisor of the "constant" aggregation, e.g. sequences per step * maximum sampled tokens. None: B * T.
        importance: correction for rollout log-probs that differ from the learner's, on every token's surrogate, without
            gradient, with w = exp(old - rollout). "tis" multiplies by min(w, cap); "icepop" multiplies by w inside
            [floor, cap] and by 0 outside.
        importance_cap: the cap above.
        importance_floor: the floor of icepop, None for 1 / cap.

    Raises:
        ConfigError: a constant out of range.
    """

    loss: str = "grpo"
    clip_low: float = within(0.2, 0, 1)
    clip_high: float = at_least(0.28, 0)
    dual_clip: float | None = above(None, 1)
    kl_coef: float = at_least(0.0, 0)
    kl: KL = KL.k2
    aggregation: Aggregation | None = None
    constant: float | None = above(None, 0)
    importance: Importance = Importance.none
    importance_cap: float = at_least(2.0, 1)
    importance_floor: float | None = at_least(None, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        floor, cap = self.importance_range
        if cap == math.inf or floor > cap:
            raise ConfigError(
                f"The importance range is [{floor}, {cap}]: need 0 <= importance_floor <= importance_cap < inf."
            )

    @property
    def importance_range(self) -> tuple[float, float]:
        """Floor and cap of the importance weights."""
        floor = 1.0 / self.importance_cap if self.importance_floor is None else self.importance_floor
        return floor, self.importance_cap


@dataclass(frozen=True)
class OptimizerConfig(Settings):
    """The optimizer, with gradient clipping and a schedule.

    Attributes:
        name: a small policy that learns to copy from random weights needs about half as many steps with muon.
        learning_rate: peak value.
        warmup_steps: optimizer steps of the linear warm-up from 0.
        schedule: "linear" and "cosine" fall to `final_fraction` of the peak at the last step.
        b1, b2: decay of the first and of the second moment.
        max_grad_norm: global-norm clip.
        moment_dtype: what both moments are stored in; the arithmetic is fp32 either way.
    """

    learning_rate: float = above(1e-6, 0)
    name: OptimizerName = OptimizerName.adamw
    warmup_steps: int = at_least(0, 0)
    schedule: Schedule = Schedule.constant
    final_fraction: float = within(0.1, 0, 1)
    weight_decay: float = at_least(0.0, 0)
    b1: float = within(0.9, 0, 1)
    b2: float = within(0.95, 0, 1)
    max_grad_norm: float = above(1.0, 0)
    moment_dtype: DType = DType.float32


@dataclass(frozen=True)
class AdvantageConfig(Settings):
    """Eq. 3 and the paper's filters."""

    min_std: float = at_least(0.1, 0)  # groups whose reward std is below it are dropped
    normalize_std: bool = True  # divide by the group's std (Eq. 3)
    clip: float | None = above(None, 0)  # advantages are clipped to +- this
    invalid: InvalidMode = InvalidMode.drop  # what happens to invalid samples


@dataclass(frozen=True)
class AlgorithmConfig(Settings):
    """The update: Eq. 3, Eq. 4, the filters and the optimizer. Defaults: the paper and its training script."""

    tasks_per_step: int = at_least(16, 1)  # groups
    group_size: int = at_least(8, 2)  # rollouts of one task
    loss: LossConfig = field(default_factory=lambda: LossConfig(loss="sequence"))
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(b2=0.999))
    kl_final: float = within(1.0, 0, 1)  # share of loss.kl_coef that is left after kl_fade, falling linearly
    kl_fade: float = within(1.0, 0, 1)  # share of the run's steps over which loss.kl_coef falls
    entropy_coef: float = at_least(0.0, 0)  # weight of the entropy bonus
    epochs: int = at_least(1, 1)  # passes over a step's samples
    minibatches: int = at_least(1, 1)  # optimizer steps per pass
    share_prefix: bool = True  # run a group's common prompt once for all its members
    micro_tokens: int = at_least(4096, 1)  # tokens of one micro-batch
    row_widths: list[int] = field(
        default_factory=lambda: [128, 512, 2048]
    )  # row widths to compile; limits.max_length is added
    response_fractions: list[float] = field(default_factory=lambda: [0.5])  # shares of sampled tokens to compile for
    prefix_widths: list[int] = field(default_factory=lambda: [128, 512, 2048])  # compiled widths of shared prompts
    packing: bool = False  # several sequences in a row; row_widths, share_prefix and prefix_widths are then unused
    row_length: int | None = at_least(None, 1)  # tokens of a packed row; null: rollout.limits.max_length
    row_sequences: int = at_least(64, 1)  # sequences that a packed micro-batch may hold
    reference_dtype: DType = DType.float32  # storage of the KL's reference policy
    reference_offload: bool = False  # keep the reference in host memory between its one use per step
