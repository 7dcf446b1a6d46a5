"""Cut the sequences of an optimizer step into micro-batches: their shapes, and what lies in each row.

Without packing a row is one sequence without the prompt that it shares with its group: that prefix is run once, and its
keys and values serve every member (`share_prefix`). Sequences of the same tokens share a row, since a policy that knows
what to do says the same in most rollouts. Rows are sorted by width into a few fixed shapes, so nothing recompiles after
the first steps. With packing there is one shape, and a row holds several sequences, which do not see each other.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.choices import AttentionBackend, DType, History
from orchestra_jax.config.schema import ModelConfig
from orchestra_jax.rl.batching import (
    BatchShape,
    MicroBatch,
    MicroShapes,
    PackShapes,
    TokenSequence,
    bin_parts,
    select_size,
)

# Few rows are as wide as the widest shape. A second shape of other widths takes longer to compile than padding takes.
_LEFT_OVER = 8


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

    `pack` makes those of `PackShapes`, `micro_batches` the others. `shards` is S, the batch shards of the mesh that
    this process feeds: S micro-batches of one shape are put side by side, and empty ones fill up the last. A ValueError
    tells of a row that is too long, or begins with a sampled token.
    """
    parts = pack(rows, shapes) if isinstance(shapes, PackShapes) else micro_batches(rows, shapes)
    if shards == 1:
        return parts
    from orchestra_jax.rl.distributed import stack_parts

    return stack_parts(parts, shards)


def micro_batches(rows: Sequence[TokenSequence], shapes: MicroShapes) -> list[MicroBatch]:
    """Split rows into micro-batches of few shapes and one part each; every row lands in exactly one.

    Raises:
        ValueError: a row or prefix is longer than the widest shape, or a row begins with a sampled token.
    """
    by_width: dict[int, dict[Any, list[TokenSequence]]] = {}
    for number, given in enumerate(rows):
        row = given if shapes.prefix_widths else dataclasses.replace(given, prefix=0)
        length = len(row.tokens) - row.prefix
        if (width := next((w for w in shapes.widths if w >= length), None)) is None:
            raise ValueError(f"A row of {length} tokens exceeds the widest shape {shapes.widths[-1]}; widen it.")
        check_start(row, row.prefix)
        same = number if shapes.sequences_per_row == 1 else (row.prefix, row.tokens, row.sampled)
        by_width.setdefault(width, {}).setdefault(same, []).append(row)
    batches = []
    for width, alike in sorted(by_width.items()):
        most_rows, most_prefixes = shapes.sizes(width)
        most = shapes.sequences_per_row * most_rows
        part: list[list[TokenSequence]] = []
        prefixes: set[tuple[int, ...]] = set()
        # Short prompts together: none is padded to a long one.
        for members in sorted(alike.values(), key=lambda members: members[0].prefix):
            prefix = members[0].tokens[: members[0].prefix]
            for sharing in (members[first : first + most] for first in range(0, len(members), most)):
                full = len(part) == most_rows or sum(map(len, part)) + len(sharing) > most
                if full or (prefix not in prefixes and len(prefixes) == most_prefixes):
                    batches += _cut(part, width, shapes)
                    part, prefixes = [], set()
                prefixes.add(prefix)
                part.append(sharing)
        batches += _cut(part, width, shapes)
    return batches


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


def check_start(row: TokenSequence, start: int = 0) -> None:
    """Refuse a row that begins, at `start`, with a token that carries loss: nothing in the row predicts it."""
    if row.sampled[start : start + 1] == (True,):
        raise ValueError("A row begins with a sampled token, which nothing predicts: put one prompt token before it.")


def _cut(part: Sequence[Sequence[TokenSequence]], width: int, shapes: MicroShapes) -> list[MicroBatch]:
    """Make one micro-batch of these rows, or several small ones if those have at most half the tokens."""
    longest = max(row[0].prefix for row in part)
    if (prefix_width := next((w for w in (0, *shapes.prefix_widths) if w >= longest), None)) is None:
        raise ValueError(f"A prefix of {longest} tokens exceeds the widest {shapes.prefix_widths[-1]}; widen it.")
    rows, slots = shapes.sizes(width)
    few = max(1, rows // _LEFT_OVER) if width == shapes.widths[-1] else rows
    cuts = [part[first : first + few] for first in range(0, len(part), few)]
    small_tokens, tokens = few * width + min(few, slots) * prefix_width, rows * width + slots * prefix_width
    roomy = all(sum(map(len, cut)) <= shapes.sequences_per_row * few for cut in cuts)
    if not roomy or (len(cuts) > 1 and 2 * len(cuts) * small_tokens > tokens):
        few, cuts = rows, [part]
    return [_micro_batch(cut, few, min(few, slots), width, prefix_width, shapes) for cut in cuts]


def _micro_batch(
    part: Sequence[Sequence[TokenSequence]], rows: int, slots: int, width: int, prefix_width: int, shapes: MicroShapes
) -> MicroBatch:
    """Lay `part`, the sequences of each row, out in `rows` rows of `width` tokens, on `slots` shared prefixes."""
    found = sum(sum(same[0].sampled[same[0].prefix :]) for same in part)
    selected = select_size(found, rows * width, shapes.response_fractions)
    shape = BatchShape(rows, width, shapes.sequences_per_row * rows, width, slots, prefix_width, 0, selected)
    arrays: Any = shape.empty()
    prefixes: dict[tuple[int, ...], int] = {}
    carrying, n = np.zeros((rows, width), bool), 0
    for b, same in enumerate(part):
        start, length = same[0].prefix, len(same[0].tokens) - same[0].prefix
        slot = prefixes.setdefault(same[0].tokens[:start], len(prefixes))
        arrays.prefix[slot, :start], arrays.prefix_lengths[slot] = same[0].tokens[:start], start
        arrays.prefix_row[b] = slot
        arrays.tokens[b, :length], carrying[b, :length] = same[0].tokens[start:], same[0].sampled[start:]
        arrays.repeated[0] += len(same) * (start + length) - length
        for sequence in same:
            arrays.row_of[n], arrays.mask[n] = b, carrying[b]
            arrays.rollout_logprobs[n, :length] = sequence.logprobs[start:]
            arrays.advantages[n], arrays.trajectory[n] = sequence.advantage, sequence.trajectory
            arrays.share[n], n = sequence.share, n + 1
    arrays.repeated[0] -= arrays.prefix_lengths.sum()
    places = np.flatnonzero(carrying)
    arrays.select[0, :found], arrays.place[0, :found] = places - 1, places
    return dataclasses.replace(arrays, old_logprobs=arrays.rollout_logprobs)
