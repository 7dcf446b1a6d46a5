"""Settings of the update: loss, advantages, optimizer, and the batches they work on."""

import math
from dataclasses import dataclass, field

from orchestra_jax.config.choices import (
    KL,
    Aggregation,
    DType,
    FilteredRows,
    Importance,
    InvalidMode,
    OptimizerName,
    RatioLevel,
    Schedule,
)
from orchestra_jax.config.ranges import ConfigError, Settings, above, at_least, several, within


@dataclass(frozen=True)
class LossConfig(Settings):
    """The loss and its constants; hashable, so that it can be a static argument of jit.

    Attributes:
        loss: a name of `rl.losses.LOSSES`, which says what each is, or `module:attribute` (docs/add_a_loss.md).
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high]; 0.2 and 0.28 in the paper's script.
        dual_clip: if given (10 in the script), the loss of a token with A < 0 is at most `-A * dual_clip`; no effect on
            cispo.
        kl_coef: weight of the KL to the reference policy, 0 keeps no reference; 1e-4 in the script. It may fade over
            the run: algorithm.kl_fade and kl_final, read by `rl.setup`.
        aggregation: "token" is the mean over all masked tokens of the batch, "sequence" the mean over sequences of each
            sequence's token mean, "constant" the sum over tokens divided by `constant`. None takes the published
            choice of the loss; a given value always wins. GRPO's first paper is "sequence".
        constant: divisor of the "constant" aggregation. None: in a run the sequences of an optimizer step * the tokens
            that a trajectory may sample (`rl.losses.constant.longest_response`); for `policy_loss` on its own B * T.
        token_form: of a ratio over a sequence: GSPO-token (Zheng et al. 2025, section 4.3). Value and gradient are
            those of the plain form, but a token's weight (`importance`, advantages per token) weighs that token's own
            gradient. In the plain form all tokens have the gradient of the one ratio, so that only the mean of a
            sequence's weights counts.
        importance: correction for rollout log-probs that differ from the learner's, on every token's surrogate, without
            gradient, with w = exp(old - rollout). "tis" multiplies by min(w, cap); "icepop" multiplies by w inside
            [floor, cap] and by 0 outside. `old` is then the learner's own (`rl.losses.recomputes_old`).
        importance_level: the w that is used: "token", "sequence" (the product of a sequence's w, at all of its tokens)
            or "geometric" (their geometric mean).
        mask_geometric_low, mask_geometric_high: the policy term of a sequence whose geometric mean of w lies outside is
            0; None for no bound. The mean hardly depends on length: it finds another policy, not long trajectories.
        mask_product_low, mask_product_high: the same for the product of w, which grows with length: rounding of .02 a
            token puts 58 % of sequences of 4,000 tokens outside [.5, 2].
        mask_veto: the same for a sequence with a single w below it, e.g. 1e-4: the learner finds a token impossible.

    What is masked still counts where the loss is averaged, as what icepop zeroes does: the rest does not weigh more.

    Raises:
        ConfigError: a constant out of range.
    """

    loss: str = "grpo"
    clip_low: float = within(0.2, 0, 1)
    clip_high: float = at_least(0.28, 0)
    dual_clip: float | None = above(None, 1)
    kl_coef: float = at_least(0.0, 0)
    kl: KL = KL.k2  # estimator of that KL; the paper's script has k2
    aggregation: Aggregation | None = None
    constant: float | None = above(None, 0)
    token_form: bool = False
    importance: Importance = Importance.none
    importance_cap: float = at_least(2.0, 1)  # the cap of the weights
    importance_floor: float | None = at_least(None, 0)  # the floor of icepop, None for 1 / cap
    importance_level: RatioLevel = RatioLevel.token
    mask_geometric_low: float | None = at_least(None, 0)
    mask_geometric_high: float | None = above(None, 0)
    mask_product_low: float | None = at_least(None, 0)
    mask_product_high: float | None = above(None, 0)
    mask_veto: float | None = at_least(None, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("geometric", "product"):
            low, high = getattr(self, f"mask_{name}_low"), getattr(self, f"mask_{name}_high")
            if low is not None and high is not None and low > high:
                raise ConfigError(f"mask_{name}_low={low} is above mask_{name}_high={high}: no sequence would be left.")
        floor, cap = self.importance_range
        if cap == math.inf or floor > cap:
            raise ConfigError(
                f"The importance range is [{floor}, {cap}]: need 0 <= importance_floor <= importance_cap < inf."
            )

    @property
    def masks(self) -> bool:
        """True if any sequence can be masked."""
        bounds = (self.mask_geometric_low, self.mask_geometric_high, self.mask_product_low, self.mask_product_high)
        return any(bound is not None for bound in (*bounds, self.mask_veto))

    @property
    def corrects(self) -> bool:
        """True if rollout log-probs that differ from the learner's are corrected or masked."""
        return self.importance is not Importance.none or self.masks

    @property
    def importance_range(self) -> tuple[float, float]:
        """Floor and cap of the importance weights."""
        floor = 1.0 / self.importance_cap if self.importance_floor is None else self.importance_floor
        return floor, self.importance_cap


@dataclass(frozen=True)
class OptimizerConfig(Settings):
    """The optimizer, with gradient clipping and a schedule.

    Attributes:
        name: a small policy that learns to copy from random weights needs about half as many steps with muon, which
            orthogonalises the matrices of layers; embeddings, head, norm scales and biases get Adam beside it.
        adam_learning_rate: peak value of the Adam beside muon; None for `learning_rate`. Muon moves a weight of an
            [n, m] matrix by about learning_rate / sqrt(n), Adam by the whole rate, so a smaller one is wanted.
        schedule: "linear" and "cosine" fall to `final_fraction` of the peak after the last step.
    """

    learning_rate: float = above(1e-6, 0)  # peak value
    name: OptimizerName = OptimizerName.adamw
    warmup_steps: int = at_least(0, 0)  # optimizer steps of the linear warm-up, from peak / warmup_steps
    schedule: Schedule = Schedule.constant
    final_fraction: float = within(0.1, 0, 1)  # share of the peak left in the end; no effect on a constant rate
    weight_decay: float = at_least(0.0, 0)  # decoupled, times the learning rate; 0 for none
    b1: float = within(0.9, 0, 1)  # decay of the first moment
    b2: float = within(0.95, 0, 1)  # decay of the second moment
    max_grad_norm: float = above(1.0, 0)  # global-norm clip
    moment_dtype: DType = DType.float32  # what both moments are stored in; the arithmetic is fp32 either way
    adam_learning_rate: float | None = above(None, 0)


@dataclass(frozen=True)
class AdvantageConfig(Settings):
    """Eq. 3 and the paper's filters."""

    min_std: float = at_least(0.1, 0)  # groups whose reward std is below it are dropped
    centre: bool = True  # subtract the group's mean (Eq. 3)
    normalize_std: bool = True  # divide by the group's std (Eq. 3)
    clip: float | None = above(None, 0)  # advantages are clipped to +- this
    invalid: InvalidMode = InvalidMode.drop  # what happens to invalid samples


@dataclass(frozen=True)
class AlgorithmConfig(Settings):
    """The update: Eq. 3, Eq. 4, the filters and the optimizer. Defaults: the paper and its training script."""

    tasks_per_step: int = at_least(16, 1)  # groups in a step
    group_size: int = at_least(8, 2)  # rollouts of one task
    enumerate_calls: bool = False  # first calls: the tools of the menu in turn, not sampled ones (docs/rewards.md)
    refill: int | None = at_least(None, 1)  # N: up to N * tasks_per_step groups more, until enough have a gradient
    loss: LossConfig = field(default_factory=lambda: LossConfig(loss="sequence"))
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(b2=0.999))
    kl_final: float = within(1.0, 0, 1)  # share of loss.kl_coef that is left after the fade, which is linear
    kl_fade: float = within(1.0, 0, 1)  # share of the run's steps over which loss.kl_coef fades to kl_final of it
    entropy_coef: float = at_least(0.0, 0)  # weight of the entropy bonus, a mean over tokens
    filtered_rows: FilteredRows = FilteredRows.drop  # what the KL and the entropy bonus do with rows without advantage
    epochs: int = at_least(1, 1)  # passes over a step's samples
    minibatches: int = at_least(1, 1)  # optimizer steps per pass
    share_prefix: bool = True  # run a group's prompt once for all members; packed: what a trajectory's forks begin with
    micro_tokens: int = at_least(4096, 1)  # tokens of a micro-batch per batch shard, prefixes extra, at least one row
    row_widths: list[int] = several([128, 512, 2048], low=1)  # row widths to compile; limits.max_length is added
    response_fractions: list[float] = several([0.5], above=0, high=1)  # shares of sampled tokens to compile for
    prefix_widths: list[int] = several([128, 512, 2048], low=1)  # compiled widths of shared prompts
    sequences_per_row: int = at_least(1, 1)  # unpacked: above 1, rollouts of the same tokens share a row
    packing: bool = False  # several sequences in a row; row_widths and prefix_widths are then unused
    row_length: int | None = at_least(None, 1)  # tokens of a packed row; null: rollout.limits.max_length
    row_sequences: int = at_least(64, 1)  # sequences that a packed micro-batch may hold
    reference_offload: bool = False  # keep the KL's reference in host memory between its one use per step
