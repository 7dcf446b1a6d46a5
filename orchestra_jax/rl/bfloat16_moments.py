"""An optimizer whose moments are stored in bf16, and stochastic rounding of steps on bf16 parameters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree


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


def exact_in_bfloat16(updates: PyTree, params: PyTree, step: Array) -> PyTree:
    """Return updates after which parameters stored in bf16 are rounded stochastically; others are left as they are.

    To nearest, a weight would lose every step below half of its last bit: all of them with a rate of 1e-6.
    """
    key = jax.random.fold_in(jax.random.key(step), 2**31 - 1)  # none that the moments have
    numbers = jax.tree.unflatten(jax.tree.structure(params), range(len(jax.tree.leaves(params))))

    def rounded(i: int, param: Array, update: Array) -> Array:
        if param.dtype != jnp.bfloat16:
            return update
        old = param.astype(jnp.float32)
        return _round_stochastically(jax.random.fold_in(key, i), old + update).astype(jnp.float32) - old

    return jax.tree.map(rounded, numbers, params, updates)


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
