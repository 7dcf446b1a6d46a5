"""Sequences that begin alike are run once where they do, and give the very gradients that they give alone."""

import itertools
import threading
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra_jax.config.choices import History
from orchestra_jax.rl.batching import MicroShapes, PackShapes, TokenSequence, select_size
from orchestra_jax.rl.distributed import agree_on_batches, multihost_utils, process_shards, shape_of, stack_parts
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.packing import micro_batches, pack, policy_shapes
from orchestra_jax.rl.shared import families, pack_shared
from tests.training.test_trainer import config

from .packed_rows import VOCAB, assert_trees_close, recording_sgd
from .test_packing import CONFIG, gradient

SHAPES = PackShapes(64, 2, 32, shared=True)


def forked(seed: int, groups: int = 2, members: int = 3, turns: int = 4) -> list[TokenSequence]:
    """Sequences of trajectories that drop what they thought: every turn sees calls and results of those before it."""
    rng = np.random.default_rng(seed)

    def ids(most: int) -> list[int]:
        return rng.integers(1, VOCAB, int(rng.integers(1, most + 1))).tolist()

    found, number = list[TokenSequence](), 0
    for _ in range(groups):
        prompt = ids(8)
        for _ in range(members):
            context, advantage = list(prompt), float(rng.normal())
            for _ in range(int(rng.integers(1, turns + 1))):
                thought, call = ids(6), ids(4)
                sampled = [*thought, *call]
                logprobs = rng.normal(-3.3, 0.3, len(sampled)).tolist()
                row = (*context, *sampled), (False,) * len(context) + (True,) * len(sampled)
                behaviour = (*[0.0] * len(context), *logprobs)
                found.append(TokenSequence(*row, behaviour, len(context) - 1, advantage, number, 1.0))
                context += [*call, *ids(4)]
            number += 1
    return found


def taken_out(batch):
    """The sequences, their sampled ids with log-probs, and the number of tokens that are run, out of the arrays."""
    found, run, sampled = [], 0, defaultdict(list)
    length, longest = batch.tokens.shape[1], batch.mask.shape[1]
    for select, place in zip(batch.select[0], batch.place[0], strict=True):
        if place < batch.mask.size:
            n, at = divmod(int(place), longest)
            sampled[n].append((int(batch.tokens.reshape(-1)[select + 1]), float(batch.rollout_logprobs[n, at])))
    assert batch.mask.sum() == sum(map(len, sampled.values()))
    for b in range(len(batch.tokens)):
        source, ids = (x[b].reshape(-1, length) for x in (batch.source, batch.segment_ids))
        given = [place for place in source[ids > 0].tolist() if place >= 0]
        assert len(set(given)) == len(given)  # each token is given by one place
        run += len(given)
        for piece, segments in zip(source, ids, strict=True):
            for segment in range(1, segments.max() + 1):
                places = piece[segments == segment]
                index = np.where(places < 0, ~places, places)
                np.testing.assert_array_equal(batch.positions[b, index], np.arange(len(index)))
                found.append(tuple(batch.tokens[b, index].tolist()))
    return found, [tuple(values) for values in sampled.values()], run


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(1, 3), st.integers(40, 70), st.integers(2, 12))
def test_every_sequence_is_there_once_and_is_predicted_by_its_own_tokens(seed, rows, length, most):
    sequences = [replace(sequence, share=1 / (2 + n)) for n, sequence in enumerate(forked(seed))]
    # The most of a row are those that attention has room for, or those that the arrays have.
    given = (2 * most * rows, most) if seed % 2 else (most * rows, None)
    batches = pack(sequences, PackShapes(length, rows, given[0], row_sequences=given[1], shared=True))
    found, sampled, run = zip(*map(taken_out, batches), strict=True)
    assert sorted(itertools.chain(*found)) == sorted(sequence.tokens for sequence in sequences)
    wanted = [
        tuple((t, float(np.float32(p))) for t, s, p in zip(q.tokens, q.sampled, q.logprobs, strict=True) if s)
        for q in sequences
    ]
    assert sorted(itertools.chain(*sampled)) == sorted(wanted)
    assert sum(run) <= sum(len(sequence.tokens) for sequence in sequences)
    assert {shape_of(batch).pieces for batch in batches} <= {4, 16}
    by_share = {np.float32(sequence.share): sequence for sequence in sequences}
    for batch, its_run in zip(batches, run, strict=True):
        there = np.flatnonzero(batch.mask.any(1))
        its = [by_share[share] for share in batch.share[there]]
        assert batch.trajectory[there].tolist() == [sequence.trajectory for sequence in its]
        np.testing.assert_array_equal(batch.advantages[there], np.float32([sequence.advantage for sequence in its]))
        np.testing.assert_array_equal(batch.mask[there].sum(1), [sum(sequence.sampled) for sequence in its])
        np.testing.assert_array_equal(batch.old_logprobs, batch.rollout_logprobs)
        assert batch.select.shape[1] == select_size(int(batch.mask.sum()), batch.tokens.size, (0.5,))
        assert batch.repeated.sum() == sum(len(sequence.tokens) for sequence in its) - its_run
        in_pieces = batch.segment_ids.reshape(len(batch.tokens), -1, batch.tokens.shape[1]).max(axis=2)
        assert in_pieces.sum(axis=1).max() <= most


def test_what_begins_alike_is_run_once():
    sequences = forked(3, groups=1, members=2, turns=4)
    assert len(sequences) > 4
    (batch,) = pack(sequences, PackShapes(200, 1, 32, shared=True))
    beginnings = {sequence.tokens[: n + 1] for sequence in sequences for n in range(len(sequence.tokens))}
    # A token for each node of the tree of beginnings, and one that is repeated for each sequence but the first.
    _, _, run = taken_out(batch)
    assert len(beginnings) <= run <= len(beginnings) + len(sequences) - 1
    assert run < 0.8 * sum(len(sequence.tokens) for sequence in sequences)


def test_rollouts_that_say_the_same_leave_room_for_the_log_probs_of_each():
    same = [TokenSequence((*range(1, 21),), (False,) * 4 + (True,) * 16, (-1.0,) * 20, 3, 1.0, n) for n in range(8)]
    batches = pack(same, PackShapes(32, 2, 64, row_sequences=32, shared=True))
    _, sampled, _ = zip(*map(taken_out, batches), strict=True)
    assert sorted(map(len, itertools.chain(*sampled))) == [16] * 8


def test_a_row_has_room_for_the_log_probs_of_all_its_families():
    """Two pairs of rollouts that say the same: 21 tokens and 32 log-probs each."""
    pairs = [
        TokenSequence((*range(n, n + 20),), (False,) * 4 + (True,) * 16, (-1.0,) * 20, 3, 1.0) for n in (1, 1, 9, 9)
    ]
    _, sampled, _ = zip(*map(taken_out, pack(pairs, PackShapes(48, 1, 8, shared=True))), strict=True)
    assert sorted(map(len, itertools.chain(*sampled))) == [16] * 4


def test_short_families_are_no_more_than_a_row_has_sequences_for():
    """A sequence takes a twelfth of a row, 3.3 tokens: eleven of 3 tokens and a pair of 6 do not go into one of 40."""
    rows = [*((n, n, n) for n in range(1, 12)), (20, 20, 20, 21), (20, 20, 20, 22)]
    short = [TokenSequence(row, (False, *[True] * (len(row) - 1)), (-1.0,) * len(row), 0, 1.0) for row in rows]
    batches = pack(short, PackShapes(40, 1, 12, shared=True))
    assert sum(batch.num_sequences for batch in batches) == 13


def test_families_by_hand():
    """A sequence repeats the last token that it has in common; a family may be as long as a row."""
    rows = ((1, 2, 3, 4, 7, 8), (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6), (9, 9, 9))
    made = [TokenSequence(row, (False,) * 2 + (True,) * (len(row) - 2), (-1.0,) * len(row), 1, 1.0) for row in rows]
    one, other = [(1, 0), (2, 5), (0, 3)], [(3, 0)]
    for longest, most, wanted in (
        (12, 3, [(one, 10, 12), (other, 3, 1)]),
        (11, 3, [(one[:2], 7, 8), ([(0, 0)], 6, 4), (other, 3, 1)]),  # no room for 12 log-probs
        (12, 2, [(one[:2], 7, 8), ([(0, 0)], 6, 4), (other, 3, 1)]),
    ):
        assert [(found.members, found.length, found.sampled) for found in families(made, longest, most)] == wanted


def test_prompts_that_only_have_a_system_message_in_common_stay_apart():
    row = (False,) * 6 + (True,) * 2, (0.0,) * 8, 5, 1.0
    strangers = [TokenSequence((1, 2, *range(first, first + 6)), *row) for first in (3, 12)]
    (apart,) = pack(strangers, PackShapes(40, 1, 4, shared=True))
    assert taken_out(apart)[2] == 16


@pytest.mark.parametrize("loss", ["sequence", "grpo"])
def test_gradients_are_those_of_sequences_alone(loss):
    cfg = LossConfig(loss, clip_low=0.6, clip_high=3.0, kl_coef=0.3, kl="k3", aggregation="token", importance="tis")
    learner = Learner(CONFIG, LearnerConfig(cfg, entropy_coef=0.05, temperature=0.8, chunk=16), recording_sgd())
    sequences = forked(5)
    alone = micro_batches(sequences, MicroShapes(4096, (64,), ()))
    shared = pack(sequences, SHAPES)
    assert any(((batch.source < 0) & (batch.segment_ids > 0)).sum() > 20 for batch in shared)
    expected, metrics = gradient(learner, alone)
    found, shared_metrics = gradient(learner, shared)
    assert_trees_close(found, expected, rtol=1e-5)
    for name in ("loss", "policy_loss", "kl_loss", "tokens", "sequences", "entropy", "mismatch_max", "grad_norm"):
        assert shared_metrics[name] == pytest.approx(metrics[name], rel=1e-5, abs=1e-7), name  # fp32 sums near 0


def test_packed_rows_share_where_histories_fork(tmp_path):
    cfg = config(tmp_path, "algorithm.packing=true").algorithm, config(tmp_path).model, 64
    assert policy_shapes(*cfg, History.drop_thinking).shared
    assert not policy_shapes(*cfg, History.keep).shared
    assert not policy_shapes(replace(cfg[0], share_prefix=False), *cfg[1:], History.drop_thinking).shared


def of_pieces(*counts: int) -> list:
    """A part of each number of pieces, with a sequence in its first piece."""
    row = TokenSequence((1, 2, 3), (False, False, True), (0.0, 0.0, -1.0), 1, 1.0)
    (part,) = pack_shared([row], PackShapes(8, 1, 4, shared=True))
    assert shape_of(part).pieces == 4

    def widened(count: int):
        more = ((0, 0), (0, (count - 4) * 8))
        source = np.pad(part.source, more, constant_values=-1)
        return replace(part, segment_ids=np.pad(part.segment_ids, more), source=source)

    return [widened(count) for count in counts]


def test_parts_of_few_pieces_fill_up_a_micro_batch_of_parts_with_many():
    stacked = stack_parts(of_pieces(4, 16, 4, 16, 4), shards=4)
    assert [(shape_of(batch).pieces, int((batch.mask.sum(1) > 0).sum())) for batch in stacked] == [(16, 4), (4, 1)]
    (alone,) = of_pieces(16)
    for field in ("segment_ids", "source", "tokens", "select", "place"):
        np.testing.assert_array_equal(getattr(stacked[0], field), np.concatenate([getattr(alone, field)] * 4))


def test_processes_whose_rows_have_other_numbers_of_pieces_run_them_together(monkeypatch):
    meeting, brought, found = threading.Barrier(2, timeout=60), {}, {}

    def gathered(value):
        brought[threading.current_thread().name] = value
        meeting.wait()
        everyone = np.stack([brought["0"], brought["1"]])
        meeting.wait()
        return everyone

    def process(name: str, pieces: tuple[int, ...]) -> threading.Thread:
        def run() -> None:
            found[name] = agree_on_batches([stack_parts([part] * 2, 2)[0] for part in of_pieces(*pieces)], 2)

        return threading.Thread(target=run, name=name)

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", gathered)
    threads = [process("0", (4, 16)), process("1", (4, 4, 4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shapes = {name: [shape_of(batch) for batch in batches] for name, batches in found.items()}
    assert shapes["0"] == shapes["1"]
    assert [shape.pieces for shape in shapes["0"]] == [16, 4, 4]
    assert [[batch.shards for batch in found[name]] for name in ("0", "1")] == [[2] * 3] * 2
    assert [sum(batch.num_tokens for batch in found[name]) for name in ("0", "1")] == [4, 6]


def test_a_part_with_most_scored_tokens_is_stacked_with_one_of_most_pieces():
    few, many = of_pieces(4, 16)
    more = ((0, 0), (0, few.select.shape[1]))
    end = few.tokens.size - 1
    few = replace(few, select=np.pad(few.select, more, constant_values=end), place=np.pad(few.place, more, mode="edge"))
    (stacked,) = stack_parts([few, many], shards=2)
    assert (shape_of(stacked).pieces, shape_of(stacked).selected) == (16, shape_of(few).selected)
    np.testing.assert_array_equal(stacked.select[1], few.select[0])  # the part of most pieces comes first
    np.testing.assert_array_equal(stacked.place[1], few.place[0])
    np.testing.assert_array_equal(stacked.select[0, : many.select.shape[1]], many.select[0])


class Device(NamedTuple):
    id: int
    process_index: int


def of_processes(*owners: int) -> Any:
    """A sharding of two batch shards over four devices of these processes."""
    held = {Device(n, owner): (slice(n // 2, n // 2 + 1),) for n, owner in enumerate(owners)}
    return SimpleNamespace(batch_shards=2, batch=SimpleNamespace(devices_indices_map=lambda shape: held))


def test_a_process_feeds_the_batch_shards_of_its_own_devices():
    assert process_shards(of_processes(0, 0, 0, 0)) == 2
    assert process_shards(of_processes(0, 0, 1, 1)) == 1
    assert process_shards(of_processes(7, 7, 7, 7)) == 2  # devices that are not there: a planner's
    with pytest.raises(ValueError, match="A batch shard spans two processes"):
        process_shards(of_processes(0, 1, 1, 1))
