"""Several sequences in one row: a bin packer, and the packed micro-batches of a fixed set of shapes."""

import bisect
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestra_jax.rl.batching import BatchShape, MicroBatch, TokenSequence, check_start, select_size


@dataclass(frozen=True)
class PackShapes:
    """The shapes of packed micro-batches on each batch shard of the mesh; each is compiled when it is first needed."""

    row_length: int  # tokens of a row; the longest sequence must fit
    rows: int = 1  # of a micro-batch
    sequences: int = 64  # of a micro-batch
    response_fractions: tuple[float, ...] = (0.5,)  # see `MicroShapes`
    row_sequences: int | None = None  # most sequences of a row; None: as many as fit
    packer: Callable[..., list[MicroBatch]] | None = None  # instead of `pack`: `rl.shared.pack_shared`

    def __post_init__(self) -> None:
        if min(self.row_length, self.rows, self.row_sequences or 1) < 1 or self.sequences < self.rows:
            raise ValueError(
                f"PackShapes needs row_length >= 1 and sequences >= rows >= 1, not row_length={self.row_length}, "
                f"rows={self.rows} and sequences={self.sequences}."
            )

    def batch_shape(self, selected: int | None = None, pieces: int = 1) -> BatchShape:
        """Return the compiled shape for R = `selected`, or for the smallest of the response fractions."""
        if selected is None:
            selected = select_size(0, self.rows * self.row_length, self.response_fractions)
        return BatchShape(self.rows, self.row_length, self.sequences, self.row_length, 1, 0, pieces, selected)


def bin_rows(lengths: Sequence[int], row_length: int, most: int) -> list[list[int]]:
    """Put sequences into rows: the longest first, each into the fullest row that still holds it (best fit).

    A row has `row_length` tokens and at most `most` sequences. Returns the sequences' indices, row by row.
    """
    rows: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # (free tokens, row), ascending
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = bisect.bisect_left(open_rows, (lengths[index], -1))
        if at == len(open_rows):
            free, row = row_length, len(rows)
            rows.append([])
        else:
            free, row = open_rows.pop(at)
        rows[row].append(index)
        if len(rows[row]) < most:
            bisect.insort(open_rows, (free - lengths[index], row))
    return rows


def bin_parts(lengths: Sequence[int], shapes: PackShapes) -> list[list[list[int]]]:
    """Return the sequences' indices, micro-batch by micro-batch (of one batch shard) and row by row."""
    # Rows of many sequences first, each into the first micro-batch with room for it.
    parts: list[list[list[int]]] = []
    most = min(shapes.sequences, shapes.row_sequences or shapes.sequences)
    for row in sorted(bin_rows(lengths, shapes.row_length, most), key=len, reverse=True):
        for part in parts:
            if len(part) < shapes.rows and sum(map(len, part)) + len(row) <= shapes.sequences:
                part.append(row)
                break
        else:
            parts.append([row])
    return parts


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
    if shapes.packer is not None:
        return shapes.packer(sequences, shapes)
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
