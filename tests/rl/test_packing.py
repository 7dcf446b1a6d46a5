import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra_jax.models.attention.cudnn import max_segments, segment_table
from orchestra_jax.rl.batching import MicroBatch, MicroShapes, PackShapes, TokenSequence, bin_rows
from orchestra_jax.rl.distributed import shape_of
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.packing import micro_batches, pack, policy_batches, policy_shapes
from tests.models.trees import drawn_params
from tests.training.test_trainer import config

from .packed_rows import assert_trees_close, random_sequences, recording_sgd
from .trajectories import MODEL

CONFIG = MODEL.replace(num_layers=2)


@functools.cache
def weights(seed: int = 0) -> dict:
    return drawn_params(CONFIG, seed)


# --- the bin packer --------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(50, 80), st.integers(1, 6))
def test_every_sequence_lies_in_one_row_that_holds_it(lengths, row_length, most):
    rows = bin_rows(lengths, row_length, most)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    for row in rows:
        assert 1 <= len(row) <= most
        assert sum(lengths[i] for i in row) <= row_length


@pytest.mark.parametrize("seed", range(5))
def test_less_than_5_percent_of_the_tokens_are_padding(seed):
    """256 log-normal lengths (median 4k) of 500 to 24k tokens in rows of 32k."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(4000), 0.9, 256), 500, 24_000).astype(int).tolist()
    rows = bin_rows(lengths, 32_768, 64)
    assert sum(lengths) > 0.95 * len(rows) * 32_768
    shuffled = rng.permutation(lengths).tolist()
    assert len(bin_rows(shuffled, 32_768, 64)) == len(rows)
    assert bin_rows([3, 2, 5], 5, 2) == [[2], [0, 1]]  # the last token of a row is of use


table_of = jax.jit(segment_table, static_argnums=1)


def test_a_row_holds_no_more_than_cudnn_has_room_for(tmp_path):
    """40 short sequences fill less than a row, which more than 16 runs, padding among them, would make NaN."""
    sequences = [TokenSequence((1,) * 20, (False,) + (True,) * 19, (-1.0,) * 20, 0, 1.0)] * 40
    for overrides, fits in (
        (("model.dtype=bfloat16",), True),
        (("model.dtype=bfloat16", "model.attention=cudnn"), True),
        (("model.dtype=bfloat16", "model.attention=xla"), False),
        ((), False),  # cuDNN takes no fp32: nothing is given away
    ):
        cfg = config(
            tmp_path, "algorithm.packing=true", "algorithm.row_length=2048", "algorithm.micro_tokens=4096", *overrides
        )
        shapes = policy_shapes(cfg.algorithm, cfg.model, cfg.rollout.limits.max_length)
        batches = policy_batches(sequences, shapes)
        ids = np.concatenate([batch.segment_ids for batch in batches])
        assert table_of(ids, max_segments(2048))[2].all() == fits, overrides
        assert sum(batch.num_sequences for batch in batches) == 40


# --- packed micro-batches --------------------------------------------------------------------------------------------


def unpack(batch) -> list[TokenSequence]:
    """The sequences back out of one part, with only what the arrays hold."""
    found, tokens, length = [], batch.tokens.reshape(-1), batch.mask.shape[1]
    place, select = batch.place[0], batch.select[0]
    for b, row in enumerate(batch.segment_ids):
        for segment in range(1, row.max(initial=0) + 1):
            (where,) = np.nonzero(row == segment)
            assert (np.diff(where) == 1).all()
            np.testing.assert_array_equal(batch.positions[b, where], np.arange(len(where)))
            flat = b * len(row) + where
            chosen = np.isin(select, flat) & (place < batch.mask.size)
            (n,) = set((place[chosen] // length).tolist())
            # What is placed at token l of sequence n is predicted from the token before it.
            np.testing.assert_array_equal(select[chosen] - flat[0] + 1, place[chosen] % length)
            np.testing.assert_array_equal(np.sort(place[chosen] % length), np.flatnonzero(batch.mask[n]))
            sampled = tuple(bool(m) for m in batch.mask[n, : len(where)])
            logprobs = tuple(batch.rollout_logprobs[n, : len(where)].tolist())
            found.append((tuple(tokens[flat].tolist()), sampled, logprobs, float(batch.advantages[n])))
    return found


def plain(sequence: TokenSequence) -> tuple:
    logprobs = tuple(np.float32(sequence.logprobs).tolist())
    return sequence.tokens, sequence.sampled, logprobs, float(np.float32(sequence.advantage))


@given(st.integers(0, 99), st.integers(0, 30), st.integers(1, 3), st.integers(3, 6), st.permutations(range(30)))
def test_every_sequence_is_packed_once_with_its_very_ids(seed, count, rows, most, order):
    sequences = random_sequences(seed, count)
    shapes = PackShapes(24, rows, most, response_fractions=(0.3, 0.6))
    batches = pack([sequences[i] for i in order if i < count], shapes)
    assert sorted(found for batch in batches for found in unpack(batch)) == sorted(map(plain, sequences))
    for batch in batches:
        shape = shape_of(batch)
        assert (shape.rows, shape.length, shape.sequences, shape.sequence_length) == (rows, 24, most, 24)
        assert shape.selected in {int(rows * 24 * share) for share in (0.3, 0.6, 1.0)}
        padding = batch.segment_ids == 0
        assert (batch.tokens[padding] == 0).all()
        np.testing.assert_array_equal(batch.old_logprobs, batch.rollout_logprobs)
    assert len(batches) == len(pack(sequences, shapes))


def test_sharded_batches_hold_the_same_sequences():
    sequences = random_sequences(3, 21)
    for batch in (batches := policy_batches(sequences, PackShapes(24, 2, 5), shards=3)):
        assert batch.shards == 3
        assert batch.tokens.shape == (6, 24)
        assert batch.mask.shape == (15, 24)
    assert sum(batch.num_sequences for batch in batches) == 21
    assert sum(batch.num_tokens for batch in batches) == sum(sum(s.sampled) for s in sequences)


def test_what_does_not_fit_is_an_error():
    (long,) = [s for s in random_sequences(0, 40) if len(s.tokens) == 20][:1]
    with pytest.raises(ValueError, match="A sequence of 20 tokens exceeds the packed row of 19"):
        pack([*random_sequences(1, 3, 10), long], PackShapes(19))
    (full,) = pack([long] * 4, PackShapes(20, 4, 4))  # every row to its last token, and every place for a sequence
    assert (full.num_sequences, (full.segment_ids == 0).sum()) == (4, 0)
    with pytest.raises(
        ValueError, match=r"sequences >= rows >= 1, not PackShapes\(row_length=32, rows=4, sequences=3, "
    ):
        PackShapes(32, 4, 3)
    for empty in ({"row_length": 0}, {"rows": 0}, {"row_sequences": -1}):
        with pytest.raises(ValueError, match="PackShapes needs row_length >= 1"):
            PackShapes(**{"row_length": 32} | empty)
    bad = TokenSequence((1, 2), (True, True), (-1.0, -1.0), 0, 1.0)
    with pytest.raises(ValueError, match="begins with a sampled token"):
        pack([bad], PackShapes(19))


# --- packed and unpacked arithmetic ----------------------------------------------------------------------------------


@functools.cache
def scored(rows: int | None) -> list[MicroBatch]:
    """The sequences in micro-batches of so many packed rows, or unpacked, with the reference's log-probs."""
    learner = Learner(CONFIG, LearnerConfig(LossConfig(kl_coef=0.3), temperature=0.8, chunk=16), recording_sgd())
    batches = pack(SEQUENCES, PackShapes(26, rows, 4 * rows)) if rows else micro_batches(SEQUENCES, UNPACKED)
    return [learner.with_ref_logprobs(weights(1), batch) for batch in batches]


def gradient(learner: Learner, batches):
    state, metrics = learner.policy_step(learner.init(weights()), batches, kl_scale=0.7)
    return state.opt_state[0], metrics


UNPACKED = MicroShapes(240, (20,), ())
SEQUENCES = random_sequences(7, 11)


@pytest.mark.parametrize(
    ("loss", "aggregation", "rows"),
    [
        ("sequence", None, 6),
        ("gspo", None, 2),
        ("grpo", "token", 2),
        ("dr_grpo", "constant", 6),
    ],
)
def test_packed_and_unpacked_gradients_are_equal(loss, aggregation, rows):
    cfg = LossConfig(
        loss,
        clip_low=0.6,
        clip_high=3.0,
        kl_coef=0.3,
        kl="k3",
        aggregation=aggregation,
        constant=40.0,
        importance="tis",
    )
    learner = Learner(CONFIG, LearnerConfig(cfg, entropy_coef=0.05, temperature=0.8, chunk=16), recording_sgd())
    (one,), packed = scored(None), scored(rows)
    assert max(len(row) for batch in packed for row in map(np.unique, batch.segment_ids)) > 2  # several in one row
    assert len(packed) > 1 or rows == 6
    expected, metrics = gradient(learner, [one])
    found, packed_metrics = gradient(learner, packed)
    assert_trees_close(found, expected, rtol=1e-5)
    parts = metrics["policy_loss"] + 0.7 * 0.3 * metrics["kl_loss"] - 0.05 * metrics["entropy"]
    assert metrics["loss"] == pytest.approx(parts, rel=1e-5)
    for name in ("loss", "policy_loss", "kl_loss", "tokens", "sequences", "entropy", "mismatch_max", "grad_norm"):
        assert packed_metrics[name] == pytest.approx(metrics[name], rel=1e-5), name


@pytest.fixture
def compiled():
    """How often each program has been compiled, or found on disk, since the test began."""
    counts = Counter()

    def count(event: str, seconds: float, **said) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            counts[said["fun_name"].removeprefix("jit").strip("(_)")] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
    yield counts
    jax.monitoring.unregister_event_duration_listener(count)


def test_nothing_compiles_after_the_warm_up(compiled):
    learner = Learner(CONFIG, LearnerConfig(LossConfig(kl_coef=0.1)), recording_sgd())
    shapes = PackShapes(64, 2, 16, response_fractions=(0.75,))
    state, counts, sizes = learner.init(weights()), [], set()
    programs = (learner._policy, learner._apply, learner._logprobs, learner._ref_logprobs, learner._zeros)
    for step, longest in enumerate((20, 20, 64, 5, 40, 12)):
        sequences = random_sequences(step, 8 + 5 * step, longest)
        batches = [learner.with_old_logprobs(state.params, batch) for batch in pack(sequences, shapes)]
        batches = [learner.with_ref_logprobs(weights(1), batch) for batch in batches]
        state, _ = learner.policy_step(state, batches)
        sizes.add(len(batches))
        counts.append(dict(compiled))
        # Not == 1: jax keeps 8,192 signatures of all functions of a process, and a new one gets no place among them.
        assert all(function._cache_size() <= 1 for function in programs)
    assert counts == [counts[0]] * 6
    assert [counts[0][function.__name__] for function in programs] == [1] * 5
    assert len(sizes) > 1


def test_a_micro_batch_has_a_prompt_for_each_group_of_its_rows(tmp_path: Path):
    cfg = config(tmp_path)
    width = cfg.algorithm.row_widths[0]
    for size, alike, prompts in ((4, 1, 8), (8, 1, 8), (16, 1, 4), (8, 2, 16), (16, 4, 16)):
        given = replace(cfg.algorithm, group_size=size, micro_tokens=64 * 32, sequences_per_row=alike)
        shapes = policy_shapes(given, cfg.model, 128)
        assert shapes.sizes(width) == (64 * 32 // width, max(1, 64 * 32 // width * prompts // 64))
