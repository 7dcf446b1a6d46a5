"""The learner on a mesh of devices, of one or several processes."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.lora import LoRA
from orchestra_jax.models.sharding import MeshSharding
from orchestra_jax.rl.batching import MicroBatch
from orchestra_jax.rl.distributed import agree_on_batches, batch_to_mesh, process_shards, tree_to_mesh
from orchestra_jax.rl.learner import Learner
from orchestra_jax.rl.objectives import LearnerConfig, Normalisers, TrainState


class MeshLearner(Learner):
    """A learner whose parameters, moments and gradients are split over a mesh.

    Every micro-batch has one part for each of `shards` batch shards of this process. With several processes all call
    the same methods in the same order, each with the micro-batches of its own rows.

    Args:
        config, cfg, optimizer, adapters: see `Learner`.
        mesh: devices that hold the arrays.

    Raises:
        ValueError: two processes would feed the same batch shard.
    """

    sharding: MeshSharding

    def __init__(
        self,
        config: DecoderConfig,
        cfg: LearnerConfig,
        optimizer: optax.GradientTransformation,
        *,
        mesh: Mesh,
        adapters: LoRA | None = None,
    ) -> None:
        self.sharding = MeshSharding(mesh)
        self.shards = process_shards(self.sharding)
        super().__init__(config, cfg, optimizer, adapters=adapters)

    def _shardings(self, name: str) -> Mapping[str, Any]:
        inputs, outputs = self._all_shardings[name]
        return {"in_shardings": inputs, "out_shardings": outputs}

    @functools.cached_property
    def _all_shardings(self) -> dict[str, tuple[Any, Any]]:
        """Inputs and outputs of the functions of `_compile`, by name."""
        state, batch, scalar = self.state_shardings(), self.sharding.batch, self.sharding.replicated
        base = self.sharding.params(self._abstract_base, axes=self.config.axes)
        sums, rows = (state.params, scalar), (state.params, None if self.adapters is None else base, batch)
        return {
            "policy": ((sums, *rows, scalar, scalar), (sums, scalar)),
            "supervised": ((sums, *rows, scalar), (sums, scalar)),
            "zeros": ((), sums),
            "apply": ((state, sums), (state, scalar)),
            "init": ((state.params,), state),
            "logprobs": (rows, batch),
            "ref_logprobs": ((base, batch), batch),
        }

    def state_shardings(self) -> TrainState:
        named = functools.partial(self.sharding.params, axes=self.config.axes)
        opt_state = named(self.state_shapes.opt_state, replicate_others=True)
        return TrainState(named(self.state_shapes.params), opt_state, self.sharding.replicated)  # type: ignore[arg-type]

    def place_params(self, params: Params) -> Params:
        return cast(Params, tree_to_mesh(params, self.sharding.params(params, self.config.axes)))

    def place(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Return this process's micro-batches as arrays of the whole mesh.

        With several processes this is a collective: they agree on number and shapes, and empty micro-batches fill up.

        Raises:
            ValueError: a micro-batch was not made with shards=`self.shards`.
        """
        if batches and all(isinstance(batch.select, jax.Array) for batch in batches):
            return list(batches)
        if wrong := [batch.shards for batch in batches if batch.shards != self.shards]:
            raise ValueError(f"A micro-batch has {wrong[0]} part(s), this process feeds {self.shards} batch shard(s).")
        return [batch_to_mesh(batch, self.sharding.batch) for batch in agree_on_batches(batches, self.shards)]

    def _on_device(self, batch: MicroBatch) -> MicroBatch:
        return batch  # `place` has put it on the mesh

    def _place_scalars(self, scalars: tuple[Any, ...]) -> tuple[Any, ...]:
        numbers: Any = jax.tree.map(np.float32, scalars)
        return cast(tuple[Any, ...], tree_to_mesh(numbers, jax.tree.map(lambda _: self.sharding.replicated, numbers)))

    def lowered(self, batch: MicroBatch) -> dict[str, jax.stages.Lowered]:
        """Lower the gradient of one micro-batch and the optimizer step, without compiling or allocating anything.

        Args:
            batch: `jax.ShapeDtypeStruct`s for the whole mesh (`distributed.abstract_batch`). The mesh may be one of
                devices that are not there (`jax.experimental.topologies`).
        """
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        sums = (jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32), self.state_shapes.params), scalar)
        base = None if self.adapters is None else self._abstract_base
        normalisers = Normalisers(scalar, scalar, scalar)
        return {
            "gradients": self._policy.lower(sums, self.state_shapes.params, base, batch, normalisers, scalar),
            "update": self._apply.lower(self.state_shapes, sums),
        }
