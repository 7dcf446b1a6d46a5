"""The learner's log-probs on the disk are those that it scored, bit for bit, each with its token."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from orchestra_jax.config.algorithm import AlgorithmConfig, LossConfig
from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.evaluation.decoding import read_groups
from orchestra_jax.processes import Processes
from orchestra_jax.rl.batching import MicroBatch, MicroShapes, PackShapes, sequences
from orchestra_jax.rl.learner import Learner
from orchestra_jax.rl.packing import policy_batches, policy_shapes
from orchestra_jax.rl.setup import learner_config
from orchestra_jax.training.loggers.rollouts import RolloutFiles
from orchestra_jax.training.loggers.scored import _of_this_process, own_logprobs
from orchestra_jax.training.update import update
from orchestra_jax.types import Preference, Trajectory, Turn
from tests.rl.packed_rows import recorder
from tests.rl.trajectories import MODEL, task, trajectory, weights

TASK = task("task", "", Preference("", "", {}))


def forked(number: int) -> Trajectory:
    """Two turns in one sequence, and a fork with as many sampled ids and the same log-probs of the engine."""
    rng = np.random.default_rng(number)

    def turn(prompt: int) -> Turn:
        ids = tuple(rng.integers(1, 32, 4).tolist())
        return Turn((1, *range(2, 1 + prompt)), ids, (0.0,) * 4, 0, "stop")

    return trajectory(TASK, turn(3), turn(2), forks=[(turn(3), turn(4)), ()])


def told(batch: MicroBatch) -> MicroBatch:
    """As if the learner had found 1/3 of the id for each token, in whatever layout."""
    shape = batch.mask.shape if batch.row_of is None else batch.tokens.shape
    scores = np.zeros((batch.shards, shape[0] // batch.shards, shape[1]), np.float32)
    for part in range(batch.shards):
        flat, tokens = scores[part].reshape(-1), batch.tokens.reshape(batch.shards, -1)[part]
        carries = batch.place[part] < len(flat)
        flat[batch.place[part][carries]] = tokens[batch.select[part][carries] + 1] / np.float32(3)
    if batch.row_of is not None:
        scores = scores[np.arange(batch.shards)[:, None], batch.row_of.reshape(batch.shards, -1)]
    return dataclasses.replace(batch, old_logprobs=scores.reshape(batch.mask.shape) * batch.mask)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(("packed", "alike"), [(True, 1), (False, 1), (False, 3)])
def test_every_score_finds_its_token(shards: int, packed: bool, alike: int) -> None:
    made = [forked(n if alike == 1 else n % 2) for n in range(5)]
    rows = [row for n, one in enumerate(made) if n != 2 for row in sequences(one, 1.0, n)]  # 2 has no gradient
    shapes = PackShapes(32, 2, 6) if packed else MicroShapes(64, (16, 32), (4,), sequences_per_row=alike)
    batches = policy_batches(rows, shapes, shards)
    found = own_logprobs(made, [told(batch) for batch in batches])
    assert sorted(found) == [0, 1, 3, 4]
    for n, scores in found.items():
        ids = [[token for turn in turns for token in turn.sampled_ids] for turns in made[n].sequences]
        assert scores == tuple(tuple((np.array(own, np.float32) / np.float32(3)).tolist()) for own in ids)
    other = [*made[:3], forked(7), made[4]]  # no row is of its tokens: no page is worth a training that stops
    assert sorted(own_logprobs(other, [told(batch) for batch in batches])) == [0, 1, 4]


def test_what_the_update_scored_is_kept_to_the_bit(tmp_path) -> None:
    made = [dataclasses.replace(forked(n), group=n // 2, member=n % 2) for n in range(4)]
    advantages = np.array([1.0, -1.0, 0.0, 0.5], np.float32)
    algorithm = AlgorithmConfig(
        loss=LossConfig(loss="sequence", kl_coef=0.0), tasks_per_step=2, group_size=2, minibatches=2, packing=True,
        micro_tokens=64, response_fractions=[],
    )  # fmt: skip
    cfg = RunConfig(
        algorithm=algorithm, rollout=RolloutConfig(limits=RolloutLimits(max_turns=2, max_length=32, max_new_tokens=4))
    )
    learner = Learner(MODEL, learner_config(cfg.algorithm, cfg.rollout, MODEL), recorder())
    shapes = policy_shapes(cfg.algorithm, cfg.model, cfg.rollout.limits.max_length)
    take_step = functools.partial(update, cfg.algorithm, shapes)
    scored: list[MicroBatch] = []
    take_step(learner, learner.init(weights()), made, advantages, scored=scored)
    found = own_logprobs(made, scored)
    assert sorted(found) == [0, 1, 3]
    want = {}
    for batch in scored:
        again = np.asarray(learner.with_old_logprobs(weights(), batch).old_logprobs)
        for n, number in enumerate(np.asarray(batch.trajectory)):
            want.setdefault(int(number), []).append(again[n][np.asarray(batch.mask)[n] > 0].tolist())
    for number, scores in found.items():
        assert sorted(map(list, scores[:2])) == sorted(own for own in want[number] if own)

    files = RolloutFiles(tmp_path, 1, Processes())
    two = np.zeros((2, 2))
    files.add(1, made, two, two, np.ones(2, bool), found)
    files.add(2, made, two, two, np.ones(2, bool))
    files.close()
    first, second, *unscored = read_groups(tmp_path / "rollouts")
    assert first.learner == (found[0], found[1])
    assert second.learner == (None, found[3])
    assert [group.learner for group in unscored] == [(), ()]


def test_one_update_of_a_batch_scores_nothing_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = RunConfig(algorithm=AlgorithmConfig(loss=LossConfig(loss="sequence"), tasks_per_step=1, group_size=2))
    monkeypatch.setattr(Learner, "with_old_logprobs", lambda *args, **options: pytest.fail("scored"))
    monkeypatch.setattr(
        Learner, "policy_step", lambda self, state, *args, **options: (state, {"kl_ref": 0.0, "grad_norm": 0.0})
    )
    learner, scored = Learner(MODEL, learner_config(cfg.algorithm, cfg.rollout, MODEL), recorder()), list[MicroBatch]()
    with jax.transfer_guard("allow"):
        update(
            cfg.algorithm,
            policy_shapes(cfg.algorithm, cfg.model, cfg.rollout.limits.max_length),
            learner,
            learner.init(weights()),
            [forked(0), forked(1)],
            np.array([1.0, -1.0], np.float32),
            scored=scored,
        )
    assert scored == []


def test_rows_over_a_mesh_come_back_once_and_in_order() -> None:
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"))  # a row's shard is on both devices of `tensor`
    rows = np.arange(24).reshape(8, 3)
    placed = jax.device_put(rows, NamedSharding(mesh, PartitionSpec("fsdp")))
    assert (_of_this_process(placed) == rows).all()
