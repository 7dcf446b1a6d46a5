"""Lay micro-batches out on a mesh: a part for each batch shard, shapes that all processes share, global arrays."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jaxtyping import PyTree

from orchestra_jax.models.sharding import MeshSharding
from orchestra_jax.rl.batching import BatchShape, MicroBatch


def process_shards(sharding: MeshSharding) -> int:
    """Return the number of batch shards that this process feeds: those on its own devices.

    Raises:
        ValueError: a batch shard lies on devices of two processes.
    """
    shards = sharding.batch_shards
    owners: dict[Any, set[int]] = {}
    held: Any = sharding.batch.devices_indices_map((shards,))
    for device, index in held.items():
        owners.setdefault(index[0].start, set()).add(device.process_index)
    if any(len(processes) > 1 for processes in owners.values()):
        raise ValueError("A batch shard spans two processes: keep mesh.tensor within the devices of one process.")
    # A mesh of devices that are not there (a planner's topology) belongs to no process.
    return sum(jax.process_index() in processes for processes in owners.values()) or shards


def tree_to_mesh(tree: PyTree, shardings: PyTree[NamedSharding]) -> PyTree:
    """Put every leaf where its sharding says; all processes hold it whole, or it is on the mesh already."""

    def place(leaf: Any, sharding: NamedSharding) -> jax.Array:
        if sharding.is_fully_addressable or (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable):
            return jax.device_put(leaf, sharding)
        host = np.asarray(leaf)
        with jax.transfer_guard("allow"):  # explicit, but JAX does not count it as such
            return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(place, tree, shardings)


def batch_to_mesh(batch: MicroBatch, sharding: NamedSharding) -> MicroBatch:
    """Make a global micro-batch from this process's parts."""
    with jax.transfer_guard("allow"):  # explicit, but JAX does not count it as such
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, leaf), batch)


def agree_on_batches(batches: Sequence[MicroBatch], shards: int) -> list[MicroBatch]:
    """Return this process's micro-batches in the order, number and shapes that all processes have. A collective.

    Processes exchange their shapes; empty micro-batches fill up, and pieces and R are the most of any process.
    """
    if jax.process_count() == 1:
        return list(batches)
    fields = len(dataclasses.fields(BatchShape))
    own = np.array([dataclasses.astuple(shape_of(batch)) for batch in batches], np.int32).reshape(-1, fields)
    with jax.transfer_guard("allow"):  # a few numbers, through the devices
        counts = multihost_utils.process_allgather(np.int32(len(own))).reshape(-1)
        padded = np.zeros((counts.max(), fields), np.int32)
        padded[: len(own)] = own
        everyone = multihost_utils.process_allgather(padded)
    tables = [
        sorted(map(tuple, table[:count].tolist()), reverse=True) for table, count in zip(everyone, counts, strict=True)
    ]

    mine = sorted(batches, key=lambda batch: dataclasses.astuple(shape_of(batch)), reverse=True)
    agreed = []
    for layout in sorted({_layout(row) for table in tables for row in table}, reverse=True):
        alike = [[row for row in table if _layout(row) == layout] for table in tables]
        members = iter([batch for batch in mine if _layout(dataclasses.astuple(shape_of(batch))) == layout])
        for rows in itertools.zip_longest(*alike):
            pieces, selected = (max(row[place] for row in rows if row) for place in (-2, -1))
            common = BatchShape(*(*layout[:-1], pieces, selected))
            batch = next(members, None)
            agreed.append(common.empty(shards) if batch is None else _widened(batch, common))
    return agreed


def stack_parts(parts: Sequence[MicroBatch], shards: int) -> list[MicroBatch]:
    """Join micro-batches of one part to some of `shards` parts, all of one shape; empty parts fill up the last."""
    stacked = []
    ordered = sorted(parts, key=lambda part: dataclasses.astuple(shape_of(part)), reverse=True)
    for _, same in itertools.groupby(ordered, key=lambda part: _layout(dataclasses.astuple(shape_of(part)))):
        members = list(same)
        for first in range(0, len(members), shards):
            chosen = members[first : first + shards]
            selected = max(shape_of(part).selected for part in chosen)
            shape = dataclasses.replace(shape_of(chosen[0]), selected=selected)  # most pieces come first
            chosen = [_widened(part, shape) for part in chosen]
            chosen += [shape.empty()] * (shards - len(chosen))
            stacked.append(jax.tree.map(lambda *leaves: np.concatenate(leaves), *chosen))
    return stacked


def abstract_batch(shape: BatchShape, shards: int = 1) -> MicroBatch:
    """Return a micro-batch of `jax.ShapeDtypeStruct`s, for compiling ahead of time."""
    empty: Any = shape.empty(shards)
    return cast(MicroBatch, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), empty))


def shape_of(batch: MicroBatch) -> BatchShape:
    """Return the shape of one of the S parts of a micro-batch."""
    shards, selected = batch.select.shape
    (rows, length), (sequences, sequence_length) = batch.tokens.shape, batch.mask.shape
    prefixes, prefix_length = batch.prefix.shape
    pieces = 0 if batch.segment_ids is None else batch.segment_ids.shape[1] // length
    sizes = rows // shards, length, sequences // shards, sequence_length, prefixes // shards, prefix_length
    return BatchShape(*sizes, pieces, selected)


def _layout(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of a `BatchShape` that micro-batches must share to be run as one; padding evens out the rest."""
    *sizes, pieces, _ = shape
    return (*sizes, min(pieces, 2))


def _widened(batch: MicroBatch, common: BatchShape) -> MicroBatch:
    """Return the batch with the pieces and the R of `common`, which must not be smaller than its own."""
    shape = shape_of(batch)
    more = ((0, 0), (0, common.selected - shape.selected))
    select: Any = np.pad(batch.select, more, constant_values=shape.rows * shape.length - 1)
    place: Any = np.pad(batch.place, more, constant_values=shape.scored)
    ids: Any = batch.segment_ids
    source: Any = batch.source
    if common.pieces > shape.pieces:
        more = ((0, 0), (0, (common.pieces - shape.pieces) * shape.length))
        ids, source = np.pad(ids, more), np.pad(source, more, constant_values=-1)
    return dataclasses.replace(batch, select=select, place=place, segment_ids=ids, source=source)
