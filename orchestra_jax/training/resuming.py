"""Continue a run from its newest checkpoint, if its settings allow that; loaded by a run that has one."""

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.rl.learner import Learner, TrainState
from orchestra_jax.training.checkpointing import JSON_FIELDS, Checkpoints, RunState


def restored_arrays(checkpoints: Checkpoints, like: Any) -> Any:
    """Return the newest checkpoint's arrays.

    Args:
        like: tree of arrays or shape structs with the wanted structure, shapes, dtypes and shardings; leaves without a
            sharding come back as numpy arrays.
    """
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    manager = checkpoints.manager
    wanted = ocp.args.Composite(arrays=ocp.args.StandardRestore(abstract))
    return manager.restore(manager.latest_step(), args=wanted)["arrays"]


def restored(
    checkpoints: Checkpoints,
    meta: Mapping[str, Any],
    warm: Learner | None,
    policy: Learner,
    reference: AlgorithmConfig | None,
) -> tuple[RunState, dict[str, Any] | None]:
    """Return the newest checkpoint's state and position in the tasks (None during the warm start).

    Its arrays go straight to where they belong: nothing of their size is made beside them.

    Args:
        warm: learner of the warm start, if the run has one.
        reference: settings of the KL's reference, if the run keeps one.
    """
    begun = meta["phase"] == "policy"
    trained = abstract_state(policy if begun else warm or policy)
    like: dict[str, Any] = {"state": trained}
    if begun and reference is not None:
        like["reference"] = _abstract_reference(reference, jnp.dtype(policy.config.dtype), trained.params)
    arrays = restored_arrays(checkpoints, like)
    fields = {name: meta[name] for name in JSON_FIELDS}
    return RunState(arrays["state"], arrays.get("reference"), **fields), meta["data"] if begun else None


def _abstract_reference(algorithm: AlgorithmConfig, dtype: jnp.dtype, params: Any) -> Any:
    """Return the shapes, dtypes and shardings of the reference, from those of the policy."""
    if algorithm.reference_offload:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), params)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding), params)


def abstract_state(learner: Learner) -> TrainState:
    """Return shapes, dtypes and shardings of the state, for a checkpoint to be restored into; allocates nothing."""

    def abstract(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return cast(TrainState, jax.tree.map(abstract, learner.state_shapes, learner.state_shardings()))
