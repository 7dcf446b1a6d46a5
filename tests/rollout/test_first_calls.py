"""First calls that take turns: every tool in its share, and log-probs that give the gradient of the expected reward."""

import math
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.algorithm import AdvantageConfig, AlgorithmConfig
from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.config.schema import ModelConfig
from orchestra_jax.rl.batching import TokenSequence, sequences
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.packing import micro_batches, policy_batches, policy_shapes
from orchestra_jax.rollout.first_calls import first_call_speaker
from orchestra_jax.types import Status
from tests.rl.packed_rows import assert_trees_close, recorder
from tests.rl.test_learner import FULL, naive_scores, padded
from tests.rl.trajectories import MODEL, weights
from tests.rollout.scripted import ANSWER, LIMITS, TASK, TOOLS, make, roll

END = replace(TOOLS[-1], terminal=True)
CALLED = TOOLS[:-1]


WEIGHTED = LossConfig("sequence", importance="tis", importance_level="sequence", importance_cap=64)
EVERY = AlgorithmConfig(enumerate_calls=True, loss=WEIGHTED, advantage=AdvantageConfig(centre=False))


async def group(words, size, seed=0, tools=(*CALLED, END), limits=LIMITS):
    collector, _, _ = make(words, limits=limits)
    speaker = first_call_speaker(replace(EVERY, group_size=size))
    task = replace(TASK, tools=tools)
    return await roll(collector, lambda _, turn: ANSWER, [task], group_size=size, speaker=speaker, seed=(seed,))


@pytest.mark.parametrize("size", [3, 10])
async def test_every_tool_is_called_first_and_the_log_probs_are_its_share(words, size):
    found, engine = await group(words, size)
    first = [trajectory.turns[0] for trajectory in found]
    counts = Counter(turn.calls[0].name for turn in first)
    assert counts.keys() == {spec.name for spec in CALLED}  # what ends a task is no first call
    assert max(counts.values()) - min(counts.values()) <= 1
    for turn in first:
        share = counts[turn.calls[0].name] / size
        assert turn.logprobs == (math.log(share), *[0.0] * (len(turn.sampled_ids) - 1))
        assert turn.weight_version == 5  # the engine's
    for session, trajectory in enumerate(found):
        read, *later = engine.log[session]
        assert len(read[1]) == 1  # the engine read the prompt, and one token was given up
        assert later[0][0] == (*read[0], *first[session].sampled_ids, *trajectory.turns[1].prompt_ids)
        assert trajectory.status is Status.COMPLETED or trajectory.turns[0].calls[0].name == "broken"


async def test_a_group_smaller_than_the_menu_draws_each_tool_alike(words):
    counts, draws = Counter[str](), 200
    for seed in range(draws):
        found, _ = await group(words, 2, seed)
        names = {trajectory.turns[0].calls[0].name for trajectory in found}
        assert len(names) == 2
        counts.update(names)
        assert all(math.exp(t.turns[0].logprobs[0]) == pytest.approx(1 / len(CALLED)) for t in found)
    expected, spread = draws * 2 / 3, math.sqrt(draws * 2) / 3
    assert all(abs(counts[spec.name] - expected) < 4 * spread for spec in CALLED), counts


async def test_a_menu_of_ends_alone_is_left_to_the_policy(words):
    found, _ = await group(words, 2, tools=(END,))
    assert [trajectory.status for trajectory in found] == [Status.COMPLETED] * 2


async def test_a_call_that_the_context_has_no_room_for_is_cut_off_there(words):
    """The update has no shape for a longer row: with a KL or an entropy bonus the run would end."""
    found, _ = await group(words, 3)
    prompt, call = found[0].turns[0].prompt_ids, found[0].turns[0].sampled_ids
    limits = replace(LIMITS, max_length=len(prompt) + 3)
    found, _ = await group(words, 3, limits=limits)
    shapes = policy_shapes(replace(EVERY, packing=True), ModelConfig(), limits.max_length)
    for trajectory in found:
        assert policy_batches(sequences(trajectory, 1.0), shapes)
        (turn,) = trajectory.turns
        assert (trajectory.status, turn.finish_reason) == (Status.NO_ANSWER, "length")
        assert len(turn.prompt_ids) + len(turn.sampled_ids) == limits.max_length
        assert turn.logprobs == (math.log(1 / 3), 0.0, 0.0)
    assert found[0].turns[0].sampled_ids == call[:3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": replace(WEIGHTED, importance="none")},
        {"loss": replace(WEIGHTED, importance_level="token")},
        {"group_size": 65},
        {"advantage": AdvantageConfig()},
    ],
)
def test_a_loss_that_does_not_weigh_the_draw_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"enumerate_calls=true needs .*: set them, or enumerate_calls=false\."):
        first_call_speaker(replace(EVERY, **wrong))


def test_the_loss_then_has_the_gradient_of_the_expected_reward():
    rng = np.random.default_rng(3)
    prompt, count, length = (5, 9), 6, 3
    answers = [tuple(map(int, rng.integers(1, 32, length))) for _ in range(count)]
    rewards = rng.normal(size=count)
    sampled = (False,) * len(prompt) + (True,) * length
    drawn = (*[0.0] * len(prompt), math.log(1 / count), *[0.0] * (length - 1))
    rows = [
        TokenSequence((*prompt, *answer), sampled, drawn, len(prompt) - 1, float(reward))
        for answer, reward in zip(answers, rewards, strict=True)
    ]
    loss = replace(WEIGHTED, importance_cap=1e6)
    made = Learner(MODEL, LearnerConfig(loss, own_old=True), recorder())
    state, _ = made.policy_step(made.init(weights()), micro_batches(rows, FULL))
    tokens, mask = padded(rows)

    def expected(params):
        probability = jnp.exp(naive_scores(params, tokens, mask)[0].sum(axis=1))[:count]
        return -(probability * rewards).sum() * count / (count * length)

    assert_trees_close(state.opt_state, jax.grad(expected)(weights()))
