"""Make the parts of the update from the settings: mesh, adapters, learners."""

from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.choices import Aggregation, FilteredRows, History
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import LoraConfig, MeshConfig, WarmStartConfig
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LOSSES, LossConfig, aggregation_of, recomputes_old
from orchestra_jax.rl.optimizer import make_optimizer

if TYPE_CHECKING:  # needed with adapters only
    from orchestra_jax.models.lora import LoRA


def device_mesh(cfg: MeshConfig) -> Mesh | None:
    """Return the configured mesh, or None for one device; raise ValueError if its size is not the number of devices."""
    if (cfg.data, cfg.fsdp, cfg.tensor) == (1, 1, 1):
        return None
    from orchestra_jax.models.sharding import make_mesh

    mesh = make_mesh(cfg.data, cfg.fsdp, cfg.tensor)
    return None if mesh.size == 1 else mesh


def adapters(cfg: LoraConfig) -> "LoRA | None":
    """Return the adapters to train, or None where the whole policy is trained."""
    if not cfg.rank:
        return None
    from orchestra_jax.models.lora import LoRA

    return LoRA(cfg.rank, cfg.alpha, tuple(cfg.targets), cfg.layers)


def kl_scale(algorithm: AlgorithmConfig, step: int, steps: int) -> float:
    """Return the factor on loss.kl_coef: it falls from 1 linearly to kl_final over the first kl_fade of the run."""
    faded = min(1.0, step / max(1.0, algorithm.kl_fade * steps)) if algorithm.kl_fade else 1.0
    return 1.0 - (1.0 - algorithm.kl_final) * faded


def policy_updates(algorithm: AlgorithmConfig, steps: int) -> int:
    """Return the optimizer steps of the whole run, over which the schedule of the learning rate falls."""
    return max(1, steps * algorithm.epochs * algorithm.minibatches)


def ratio_spans_rows(loss: LossConfig, history: History) -> bool:
    """Return whether the loss has one ratio over all sequences of a trajectory, and a trajectory may have several."""
    return history is not History.keep and LOSSES.get(loss.loss).sequence_ratio


def separate_old_pass(algorithm: AlgorithmConfig) -> bool:
    """Return whether the learner computes `old` in a pass of its own, before it updates on a step's rows several times.

    On the only update of a batch `old` is the policy that is differentiated (`LearnerConfig.own_old`).
    """
    return recomputes_old(algorithm.loss) and algorithm.epochs * algorithm.minibatches > 1


def learner_config(
    algorithm: AlgorithmConfig, rollout: RolloutConfig, model: DecoderConfig, mesh: Mesh | None = None
) -> LearnerConfig:
    """Return the settings of the policy updates that are compiled."""
    loss = algorithm.loss
    if loss.constant is None and aggregation_of(loss) is Aggregation.constant:
        from orchestra_jax.rl.losses.constant import with_constant

        loss = with_constant(algorithm, rollout)
    return LearnerConfig(
        loss,
        algorithm.entropy_coef,
        rollout.temperature,
        **_logits_at_once(model, mesh),
        own_old=recomputes_old(algorithm.loss) and not separate_old_pass(algorithm),
        count_all=algorithm.filtered_rows is FilteredRows.count,
    )


def policy_learner(
    algorithm: AlgorithmConfig,
    rollout: RolloutConfig,
    steps: int,
    model: DecoderConfig,
    *,
    mesh: Mesh | None = None,
    adapters: "LoRA | None" = None,
) -> Learner:
    """Return the learner of the policy updates of a run of `steps` training steps."""
    optimizer = make_optimizer(algorithm.optimizer, policy_updates(algorithm, steps))
    return _learner(model, learner_config(algorithm, rollout, model, mesh), optimizer, mesh, adapters)


def warm_learner(
    cfg: WarmStartConfig, model: DecoderConfig, *, mesh: Mesh | None = None, adapters: "LoRA | None" = None
) -> Learner:
    """Return the learner of the warm start."""
    learner = LearnerConfig(LossConfig(), **_logits_at_once(model, mesh))
    return _learner(model, learner, make_optimizer(cfg.optimizer, max(1, cfg.steps)), mesh, adapters)


def _learner(
    model: DecoderConfig, cfg: LearnerConfig, optimizer: Any, mesh: Mesh | None, adapters: "LoRA | None"
) -> Learner:
    if mesh is None:
        return Learner(model, cfg, optimizer, adapters=adapters)
    from orchestra_jax.rl.mesh_learner import MeshLearner

    return MeshLearner(model, cfg, optimizer, mesh=mesh, adapters=adapters)


def _logits_at_once(model: DecoderConfig, mesh: Mesh | None) -> dict[str, Any]:
    """Return which logits exist at once: of 2048 tokens and all ids, or all tokens and 512 ids, for a CPU's cache."""
    by_block = mesh is None and jax.default_backend() == "cpu" and model.vocab_size > 4096
    return {"vocab_block": 512} if by_block else {"chunk": 2048}
