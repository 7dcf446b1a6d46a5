"""Cut the rows of an optimizer step into micro-batches: their shapes, and several sequences packed into one row."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.choices import AttentionBackend, DType, History
from orchestra_jax.config.schema import ModelConfig
from orchestra_jax.rl.batching import (
    MicroBatch,
    MicroShapes,
    PackShapes,
    TokenSequence,
    bin_parts,
    check_start,
    micro_batches,
    select_size,
)


def policy_shapes(
    algorithm: AlgorithmConfig, model: ModelConfig, longest: int, history: History = History.keep
) -> MicroShapes | PackShapes:
    """Return the shapes of the update's micro-batches on one batch shard.

    Unpacked: the configured widths and `longest`. Packed: one shape. Each has algorithm.micro_tokens tokens, shared
    prefixes not counted, and at least one row.

    Args:
        longest: tokens of the longest trajectory, which must fit: rollout.limits.max_length.
        history: where it forks trajectories, packed rows share what forks begin with (`algorithm.share_prefix`).
    """
    fractions = tuple(algorithm.response_fractions)
    if algorithm.packing:
        length = algorithm.row_length or longest
        rows = max(1, algorithm.micro_tokens // length)
        most = most_packed(model, length)
        shared = algorithm.share_prefix and history is not History.keep
        return PackShapes(length, rows, max(rows, algorithm.row_sequences), fractions, most, shared)

    def reaching(widths: list[int]) -> tuple[int, ...]:
        return tuple(sorted({*(width for width in widths if width < longest), longest}))

    return MicroShapes(
        algorithm.micro_tokens,
        reaching(algorithm.row_widths),
        reaching(algorithm.prefix_widths) if algorithm.share_prefix else (),
        rows_per_prefix=-(-max(8, algorithm.group_size) // algorithm.sequences_per_row),
        response_fractions=fractions,
        sequences_per_row=algorithm.sequences_per_row,
    )


def most_packed(model: ModelConfig, length: int) -> int | None:
    """Return the most sequences that cuDNN, where it may run, takes in a packed row; None for no limit.

    The same rows are packed on every machine, since the backend is not known before the model is traced.
    """
    if model.attention is AttentionBackend.xla or model.dtype is not DType.bfloat16:
        return None
    from orchestra_jax.models.attention.cudnn import max_segments

    return max_segments(length) - 1


def policy_batches(
    rows: Sequence[TokenSequence], shapes: MicroShapes | PackShapes, shards: int = 1
) -> list[MicroBatch]:
    """Cut the rows of one optimizer step into micro-batches.

    `pack` makes those of `PackShapes`, `batching.micro_batches` the others. `shards` is S, the batch shards of the mesh
    that this process feeds: `distributed.stack_parts` puts S micro-batches side by side. A ValueError tells of a row
    that is too long, or begins with a sampled token.
    """
    parts = pack(rows, shapes) if isinstance(shapes, PackShapes) else micro_batches(rows, shapes)
    if shards == 1:
        return parts
    from orchestra_jax.rl.distributed import stack_parts

    return stack_parts(parts, shards)


def pack(sequences: Sequence[TokenSequence], shapes: PackShapes) -> list[MicroBatch]:
    """Pack sequences into micro-batches of one shape (up to the response fraction); every one lands in exactly one.

    A sequence sees only itself, at positions that start at 0. A row or micro-batch that has all the sequences it may
    hold stays partly empty.

    Raises:
        ValueError: a sequence is longer than a row, or begins with a sampled token.
    """
    for sequence in sequences:
        check_start(sequence)
    lengths = [len(sequence.tokens) for sequence in sequences]
    if max(lengths, default=0) > shapes.row_length:
        raise ValueError(
            f"A sequence of {max(lengths)} tokens exceeds the packed row of {shapes.row_length}; lengthen the row."
        )
    if shapes.shared:
        from orchestra_jax.rl.shared import pack_shared

        return pack_shared(sequences, shapes)
    parts = bin_parts(lengths, shapes)
    return [_packed([[sequences[i] for i in row] for row in part], shapes) for part in parts]


def _packed(rows: Sequence[Sequence[TokenSequence]], shapes: PackShapes) -> MicroBatch:
    positions = shapes.rows * shapes.row_length
    found = sum(sum(sequence.sampled) for row in rows for sequence in row)
    shape = shapes.batch_shape(select_size(found, positions, shapes.response_fractions))
    batch: Any = shape.empty()
    batch.positions[:] = 0
    n = 0
    sources = []  # position in the rows of each sequence's first token
    for b, row in enumerate(rows):
        start = 0
        for segment, sequence in enumerate(row, start=1):
            length = len(sequence.tokens)
            where = slice(start, start + length)
            batch.tokens[b, where], batch.segment_ids[b, where] = sequence.tokens, segment
            batch.positions[b, where] = np.arange(length)
            batch.mask[n, :length], batch.rollout_logprobs[n, :length] = sequence.sampled, sequence.logprobs
            batch.advantages[n], batch.trajectory[n] = sequence.advantage, sequence.trajectory
            batch.share[n] = sequence.share
            sources.append(b * shapes.row_length + start)
            start, n = start + length, n + 1
    sequence_of, token_of = np.nonzero(batch.mask)
    batch.select[0, :found] = np.array(sources, np.int64)[sequence_of] + token_of - 1
    batch.place[0, :found] = np.flatnonzero(batch.mask)
    return dataclasses.replace(batch, old_logprobs=batch.rollout_logprobs)
