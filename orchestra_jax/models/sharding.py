"""The mesh, and the rules from logical axes of parameters and activations to its physical axes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

MESH_AXES = ("data", "fsdp", "tensor")
Axis = str | tuple[str, ...] | None
Axes = Mapping[str, tuple[str | None, ...]]  # logical axes of every parameter, by its name

# Logical axes by the parameter's name, as decoders share them; a stacked parameter (scan_layers) has "layers" in front.
PARAM_AXES: Axes = {
    "embed": ("vocab", "embed"),
    "lm_head": ("embed", "vocab"),
    "q": ("embed", "heads"),
    "k": ("embed", "kv_heads"),
    "v": ("embed", "kv_heads"),
    "o": ("heads", "embed"),
    "gate": ("embed", "mlp"),
    "up": ("embed", "mlp"),
    "down": ("mlp", "embed"),
    "norm": ("norm",),
    "input_norm": ("norm",),
    "post_norm": ("norm",),
    "q_norm": ("norm",),
    "k_norm": ("norm",),
}


@dataclass(frozen=True)
class ShardingRules:
    """The mesh axis (or axes, or None to replicate) of every logical axis.

    Attributes:
        batch: leading axis of data and activations (rows, or rows times length).
        hidden: model width of activations.
        embed: model width of parameters; splitting it is FSDP.
        vocab, heads, kv_heads, mlp, experts: the split axes of tensor parallelism.
        norm: norm scales.
        layers: stacked layers.
    """

    batch: Axis = ("data", "fsdp")
    hidden: Axis = None
    embed: Axis = "fsdp"
    vocab: Axis = "tensor"
    heads: Axis = "tensor"
    kv_heads: Axis = "tensor"
    mlp: Axis = "tensor"
    experts: Axis = "tensor"
    norm: Axis = None
    layers: Axis = None

    def spec(self, axes: Sequence[str | None]) -> PartitionSpec:
        """Return the mesh axes of the given logical ones (None: replicated)."""
        return PartitionSpec(*(None if axis is None else getattr(self, axis) for axis in axes))


def make_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Make a mesh with axes ("data", "fsdp", "tensor") over all of `devices` (default: all devices of all processes).

    One of the sizes may be -1: it takes what the others leave.

    Raises:
        ValueError: the sizes do not multiply to the number of devices.
    """
    available = list(jax.devices() if devices is None else devices)
    sizes = [data, fsdp, tensor]
    if sizes.count(-1) == 1:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = max(len(available) // max(rest, 1), 1)
    if min(sizes) < 1 or math.prod(sizes) != len(available):
        raise ValueError(
            f"A mesh of data={data}, fsdp={fsdp}, tensor={tensor} does not cover {len(available)} device(s); make the "
            "product of the three equal to that number, or one of them -1."
        )
    return jax.make_mesh(tuple(sizes), MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=available)


@dataclass(frozen=True)
class MeshSharding:
    """The shardings of everything that a model and its update hold on one mesh.

    Attributes:
        mesh: devices, by axis.
        rules: mesh axes of every logical axis.
    """

    mesh: Mesh
    rules: ShardingRules = field(default_factory=ShardingRules)

    def params(
        self, abstract: PyTree, axes: Axes | None = None, *, replicate_others: bool = False
    ) -> PyTree[NamedSharding]:
        """Return the shardings of a parameter tree, or of a tree that contains such trees, by the leaves' names.

        An axis that its mesh axes do not divide evenly is replicated; scalars are replicated.

        Args:
            abstract: arrays or `jax.ShapeDtypeStruct`s, e.g. `models.decoder.abstract_params(config)`, or an
                optimizer's state.
            axes: logical axes of parameters that are not in PARAM_AXES, `config.axes`.
            replicate_others: whether arrays that are no parameters (an optimizer's constants) are replicated.

        Raises:
            ValueError: an array whose name or rank is not that of a known parameter, unless `replicate_others`.
        """

        def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
            if leaf.ndim == 0:
                return self.replicated
            names = logical_axes(path, axes)
            if names is None or len(names) != leaf.ndim:
                if replicate_others:
                    return self.replicated
                raise ValueError(
                    f"No sharding rule for {jax.tree_util.keystr(path)} of shape {leaf.shape}; add its logical axes to "
                    "its model family's `axes`."
                )
            split = zip(self.rules.spec(names), leaf.shape, strict=True)
            kept = (axis if size % self._size(axis) == 0 else None for axis, size in split)
            return NamedSharding(self.mesh, PartitionSpec(*kept))

        return jax.tree_util.tree_map_with_path(sharding, abstract)

    def pin_params(self, params: Mapping[str, Any], axes: Axes) -> Mapping[str, Any]:
        """Pin the shardings of a parameter tree inside a jitted function."""
        return cast(Mapping[str, Any], jax.lax.with_sharding_constraint(params, self.params(params, axes)))

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of an array that every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch(self) -> NamedSharding:
        """The sharding of an array whose first axis is the batch."""
        return NamedSharding(self.mesh, self.rules.spec(["batch"]))

    @property
    def batch_shards(self) -> int:
        """The number of parts that a batch is split into."""
        return self._size(self.rules.batch)

    def __call__(self, x: Array, axes: Sequence[str | None]) -> Array:
        """Pin the sharding of an activation with these logical axes: FSDP then gathers weights, not activations."""
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, self.rules.spec(axes)))

    def on_own_parts(
        self,
        function: Callable[..., Array],
        arguments: Sequence[PyTree[Array]],
        axes: Sequence[Sequence[str | None]],
        result: Sequence[str | None],
    ) -> Array:
        """Run `function(*arguments)` on every device's own parts, so that what it skips depends on no other device.

        Where the mesh does not divide the arrays, the function gets them whole.

        Args:
            arguments: arrays, tuples of arrays that have the same axes, or None.
            axes: logical axes of each argument.
            result: logical axes of the function's result.
        """
        specs = [self.rules.spec(names) for names in axes]
        for argument, spec in zip(arguments, specs, strict=True):
            for leaf in jax.tree.leaves(argument):
                if any(size % self._size(axis) for axis, size in zip(spec, leaf.shape, strict=True)):
                    return function(*arguments)
        given = tuple(None if argument is None else spec for argument, spec in zip(arguments, specs, strict=True))
        own = jax.shard_map(
            function, mesh=self.mesh, in_specs=given, out_specs=self.rules.spec(result), check_vma=False
        )
        return own(*arguments)

    def _size(self, axis: Axis) -> int:
        names = () if axis is None else (axis,) if isinstance(axis, str) else axis
        return math.prod(self.mesh.shape[name] for name in names)


def logical_axes(path: tuple[Any, ...], axes: Axes | None = None) -> tuple[str | None, ...] | None:
    """Return the logical axes of the parameter at a key path (which may start above its tree), or None if unknown.

    A bias is split like its matrix's output. Adapters (`models.lora`) are split like their target's input (lora_a) and
    output (lora_b); the rank never is.
    """
    names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
    kind = names.pop() if names and names[-1] in ("kernel", "bias", "lora_a", "lora_b") else ""
    found: tuple[str | None, ...] | None = {**PARAM_AXES, **(axes or {})}.get(names[-1]) if names else None
    if found is None:
        return None
    if kind == "bias":
        found = found[-1:]
    elif kind:
        found = {"kernel": found, "lora_a": (found[0], None), "lora_b": (None, found[-1])}[kind]
    return ("layers", *found) if "layers" in names else found
