"""The optimizer: clipping, AdamW or Muon, and the learning-rate schedule."""

from typing import Any

import jax
import optax
import optax.contrib
from jaxtyping import PyTree

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.config.choices import DType, OptimizerName, Schedule


def learning_rate(cfg: OptimizerConfig, total_steps: int = 1) -> optax.Schedule:
    """Return the learning rate by optimizer step; a schedule falls over the run's `total_steps`."""
    peak, rest = cfg.learning_rate, max(1, total_steps - cfg.warmup_steps)
    match cfg.schedule:
        case Schedule.constant:
            after = optax.constant_schedule(peak)
        case Schedule.linear:
            after = optax.linear_schedule(peak, peak * cfg.final_fraction, rest)
        case Schedule.cosine:
            after = optax.cosine_decay_schedule(peak, rest, cfg.final_fraction)
    if not cfg.warmup_steps:
        return after
    # Warm-up ends at the peak and its first step is not 0.
    warm = optax.linear_schedule(peak / cfg.warmup_steps, peak, cfg.warmup_steps)
    return optax.join_schedules([warm, after], [cfg.warmup_steps])


def make_optimizer(cfg: OptimizerConfig, total_steps: int = 1) -> optax.GradientTransformation:
    """Return the configured optimizer behind a clip by global norm."""
    rate = learning_rate(cfg, total_steps)
    if cfg.name is OptimizerName.muon:
        share = 1.0 if cfg.adam_learning_rate is None else cfg.adam_learning_rate / cfg.learning_rate
        update = optax.contrib.muon(
            rate,
            adam_learning_rate=lambda step: share * rate(step),
            adam_b1=cfg.b1,
            adam_b2=cfg.b2,
            adam_weight_decay=cfg.weight_decay,
            weight_decay=cfg.weight_decay,
            muon_weight_dimension_numbers=layer_matrices,
        )
    else:
        update = optax.adamw(rate, b1=cfg.b1, b2=cfg.b2, weight_decay=cfg.weight_decay)
    if cfg.moment_dtype is DType.bfloat16:
        from orchestra_jax.rl.bfloat16_moments import bfloat16_moments

        update = bfloat16_moments(update)
    return optax.chain(optax.clip_by_global_norm(cfg.max_grad_norm), update)


def layer_matrices(params: PyTree) -> PyTree:
    """Return the tree that tells Muon what to orthogonalise: `MuonDimensionNumbers` at matrices of layers, else None.

    A layer's matrix is known by its path and not by its rank: stacked layers (scan_layers) hold norm scales of rank 2
    and matrices of rank 3, each of whose layers is orthogonalised by itself. Embedding and head are matrices too, but
    their rows are ids, of which a batch has few, and Muon would move all of them alike. Adam updates all else.
    """

    def numbers(path: tuple[Any, ...], leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
        names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
        if not any(name.startswith("layers") for name in names):
            return None
        rank = leaf.ndim - ("layers" in names)  # of one layer
        return optax.contrib.MuonDimensionNumbers(-2, -1) if rank >= 2 else None

    return jax.tree_util.tree_map_with_path(numbers, params)
