"""Continue a run from its newest checkpoint, if its settings allow that; loaded by a run that has one."""

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.checks import flat
from orchestra_jax.config.ranges import ConfigError, Settings
from orchestra_jax.rl.learner import Learner, TrainState
from orchestra_jax.training.checkpointing import JSON_FIELDS, Checkpoints, RunState

# What may differ between a run and its continuation: how far, where and how much is written.
_FREE_ON_RESUME = (
    *("steps", "output_dir", "compilation_cache", "mesh", "evaluation", "checkpoint", "logger", "plan", "synthesis"),
    *("rollout.urls", "rollout.slots", "rollout.threads", "rollout.server", "budget", "replay"),
    *("tools.server.url", "tools.server.api_key_env", "tools.server.timeout_s", "tools.server.retries"),
    *("tools.server.concurrency", "tools.server.requests_per_minute", "tools.web.url", "tools.web.timeout_s"),
    *("tools.search.embedder_url", "tools.sandbox.url", "tools.sandbox.workers"),
)
# The same of an MCP server with a name: wherever it is, it is the same server.
_FREE_OF_MCP = ("server", "env", "headers", "timeout_s", "retries", "concurrency")


def require_same_run(meta: Mapping[str, Any], cfg: Settings, folder: str) -> None:
    """Raise ConfigError if the checkpoint with this meta is of a run with another configuration."""
    if changed := resume_conflicts(meta["config"], cfg):
        raise ConfigError(f"{folder} holds another run ({'; '.join(changed)}): choose another name=..., or delete it.")


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
        like["reference"] = _abstract_reference(reference, trained.params)
    arrays = restored_arrays(checkpoints, like)
    fields = {name: meta[name] for name in JSON_FIELDS}
    return RunState(arrays["state"], arrays.get("reference"), **fields), meta["data"] if begun else None


def _abstract_reference(algorithm: AlgorithmConfig, params: Any) -> Any:
    """Return the shapes, dtypes and shardings of the reference, from those of the policy."""
    dtype = jnp.dtype(algorithm.reference_dtype)
    if algorithm.reference_offload:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), params)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding), params)


def abstract_state(learner: Learner) -> TrainState:
    """Return shapes, dtypes and shardings of the state, for a checkpoint to be restored into; allocates nothing."""

    def abstract(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return cast(TrainState, jax.tree.map(abstract, learner.state_shapes, learner.state_shardings()))


def resume_conflicts(saved: Mapping[str, Any], config: Settings) -> list[str]:
    """Return the keys whose change would make `config` another run than the saved one.

    Args:
        saved: the earlier run's config as plain containers (`dataclasses.asdict`, through JSON or not).
        config: the run that wants to go on.

    Returns: `key: old -> new` for each, where keys of a changed schema count too.
    """
    old, new = (dict(flat(each)) for each in (saved, config.as_dict()))
    for settings in (old, new):
        for key in ("tools.mcp", "tools.evaluation.mcp"):
            settings[key] = [
                {name: value for name, value in entry.items() if name not in _FREE_OF_MCP}
                if isinstance(entry, Mapping) and entry.get("name")
                else entry
                for entry in settings.get(key, ())
            ]
    return [
        f"{key}: {old.get(key)} -> {new.get(key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not any(f"{key}.".startswith(f"{free}.") for free in _FREE_ON_RESUME)
    ]
