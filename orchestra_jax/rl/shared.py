"""Pack sequences that begin alike, so that the beginning is in the row once.

Forks of one trajectory begin alike, and so do the members of a group, which have one prompt. They are laid out one
after another: a sequence leaves out the tokens that it has in common with the one before.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int

from orchestra_jax.rl.batching import MicroBatch, PackShapes, TokenSequence, bin_parts, bin_rows, select_size


@dataclass
class Family:
    """Sequences that are laid out together.

    Attributes:
        members: (number of the sequence, tokens that it has in common with the one before and does not repeat).
        length: tokens of the layout.
        sampled: tokens that its sequences sampled; a row has room for the log-probs of as many as it has tokens.
    """

    members: list[tuple[int, int]] = field(default_factory=list)
    length: int = 0
    sampled: int = 0


def families(sequences: Sequence[TokenSequence], longest: int, most: int) -> list[Family]:
    """Put sequences that begin alike into families of at most `longest` tokens and `most` sequences.

    Sequences of one prompt begin alike, and the forks of a trajectory by more: what they have in common is longer than
    the shorter first prompt. A common beginning of two prompts, such as a system message, is not shared.
    """
    ids = [np.asarray(sequence.tokens, np.int32) for sequence in sequences]
    sampled = [sum(sequence.sampled) for sequence in sequences]
    # As big-endian bytes their order is that of the tokens, and fast to find.
    order = sorted(range(len(ids)), key=lambda i: ids[i].astype(">i4").tobytes())
    found: list[Family] = []
    for place, number in enumerate(order):
        if place:
            before, family = order[place - 1], found[-1]
            shared = _common(ids[before], ids[number]) - 1
            added = len(ids[number]) - shared
            related = shared >= max(1, min(sequences[before].prefix, sequences[number].prefix))
            larger = max(family.length + added, family.sampled + sampled[number])
            if related and larger <= longest and len(family.members) < most:
                family.members.append((number, shared))
                family.length += added
                family.sampled += sampled[number]
                continue
        found.append(Family([(number, 0)], len(ids[number]), sampled[number]))
    return found


def laid_out(family: Family, lengths: Sequence[int], start: int) -> Iterable[tuple[int, int, Int[np.ndarray, " n"]]]:
    """Yield (number of the sequence, its shared tokens, the place of each of its tokens) in a row, from `start` on.

    A sequence repeats the last token that it has in common, since a token is predicted by the place before its own.
    """
    places = np.zeros(0, np.int64)
    for number, shared in family.members:
        added = lengths[number] - shared
        places = np.concatenate([places[:shared], np.arange(start, start + added)])
        start += added
        yield number, shared, places


def _common(one: Int[np.ndarray, " n"], other: Int[np.ndarray, " m"]) -> int:
    """Return how many first tokens are the same."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


def pack_shared(sequences: Sequence[TokenSequence], shapes: PackShapes) -> list[MicroBatch]:
    """Pack sequences as `packing.pack` does, with a common beginning once in a row."""
    found = families(sequences, shapes.row_length, row_sequences(shapes))
    sizes = [room(max(each.length, each.sampled), len(each.members), shapes) for each in found]
    parts = bin_parts(sizes, shapes)
    return [_packed(sequences, [[found[i] for i in row] for row in part], shapes) for part in parts]


def _packed(sequences: Sequence[TokenSequence], rows: Sequence[Sequence[Family]], shapes: PackShapes) -> MicroBatch:
    """Return the micro-batch of some rows, each a list of families; the beginning of a family is laid out once."""
    lengths = [len(sequence.tokens) for sequence in sequences]
    found = sum(sum(sequences[number].sampled) for row in rows for family in row for number, _ in family.members)
    in_pieces = [_pieces(row, lengths, shapes) for row in rows]
    selected = select_size(found, shapes.rows * shapes.row_length, shapes.response_fractions)
    batch: Any = shapes.batch_shape(selected, compiled_pieces(max(map(len, in_pieces)))).empty()
    batch.positions[:] = 0
    n, select = 0, []
    for b, row in enumerate(rows):
        start = 0
        for family in row:
            for number, shared, places in laid_out(family, lengths, start):
                sequence, length = sequences[number], lengths[number]
                new = places[shared:]
                batch.tokens[b, new], batch.positions[b, new] = sequence.tokens[shared:], np.arange(shared, length)
                batch.mask[n, :length], batch.rollout_logprobs[n, :length] = sequence.sampled, sequence.logprobs
                batch.advantages[n], batch.trajectory[n] = sequence.advantage, sequence.trajectory
                batch.share[n] = sequence.share
                select.append(b * shapes.row_length + places[np.flatnonzero(sequence.sampled) - 1])
                n += 1
            start += family.length
    for b, parts in enumerate(in_pieces):
        for p, part in enumerate(parts):
            at = p * shapes.row_length
            for segment, source in enumerate(part, start=1):
                where = slice(at, at := at + len(source))
                batch.source[b, where], batch.segment_ids[b, where] = source, segment
    batch.repeated[0] = ((batch.source < 0) & (batch.segment_ids > 0)).sum()
    batch.select[0, :found] = np.concatenate(select)
    batch.place[0, :found] = np.flatnonzero(batch.mask)
    return dataclasses.replace(batch, old_logprobs=batch.rollout_logprobs)


def row_sequences(shapes: PackShapes) -> int:
    """Return the most sequences of a row, of which a micro-batch has `shapes.rows`."""
    most = shapes.sequences // shapes.rows
    return min(most, shapes.row_sequences or most)


def room(length: int, count: int, shapes: PackShapes) -> int:
    """Return the tokens of a row that a family takes, by its tokens or by its sequences, whichever is more."""
    return max(length, math.ceil(count * shapes.row_length / row_sequences(shapes)))


def compiled_pieces(needed: int) -> int:
    """Return the pieces of a shape that has room for `needed`: 4, 16, ..., since each shape is compiled.

    A piece of padding costs next to nothing.
    """
    return 4 ** max(1, math.ceil(math.log(needed, 4)))


def _pieces(row: Sequence[Family], lengths: Sequence[int], shapes: PackShapes) -> list[list[Int[np.ndarray, " n"]]]:
    """Return for each piece of a row the sequences in it, each as `MicroBatch.source` has it."""
    sources, start = list[Int[np.ndarray, " n"]](), 0
    for family in row:
        for _, shared, places in laid_out(family, lengths, start):
            sources.append(np.concatenate([~places[:shared], places[shared:]]))
        start += family.length
    return [[sources[i] for i in piece] for piece in bin_rows([*map(len, sources)], shapes.row_length, len(sources))]
