import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra_jax.rl.batching import BatchShape, MicroShapes, TokenSequence, select_size, sequences
from orchestra_jax.rl.distributed import abstract_batch, shape_of
from orchestra_jax.rl.packing import micro_batches, policy_batches
from orchestra_jax.types import Preference

from .trajectories import task, trajectory, turn

# --- sequences -------------------------------------------------------------------------------------------------------


def test_sequences_hold_every_id_and_mark_what_was_sampled():
    asked = task("a", "x", Preference("", ""))
    kept = (turn([1, 2, 3], [4, 5]), turn([6], [7]), turn([8, 9], [10]))
    fork = (turn([1, 2], [11]),)
    rows = sequences(trajectory(asked, *kept, forks=(fork, ())), 0.7)
    assert rows == [
        TokenSequence(
            tokens=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
            sampled=(False, False, False, True, True, False, True, False, False, True),
            logprobs=(0, 0, 0, -0.04, -0.05, 0, -0.07, 0, 0, -0.1),
            prefix=2,
            advantage=0.7,
            share=4 / 5,
        ),
        TokenSequence((1, 2, 11), (False, False, True), (0, 0, -0.11), 1, 0.7, share=1 / 5),
    ]


# --- micro_batches ---------------------------------------------------------------------------------------------------


def row(prompt: int, length: int, *, group: int = 0, advantage: float = 1.0) -> TokenSequence:
    """`length` ids of which the first `prompt` are the group's prompt; every third later id is an observation."""
    tokens = tuple(1 + group for _ in range(prompt)) + tuple(2 + i for i in range(length - prompt))
    sampled = tuple(i >= prompt and (i - prompt) % 3 != 2 for i in range(length))
    logprobs = tuple(-0.1 * token if s else 0.0 for token, s in zip(tokens, sampled, strict=True))
    return TokenSequence(tokens, sampled, logprobs, prompt - 1, advantage)


def unpack(batches) -> list[tuple]:
    """The rows back out of the arrays; padding rows have no sampled token."""
    found = []
    for batch in batches:
        for n in np.flatnonzero(batch.mask.sum(1)):
            b = batch.row_of[n]
            prefix = batch.prefix[batch.prefix_row[b]][: batch.prefix_lengths[batch.prefix_row[b]]]
            length = np.flatnonzero(batch.mask[n])[-1] + 1
            tokens = [*prefix.tolist(), *batch.tokens[b, :length].tolist()]
            sampled = [False] * len(prefix) + [bool(m) for m in batch.mask[n, :length]]
            logprobs = [0.0] * len(prefix) + batch.rollout_logprobs[n, :length].tolist()
            found.append((tuple(tokens), tuple(sampled), tuple(np.round(logprobs, 5)), float(batch.advantages[n])))
    return found


def trimmed(rows) -> list[tuple]:
    """What `unpack` should find: ids after the last sampled one cannot be told from padding."""
    found = []
    for r in rows:
        end = max(i for i, s in enumerate(r.sampled) if s) + 1
        rounded = tuple(np.round(np.float32(r.logprobs[:end]).tolist(), 5))
        found.append((r.tokens[:end], r.sampled[:end], rounded, float(np.float32(r.advantage))))
    return found


ROWS = st.lists(
    st.builds(
        lambda prompt, extra, group, advantage: row(prompt, prompt + extra, group=group, advantage=advantage),
        st.integers(1, 6), st.integers(1, 12), st.integers(0, 3), st.integers(-4, 4).map(lambda a: a / 4),
    ), max_size=12,
)  # fmt: skip


@given(
    ROWS, st.sampled_from([(), (6,), (3, 6)]), st.sampled_from([8, 40, 200]), st.sampled_from([1, 2, 8]),
    st.integers(1, 3),
)  # fmt: skip
def test_every_row_lands_in_one_micro_batch_with_its_very_ids(rows, prefix_widths, tokens, rows_per_prefix, alike):
    shapes = MicroShapes(tokens, (4, 10, 20), prefix_widths, rows_per_prefix, sequences_per_row=alike)
    batches = micro_batches(rows, shapes)
    assert sorted(unpack(batches)) == sorted(trimmed(rows))
    for batch in batches:
        size, width = batch.tokens.shape
        assert width in shapes.widths
        most = max(1, tokens // width)
        few = max(1, most // 8) if width == 20 else most  # what is left over of the widest is not padded
        filled = np.unique(batch.row_of[batch.mask.any(1)])
        assert len(batch.mask) == alike * size
        assert size == (few if len(filled) <= few and len(unpack([batch])) <= alike * few else most)
        assert batch.prefix.shape[1] in (0, *prefix_widths)
        assert batch.num_tokens == batch.mask.sum()
        # `select` names exactly the positions before the sampled tokens of the rows, then only the last one.
        sampled = np.zeros((size, width), bool)
        np.logical_or.at(sampled, batch.row_of, batch.mask > 0)
        count = sampled.sum()
        (select,), (place,) = batch.select, batch.place
        np.testing.assert_array_equal(place[:count], np.flatnonzero(sampled))
        np.testing.assert_array_equal(select[:count] + 1, np.flatnonzero(sampled))
        assert (select[count:] == size * width - 1).all()
        assert (place[count:] == size * width).all()
        assert len(select) in (size * width // 2, size * width // 2 * 2)
        assert batch.segment_ids is None
        np.testing.assert_array_equal(batch.positions, np.tile(np.arange(width), (size, 1)))


def test_a_shared_prompt_is_stored_once():
    rows = [row(5, 8, group=group) for group in (0, 1) for _ in range(4)]
    (batch,) = micro_batches(rows, MicroShapes(64, (8,), (6,), rows_per_prefix=4))
    np.testing.assert_array_equal(batch.prefix, [[1, 1, 1, 1, 0, 0], [2, 2, 2, 2, 0, 0]])
    np.testing.assert_array_equal(batch.prefix_lengths, [4, 4])
    np.testing.assert_array_equal(batch.prefix_row, [0] * 4 + [1] * 4)
    np.testing.assert_array_equal(batch.tokens[5], [2, 2, 3, 4, 0, 0, 0, 0])  # the last prompt id stays in the row


@pytest.mark.parametrize("shards", [1, 2])
def test_the_tokens_of_a_shared_prompt_are_run_once(shards: int):
    rows = [row(5, 8 - group, group=group) for group in range(3) for _ in range(7)]
    shapes, alone = MicroShapes(64, (8,), (6,), rows_per_prefix=4), MicroShapes(64, (8,), ())
    batches = policy_batches(rows, shapes, shards)
    run = sum(len(found.tokens) for found in rows) - sum(batch.repeated.sum() for batch in batches)
    assert run == sum((batch.tokens > 0).sum() + (batch.prefix > 0).sum() for batch in batches)
    assert sum(batch.repeated.sum() for batch in policy_batches(rows, alone, shards)) == 0


@pytest.mark.parametrize("shards", [1, 2])
def test_the_tokens_of_rollouts_that_say_the_same_are_run_once(shards: int):
    rows = [row(5, 7 + extra, group=group) for group in range(3) for extra in (0, 2) for _ in range(4)]
    batches = policy_batches(rows, MicroShapes(32, (8,), (6,), rows_per_prefix=2, sequences_per_row=2), shards)
    assert sum(batch.num_sequences for batch in batches) == len(rows)
    run = sum(len(found.tokens) for found in rows) - sum(batch.repeated.sum() for batch in batches)
    assert run == sum((batch.tokens > 0).sum() + (batch.prefix > 0).sum() for batch in batches)
    assert run == 3 * (4 + 3 + 5)  # a prompt and two rows for each group


def test_too_many_prefixes_start_a_new_micro_batch():
    rows = [row(5, 8, group=group) for group in range(3) for _ in range(6)]
    shared = micro_batches(rows, MicroShapes(64, (8,), (6,), rows_per_prefix=8))
    assert [shape_of(batch).rows for batch in shared] == [8, 8, 8]
    alone = micro_batches(rows, MicroShapes(64, (8,), (), rows_per_prefix=8))
    assert [shape_of(batch).rows for batch in alone] == [8, 8, 1, 1]


@pytest.mark.parametrize(("groups", "members", "small"), [(8, 1, 2), (12, 1, 3), (8, 6, 0), (2, 3, 2), (4, 3, 0)])
def test_rows_of_many_prompts_come_in_small_micro_batches_where_those_have_half_the_tokens(groups, members, small):
    rows = [row(5, 8, group=group) for group in range(groups) for _ in range(members)]
    shapes = MicroShapes(256, (8,), (8,))
    batches = micro_batches(rows, shapes)
    assert sum(shape_of(batch).rows == 4 for batch in batches) == small
    assert all(shape_of(batch).rows in (4, 32) for batch in batches)
    whole = math.ceil(groups / 4) * (32 * 8 + 4 * 8)
    assert sum(batch.tokens.size + batch.prefix.size for batch in batches) <= whole
    assert sorted(unpack(batches)) == sorted(trimmed(rows))


def test_a_short_prompt_is_not_padded_to_a_long_one():
    short, long = (
        [row(prompt, prompt + 4, group=n) for n in groups for _ in range(4)]
        for prompt, groups in ((9, (1, 3)), (40, (2, 4)))
    )
    mixed = [*short[:4], *long[:4], *short[4:], *long[4:]]
    batches = micro_batches(mixed, MicroShapes(64, (8,), (8, 64), rows_per_prefix=4))
    assert [batch.prefix.shape for batch in batches] == [(2, 8), (2, 64)]
    assert sorted(unpack(batches)) == sorted(trimmed(mixed))


def test_only_as_many_positions_are_scored_as_the_smallest_share_that_holds_them():
    assert [select_size(found, 20, (0.25, 0.5)) for found in (0, 5, 6, 10, 11, 20)] == [5, 5, 10, 10, 20, 20]


def test_no_rows_make_no_micro_batch():
    assert micro_batches([], MicroShapes()) == []


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("prefix_widths", [(), (6,)])
def test_parts_of_a_sharded_micro_batch_are_micro_batches_of_their_own(shards, prefix_widths):
    rows = [row(5, 7 + i % 9, group=i // 4, advantage=i) for i in range(14)]
    shapes = MicroShapes(24, (4, 12, 16), prefix_widths, 2, response_fractions=(0.25, 0.5))
    single, sharded = micro_batches(rows, shapes), policy_batches(rows, shapes, shards)
    parts = []
    for batch in sharded:
        assert batch.shards == shards
        assert batch.num_tokens == sum(part.num_tokens for part in split(batch))
        parts += [part for part in split(batch) if part.num_tokens]
    assert sorted(unpack(parts)) == sorted(unpack(single))
    for part in parts:
        count = int(part.num_tokens)
        np.testing.assert_array_equal(part.place[0, :count], np.flatnonzero(part.mask))
        assert (part.place[0, count:] == part.mask.size).all()
        assert (part.select[0, count:] == part.tokens.size - 1).all()
    assert len(parts) == len(single)
    assert len({shape_of(batch) for batch in sharded}) <= 4


def split(batch) -> list:
    """The parts of a sharded micro-batch."""
    halves = jax.tree.map(lambda leaf: np.split(leaf, batch.shards), batch)
    return [
        jax.tree.map(lambda leaf, i=i: leaf[i], halves, is_leaf=lambda leaf: isinstance(leaf, list))
        for i in range(batch.shards)
    ]


@pytest.mark.parametrize("packed", [False, True])
def test_an_empty_micro_batch_has_its_shape_and_no_token(packed):
    shape = BatchShape(2, 8, 3, 10, 1, 4, packed, 5)
    batch = shape.empty(3)
    assert shape_of(batch) == shape
    assert batch.shards == 3
    assert batch.num_tokens == batch.num_sequences == 0
    assert (batch.select == 15).all()
    assert (batch.place == (30 if packed else 20)).all()  # one past the places that are scored
    same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), batch, abstract_batch(shape, 3))
    assert all(jax.tree.leaves(same))


def test_a_row_that_begins_with_a_sampled_token_is_an_error():
    bad = TokenSequence((1, 2), (True, True), (-1.0, -1.0), 0, 1.0)
    with pytest.raises(ValueError, match="begins with a sampled token"):
        micro_batches([bad], MicroShapes(64, (8,), ()))


def test_a_too_long_row_or_prefix_is_an_error():
    with pytest.raises(ValueError, match="A row of 9 tokens exceeds the widest shape 8"):
        micro_batches([row(5, 9)], MicroShapes(64, (4, 8), ()))
    micro_batches([row(5, 9)], MicroShapes(64, (4, 8), (6,)))  # the prefix does not count
    with pytest.raises(ValueError, match="A prefix of 7 tokens exceeds the widest 6"):
        micro_batches([row(8, 12)], MicroShapes(64, (4, 8), (6,)))
