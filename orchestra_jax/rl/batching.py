"""The sequences of trajectories that are trained on, and the arrays and shapes of the micro-batches that hold them.

`rl.packing` puts the sequences into the arrays.
"""

import bisect
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from orchestra_jax.types import Trajectory


@dataclass(frozen=True)
class TokenSequence:
    """One token sequence to train on."""

    tokens: tuple[int, ...]  # all ids
    sampled: tuple[bool, ...]  # True where the id was sampled by the policy and so carries loss
    logprobs: tuple[float, ...]  # behaviour log-probs where sampled, 0 elsewhere
    prefix: int  # number of leading ids that may be shared with other rows
    advantage: float  # of a demonstration: its weight
    trajectory: int = 0  # number of its trajectory; one that forked has several sequences
    share: float = 1.0  # its sampled ids as a share of its trajectory's


def sequences(trajectory: Trajectory, advantage: float, number: int = 0) -> list[TokenSequence]:
    """Return the trajectory's sequences; a trajectory that forked has several, all with its advantage and number."""
    found = []
    total = sum(len(turn.sampled_ids) for turn in trajectory.turns)
    for turns in trajectory.sequences:
        tokens: list[int] = []
        sampled: list[bool] = []
        logprobs: list[float] = []
        for turn in turns:
            tokens += [*turn.prompt_ids, *turn.sampled_ids]
            sampled += [False] * len(turn.prompt_ids) + [True] * len(turn.sampled_ids)
            logprobs += [0.0] * len(turn.prompt_ids) + list(turn.logprobs)
        if turns:
            # The last prompt token stays in the row: its hidden state predicts the first sampled one.
            prefix, share = len(turns[0].prompt_ids) - 1, sum(sampled) / total
            row = TokenSequence(tuple(tokens), tuple(sampled), tuple(logprobs), prefix, advantage, number, share)
            found.append(row)
    return found


@dataclass(frozen=True, order=True)
class BatchShape:
    """Shape of the part of a `MicroBatch` that one batch shard holds; the update is compiled for each shape."""

    rows: int  # B / S
    length: int  # T
    sequences: int  # N / S
    sequence_length: int  # L
    prefixes: int  # G / S
    prefix_length: int  # P
    pieces: int  # 0: a row has the tokens of one sequence; 1: of several; more: of several that share beginnings
    selected: int  # R

    @property
    def scored(self) -> int:
        """The number of places that log-probs are computed for: unpacked, sequences of the same tokens share a row."""
        return (self.sequences if self.pieces else self.rows) * self.sequence_length

    def empty(self, shards: int = 1) -> "MicroBatch":
        """Return a micro-batch of padding only, as numpy arrays: no token of it carries loss."""
        prefixes, rows, sequences = (shards * size for size in (self.prefixes, self.rows, self.sequences))

        def ints(*shape: int, fill: int = 0) -> Any:
            return np.full(shape, fill, np.int32)

        def floats(*shape: int, fill: float = 0.0) -> Any:
            return np.full(shape, fill, np.float32)

        return MicroBatch(
            prefix=ints(prefixes, self.prefix_length),
            prefix_lengths=ints(prefixes),
            prefix_row=ints(rows),
            tokens=ints(rows, self.length),
            segment_ids=ints(rows, self.pieces * self.length) if self.pieces else None,
            source=ints(rows, self.pieces * self.length, fill=-1) if self.pieces > 1 else None,
            positions=ints(rows, self.length) + np.arange(self.length, dtype=np.int32),
            select=ints(shards, self.selected, fill=self.rows * self.length - 1),
            place=ints(shards, self.selected, fill=self.scored),
            row_of=None if self.pieces else ints(sequences),
            mask=floats(sequences, self.sequence_length),
            rollout_logprobs=floats(sequences, self.sequence_length),
            old_logprobs=floats(sequences, self.sequence_length),
            ref_logprobs=floats(sequences, self.sequence_length),
            advantages=floats(sequences),
            trajectory=ints(sequences),
            share=floats(sequences, fill=1.0),
            other_log_ratios=floats(sequences),
            repeated=ints(shards),
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MicroBatch:
    """One fixed-shape piece of a batch, in the layouts of the model and of the loss.

    The model runs B rows of T tokens over G shared prefixes of at most P tokens. A row holds one sequence, several of
    the same tokens, or several of different ones (packed). The loss sees N sequences of L tokens; unpacked, L is T.
    Every array's first axis has S parts, one a batch shard; indices count within a part: no token leaves its device.

    Attributes:
        prefix, prefix_lengths: shared prefixes, padded; P is 0 when nothing is shared.
        prefix_row: index of the prefix of its part that each row continues.
        tokens: the rows, padded with 0.
        segment_ids: 1, 2, ... for the packed sequences of a row or piece, 0 for padding; None when unpacked.
        source: the pieces of rows whose sequences share beginnings (`models.attention.pieces`), else None.
        positions: position of each token in its sequence, without its shared prefix.
        select: index b * T + t of every position whose next token carries loss, padded with the part's last position.
        place: index n * L + l of that next token in the loss layout (unpacked: b * L + l); padding is one past the end.
        row_of: the row of each sequence, in ascending order; None when packed.
        mask: 1.0 where the token was sampled and carries loss.
        rollout_logprobs: the engine's log-probs where sampled.
        old_logprobs: log-probs at the start of the step; the engine's unless the learner scored the rows itself.
        ref_logprobs: the reference policy's, for a KL; 0 until the learner has scored them.
        advantages: per sequence.
        trajectory, share: per sequence, see `TokenSequence`.
        other_log_ratios: per sequence, the sum of the log-ratios of new to old policy over its trajectory's others; 0
            until `forks.with_other_log_ratios` has filled it in, which is right on the first update of a batch.
        repeated: number of tokens that are run once for several sequences: shared prefixes, beginnings and rows.
    """

    prefix: Int[Array, "G P"]
    prefix_lengths: Int[Array, " G"]
    prefix_row: Int[Array, " B"]
    tokens: Int[Array, "B T"]
    segment_ids: Int[Array, "B U"] | None
    source: Int[Array, "B U"] | None
    positions: Int[Array, "B T"]
    select: Int[Array, "S R"]
    place: Int[Array, "S R"]
    row_of: Int[Array, " N"] | None
    mask: Float[Array, "N L"]
    rollout_logprobs: Float[Array, "N L"]
    old_logprobs: Float[Array, "N L"]
    ref_logprobs: Float[Array, "N L"]
    advantages: Float[Array, " N"]
    trajectory: Int[Array, " N"]
    share: Float[Array, " N"]
    other_log_ratios: Float[Array, " N"]
    repeated: Int[Array, " S"]

    @property
    def num_tokens(self) -> float:
        """The number of tokens that carry loss."""
        return float(jax.device_get(self.mask.sum()))

    @property
    def num_sequences(self) -> float:
        """The number of sequences with a token that carries loss; those of one trajectory are one together."""
        return float(jax.device_get((self.mask.sum(1).astype(bool) * self.share).sum()))

    @property
    def longest(self) -> float:
        """The most tokens that carry loss in one sequence."""
        return float(jax.device_get(self.mask.sum(1).max()))

    def with_advantage(self) -> "MicroBatch":
        """Return the batch in which only sequences with an advantage carry loss; for counting."""
        return dataclasses.replace(self, mask=self.mask * self.advantages.astype(bool)[:, None])

    @property
    def shards(self) -> int:
        """S, the number of parts."""
        return self.select.shape[0]


@dataclass(frozen=True)
class MicroShapes:
    """The shapes of micro-batches without packing; each is compiled when it is first needed.

    Attributes:
        tokens: tokens of a micro-batch on each batch shard, shared prefixes not counted. Of width w it has tokens // w
            rows, at least one; of the last width an eighth of them where few rows are left over or share a prefix.
        widths: row widths, ascending; the last must hold the longest row.
        prefix_widths: widths of the shared prefix; empty switches sharing off.
        rows_per_prefix: number of rows for which a micro-batch has one prefix slot; it has at least one.
        response_fractions: shares of a micro-batch's tokens that may be sampled ones, ascending; only so many positions
            are projected onto the vocabulary.
        sequences_per_row: a micro-batch has room for so many times its rows, since sequences of the same tokens share
            one. Room costs next to nothing. 1: each has a row of its own.
    """

    tokens: int = 4096
    widths: tuple[int, ...] = (40, 64, 128)
    prefix_widths: tuple[int, ...] = (80,)
    rows_per_prefix: int = 8
    response_fractions: tuple[float, ...] = (0.5,)
    sequences_per_row: int = 1

    def sizes(self, width: int) -> tuple[int, int]:
        """Return the most rows and the most shared prefixes of a micro-batch of this width."""
        rows = max(1, self.tokens // width)
        return rows, max(1, rows // self.rows_per_prefix) if self.prefix_widths else 1


@dataclass(frozen=True)
class PackShapes:
    """The shapes of packed micro-batches on each batch shard of the mesh; each is compiled when it is first needed."""

    row_length: int  # tokens of a row; the longest sequence must fit
    rows: int = 1  # of a micro-batch
    sequences: int = 64  # of a micro-batch
    response_fractions: tuple[float, ...] = (0.5,)  # see `MicroShapes`
    row_sequences: int | None = None  # most sequences of a row; None: as many as fit
    shared: bool = False  # sequences that begin alike have their common beginning in a row once (`rl.shared`)

    def __post_init__(self) -> None:
        if min(self.row_length, self.rows, self.row_sequences or 1) < 1 or self.sequences < self.rows:
            raise ValueError(f"PackShapes needs row_length >= 1 and sequences >= rows >= 1, not {self}.")

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


def select_size(found: int, positions: int, fractions: Sequence[float]) -> int:
    """Return R for `found` selected of `positions` positions: the smallest of the compiled shares that holds them."""
    sizes = (int(positions * fraction) for fraction in (*fractions, 1.0))
    return next(size for size in sizes if size >= found)
