"""Sequences that begin alike are run once where they do, and give the very gradients that they give alone."""

import itertools
import threading
from collections import defaultdict
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra_jax.config.choices import History
from orchestra_jax.rl.batching import MicroShapes, PackShapes, TokenSequence
from orchestra_jax.rl.distributed import agree_on_batches, multihost_utils, shape_of, stack_parts
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.packing import micro_batches, pack, policy_shapes
from orchestra_jax.rl.shared import pack_shared
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
    sequences = forked(seed)
    batches = pack(sequences, PackShapes(length, rows, most * rows, row_sequences=most, shared=True))
    found, sampled, run = zip(*map(taken_out, batches), strict=True)
    assert sorted(itertools.chain(*found)) == sorted(sequence.tokens for sequence in sequences)
    wanted = [
        tuple((t, float(np.float32(p))) for t, s, p in zip(q.tokens, q.sampled, q.logprobs, strict=True) if s)
        for q in sequences
    ]
    assert sorted(itertools.chain(*sampled)) == sorted(wanted)
    assert sum(run) <= sum(len(sequence.tokens) for sequence in sequences)
    assert {shape_of(batch).pieces for batch in batches} <= {4, 16}


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


def test_prompts_that_only_have_a_system_message_in_common_stay_apart():
    row = (False,) * 6 + (True,) * 2, (0.0,) * 8, 5, 1.0
    strangers = [TokenSequence((1, 2, *range(first, first + 6)), *row) for first in (3, 12)]
    (apart,) = pack(strangers, PackShapes(40, 1, 4, shared=True))
    assert taken_out(apart)[2] == 16


@pytest.mark.parametrize("loss", ["sequence", "grpo", "gspo"])
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
            found[name] = agree_on_batches(of_pieces(*pieces), 1)

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
    assert [sum(batch.num_tokens for batch in found[name]) for name in ("0", "1")] == [2, 3]
