"""What the configuration asks the learner to do: rewards and advantages of a step, its batches, optimizers, losses."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from orchestra_jax.config.algorithm import AdvantageConfig, AlgorithmConfig
from orchestra_jax.config.choices import Aggregation, AttentionBackend, DType, FilteredRows, History
from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import MeshConfig, ModelConfig, RewardConfig, RunConfig
from orchestra_jax.models.attention.cudnn import max_segments
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.lora import LoRA
from orchestra_jax.models.sharding import make_mesh
from orchestra_jax.rl.advantages import group_advantages, informative_groups, member_masks
from orchestra_jax.rl.batching import MicroBatch, MicroShapes, TokenSequence, micro_batches
from orchestra_jax.rl.groups import GroupArrays
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LOSSES, LossConfig, aggregation_of, recomputes_old
from orchestra_jax.rl.optimizer import make_optimizer
from orchestra_jax.rl.packing import PackShapes, pack
from orchestra_jax.rl.rewards import feature_matrix, preference_reward


def device_mesh(cfg: MeshConfig) -> Mesh | None:
    """The configured mesh; None for a single device.

    Raises:
        ValueError: the sizes do not multiply to the number of devices.
    """
    if (cfg.data, cfg.fsdp, cfg.tensor) == (1, 1, 1):
        return None
    mesh = make_mesh(cfg.data, cfg.fsdp, cfg.tensor)
    return None if mesh.size == 1 else mesh


def kl_share(algorithm: AlgorithmConfig, step: int, steps: int) -> float:
    """The share of loss.kl_coef in force at `step`: from 1 linearly to kl_final over the first kl_fade of the run."""
    done = min(1.0, step / max(1.0, algorithm.kl_fade * steps))
    return 1.0 - (1.0 - algorithm.kl_final) * done


def score_groups(cfg: RunConfig, arrays: GroupArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards (Eq. 2) [G, N], advantages (Eq. 3 and the filters) [G, N] and kept groups [G]."""
    reward = cfg.reward
    tools = arrays.preference.shape[1] - 3
    scale = np.array([*[reward.tools] * tools, reward.outcome, reward.compute, reward.latency], np.float32)
    weighted = vars(arrays) | {"preference": arrays.preference * scale}
    rewards, advantages, kept = _score_groups(weighted, reward, cfg.algorithm.advantage)
    return np.asarray(rewards), np.asarray(advantages), np.asarray(kept)


@functools.partial(jax.jit, static_argnames=("reward", "advantage"))
def _score_groups(
    arrays: dict[str, Array], reward: RewardConfig, advantage: AdvantageConfig
) -> tuple[Array, Array, Array]:
    """`score_groups` of the fields of a `GroupArrays`, where the preference has its multipliers."""
    solved, completed = arrays["solved"], arrays["completed"]
    matrix = feature_matrix(
        arrays["tool_counts"], solved, arrays["cost_usd"], arrays["latency_s"], tool_feature=reward.tool_feature
    )
    rewards = preference_reward(
        matrix, arrays["preference"], solved, completed, arrays["tool_mask"], normalize_outcome=reward.normalize_outcome
    )
    members = member_masks(completed, arrays["failed"], invalid=advantage.invalid)
    advantages = group_advantages(
        rewards,
        members,
        min_std=advantage.min_std,
        normalize_std=advantage.normalize_std,
        clip=advantage.clip,
    )
    return rewards, advantages, informative_groups(rewards, members, min_std=advantage.min_std)


def policy_shapes(cfg: RunConfig) -> MicroShapes | PackShapes:
    """Shapes of the update's micro-batches on one batch shard; the longest trajectory fits.

    Unpacked: the configured widths and one that holds rollout.limits.max_length. Packed: one shape.
    """
    algorithm, longest = cfg.algorithm, cfg.rollout.limits.max_length
    fractions = tuple(algorithm.response_fractions)
    if algorithm.packing:
        length = algorithm.row_length or longest
        rows = max(1, algorithm.micro_tokens // length)
        most = most_packed(cfg.model, length)
        return PackShapes(length, rows, max(rows, algorithm.row_sequences), fractions, most)

    def reaching(widths: list[int]) -> tuple[int, ...]:
        return tuple(sorted({*(width for width in widths if width < longest), longest}))

    return MicroShapes(
        algorithm.micro_tokens,
        reaching(algorithm.row_widths),
        reaching(algorithm.prefix_widths) if algorithm.share_prefix else (),
        response_fractions=fractions,
    )


def most_packed(model: ModelConfig, length: int) -> int | None:
    """Most sequences of a packed row of `length` tokens; None: no limit.

    Where cuDNN may compute attention it has room for so many, and its padding counts as one. The same rows are packed
    on every machine: what runs is not known before the model is traced.
    """
    may = model.attention is not AttentionBackend.xla and model.dtype is DType.bfloat16
    return max_segments(length) - 1 if may else None


def policy_batches(cfg: RunConfig, rows: Sequence[TokenSequence], shards: int) -> list[MicroBatch]:
    """The rows of one optimizer step as micro-batches, packed or not as configured."""
    shapes = policy_shapes(cfg)
    return pack(rows, shapes, shards) if isinstance(shapes, PackShapes) else micro_batches(rows, shapes, shards)


def adapters(cfg: RunConfig) -> LoRA | None:
    """The adapters to train; None where the whole policy is trained."""
    lora = cfg.model.lora
    return LoRA(lora.rank, lora.alpha, tuple(lora.targets), lora.layers) if lora.rank else None


def _logits_at_once(model: DecoderConfig, mesh: Mesh | None) -> dict[str, Any]:
    """All ids of some tokens; on a CPU some ids of all tokens, which its cache holds, where all ids are too many."""
    by_block = mesh is None and jax.default_backend() == "cpu" and model.vocab_size > 4096
    return {"vocab_block": 512} if by_block else {"chunk": 2048}


def warm_learner(cfg: RunConfig, model: DecoderConfig, mesh: Mesh | None = None) -> Learner:
    """The learner of the warm start."""
    learner = LearnerConfig(LossConfig(), **_logits_at_once(model, mesh))
    optimizer = make_optimizer(cfg.warm_start.optimizer, max(1, cfg.warm_start.steps))
    return Learner(model, learner, optimizer, mesh=mesh, adapters=adapters(cfg))


def policy_updates(cfg: RunConfig) -> int:
    """Optimizer steps of the whole run, over which the schedule of the learning rate falls."""
    return max(1, cfg.steps * cfg.algorithm.epochs * cfg.algorithm.minibatches)


def longest_response(limits: RolloutLimits, history: History = History.keep) -> int:
    """Tokens that one trajectory may sample: those of one sequence, or of a fork for every turn."""
    sampled = limits.max_turns * limits.max_new_tokens
    return min(limits.max_length, sampled) if history is History.keep else sampled


def relates_rows(cfg: RunConfig) -> bool:
    """Whether trajectories may have several sequences, and a ratio that is over all of them."""
    return cfg.rollout.history is not History.keep and LOSSES.get(cfg.algorithm.loss.loss).sequence_ratio


def policy_loss_config(cfg: RunConfig) -> LossConfig:
    """The loss with the divisor of the "constant" aggregation filled in: the sequences of an optimizer step times the
    longest response (Liu et al. 2025, Dr. GRPO), whatever the rows' shapes and however many were filtered.
    """
    algorithm, loss = cfg.algorithm, cfg.algorithm.loss
    if loss.constant is not None or aggregation_of(loss) is not Aggregation.constant:
        return loss
    sequences = algorithm.tasks_per_step * algorithm.group_size / algorithm.minibatches
    return dataclasses.replace(loss, constant=sequences * longest_response(cfg.rollout.limits, cfg.rollout.history))


def scores_old(algorithm: AlgorithmConfig) -> bool:
    """Whether the learner scores a step's rows before it updates on them: for `old`, where it takes several updates.

    On the only update of a batch `old` is the policy that is differentiated (`LearnerConfig.own_old`).
    """
    return recomputes_old(algorithm.loss) and algorithm.epochs * algorithm.minibatches > 1


def policy_learner(cfg: RunConfig, model: DecoderConfig, mesh: Mesh | None = None) -> Learner:
    """The learner of the policy updates."""
    algorithm = cfg.algorithm
    learner = LearnerConfig(
        policy_loss_config(cfg),
        algorithm.entropy_coef,
        cfg.rollout.temperature,
        **_logits_at_once(model, mesh),
        own_old=recomputes_old(algorithm.loss) and not scores_old(algorithm),
        count_all=algorithm.filtered_rows is FilteredRows.count,
    )
    optimizer = make_optimizer(algorithm.optimizer, policy_updates(cfg))
    return Learner(model, learner, optimizer, mesh=mesh, adapters=adapters(cfg))
