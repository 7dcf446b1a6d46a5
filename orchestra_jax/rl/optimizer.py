"""The optimizer: clipping, AdamW or Muon, learning-rate schedule, and the dtype its moments are stored in."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, PyTree

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.config.choices import DType, OptimizerName, Schedule

__all__ = [
    "OptimizerConfig",
    "RoundedState",
    "bfloat16_moments",
    "layer_matrices",
    "learning_rate",
    "make_optimizer",
]


def learning_rate(cfg: OptimizerConfig, total_steps: int = 1) -> optax.Schedule:
    """Return the learning rate by optimizer step.

    Args:
        total_steps: optimizer steps of the run, over which a schedule falls.
    """
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
    """Return the configured optimizer behind a clip by global norm.

    Args:
        total_steps: see `learning_rate`.
    """
    rate = learning_rate(cfg, total_steps)
    if cfg.name is OptimizerName.muon:
        share = 1.0 if cfg.adam_learning_rate is None else cfg.adam_learning_rate / cfg.learning_rate
        update = optax.contrib.muon(
            rate,
            adam_learning_rate=lambda step: share * rate(step),
            adam_b1=cfg.b1,
            adam_b2=cfg.b2,
            weight_decay=cfg.weight_decay,
            muon_weight_dimension_numbers=layer_matrices,
        )
    else:
        update = optax.adamw(rate, b1=cfg.b1, b2=cfg.b2, weight_decay=cfg.weight_decay)
    if cfg.moment_dtype is DType.bfloat16:
        update = bfloat16_moments(update)
    return optax.chain(optax.clip_by_global_norm(cfg.max_grad_norm), update)


def layer_matrices(params: PyTree) -> PyTree:
    """Return the tree that tells Muon what to orthogonalise: `MuonDimensionNumbers` at matrices of layers, else None.

    A layer's matrix is known by its path and not by its rank: stacked layers (scan_layers) hold norm scales of rank 2
    and matrices of rank 3, each of whose layers is orthogonalised by itself. Embedding and head are matrices too, but
    their rows are ids, of which a batch has few, and Muon would move all of them alike. Adam updates all other
    parameters (as in Keller Jordan's Muon, github.com/KellerJordan/Muon).
    """

    def numbers(path: tuple[Any, ...], leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
        names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
        if not any(name.startswith("layers") for name in names):
            return None
        rank = leaf.ndim - ("layers" in names)  # of one layer
        return optax.contrib.MuonDimensionNumbers(-2, -1) if rank >= 2 else None

    return jax.tree_util.tree_map_with_path(numbers, params)


class RoundedState(NamedTuple):
    """The state of `bfloat16_moments`: updates done, and the inner state with its moments in bf16."""

    step: Array
    inner: PyTree


def bfloat16_moments(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Store the moments (the fields `mu` and `nu`) of an optimizer in bf16; its arithmetic stays fp32.

    Rounding is stochastic: to nearest, 0.999 * nu would be nu again and a second moment could never fall.
    """

    def init(params: PyTree) -> RoundedState:
        return RoundedState(
            jnp.zeros((), jnp.int32), _on_moments(lambda i, m: m.astype(jnp.bfloat16), inner.init(params))
        )

    def update(grads: PyTree, state: RoundedState, params: PyTree = None) -> tuple[PyTree, RoundedState]:
        exact = _on_moments(lambda i, m: m.astype(jnp.float32), state.inner)
        updates, exact = inner.update(grads, exact, params)
        # The same at every run and on every mesh: the key is the step, and threefry does not depend on the sharding.
        key = jax.random.key(state.step)
        rounded = _on_moments(lambda i, m: _round_stochastically(jax.random.fold_in(key, i), m), exact)
        return updates, RoundedState(state.step + 1, rounded)

    return optax.GradientTransformation(init, update)


def _on_moments(change: Any, state: PyTree) -> PyTree:
    """Apply `change(index, leaf)` to every leaf below a field called mu or nu."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(state)
    moment = [any(getattr(key, "name", None) in ("mu", "nu") for key in path) for path, _ in leaves]
    changed = [
        change(i, leaf) if is_moment else leaf
        for i, ((_, leaf), is_moment) in enumerate(zip(leaves, moment, strict=True))
    ]
    return jax.tree.unflatten(treedef, changed)


def _round_stochastically(key: Array, x: Array) -> Array:
    """Round fp32 to one of its two bf16 neighbours, the nearer one with more probability, so that the mean is x."""
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    bits = (jax.lax.bitcast_convert_type(x, jnp.uint32) + noise) & jnp.uint32(0xFFFF0000)
    rounded = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(jnp.bfloat16)
