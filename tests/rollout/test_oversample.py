"""Groups beyond a step's: what is taken, what goes on in the next step, and under which weights it is sampled."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from orchestra_jax.engines.base import SamplingParams
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.engines.start import start_engine
from orchestra_jax.envs.quickstart.environment import QuickstartEpisode
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.io.stopwatch import Stopwatch
from orchestra_jax.money.budgets import Budget
from orchestra_jax.processes import Processes
from orchestra_jax.rl.batching import sequences
from orchestra_jax.rl.packing import policy_shapes
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.rollout.pausing import PausingEngine
from orchestra_jax.training.build import make_collector, make_policy, rollout_source
from orchestra_jax.types import ToolCall, ToolResult
from tests.engines.contract import Subject
from tests.engines.test_embedded import CONFIG, LENGTH, SETTINGS, weights
from tests.models.trees import drawn_params
from tests.rollout.test_exactness import canonical, parts, trained
from tests.rollout.test_stream import SECONDS, Rolls, Uneven, ends_without, indices, make
from tests.training.test_trainer import MICRO, config

OVERSAMPLE = ("rollout.lockstep=false", "rollout.max_staleness=1", "rollout.oversample=1")


async def test_a_step_ends_without_its_slowest_groups_and_the_next_goes_on_with_them():
    rolls = Rolls(1, 3)
    stream = make(rolls, max_staleness=1, ahead=2)
    assert await indices(stream, 0) == [0, 2, 4, 5]
    assert (rolls.started, stream.unfinished) == (list(range(6)), 2)
    rolls.slow = set()
    assert await indices(stream, 1) == [1, 3, 6, 7]  # before new tasks
    assert rolls.started == list(range(10))
    assert (rolls.cancelled, set(rolls.budgets.values())) == ([], {"step 0", "step 1"})
    await stream.stop()


@pytest.mark.parametrize("staleness", [1, 2])
async def test_a_group_goes_on_for_as_many_steps_as_its_tokens_may_be_old(staleness: int):
    rolls = Rolls(0)
    stream = make(rolls, max_staleness=staleness, ahead=1)
    used = [await indices(stream, version) for version in range(staleness)]
    used.append(await ends_without(rolls, stream, staleness, slow=0))
    assert used == [[4 * n + i + 1 for i in range(4)] for n in range(staleness)] + [
        [0, *range(4 * staleness + 1, 4 * staleness + 4)]
    ]
    assert rolls.started.count(0) == 1
    await stream.stop()


@pytest.mark.parametrize("staleness", [1, 3])
@pytest.mark.parametrize("ahead", [1, 4])
async def test_every_group_begins_once_is_trained_once_and_none_is_left_at_the_end(staleness: int, ahead: int):
    rolls, steps = Uneven(), 12
    stream = make(rolls, max_staleness=staleness, ahead=ahead)
    seen: list[int] = []
    for rolls.step in range(steps):
        async with asyncio.timeout(SECONDS):
            groups, restarted = await stream.take(rolls.step, Budget(), later=4 * (steps - 1 - rolls.step))
        found = [group[0].group for group in groups]
        assert restarted == 0
        assert all(rolls.step - dict(rolls.begun)[index] <= staleness for index in found)
        seen += found
    # What is paid for is trained, once.
    assert sorted(seen) == sorted(index for index, _ in rolls.begun) == list(range(4 * steps))


async def test_after_a_restart_what_was_under_way_begins_again_and_nothing_is_trained_twice():
    rolls = Rolls(1)
    stream = make(rolls, max_staleness=1, ahead=2)
    used = await indices(stream, 0)
    state = stream.get_state()
    await stream.stop()
    rolls = Rolls()
    again = make(rolls, max_staleness=1, ahead=2)
    again.set_state(state)
    used += [*await indices(again, 1), *await indices(again, 2)]
    assert rolls.started[:2] == [1, 5]  # neither was trained; 5 was whole
    assert sorted(used) == list(range(12))
    await again.stop()


async def test_a_turn_that_a_pause_ends_is_sampled_anew_under_the_next_weights_and_its_seed():
    first, second = weights(CONFIG)
    inner = EmbeddedEngine(CONFIG, first, SETTINGS)
    inner.lockstep = False
    engine = PausingEngine(inner)
    subject = Subject(inner, CONFIG, first, second, LENGTH)
    prompt, params = (3, 4, 5), SamplingParams(8, seed=1)
    session = engine.open_session()
    engine.go_on()
    before = await engine.generate(prompt, params, session=session)
    longer = (*prompt, *before.token_ids, 6, 7)
    watch = Stopwatch()
    turn = SamplingParams(40, seed=2)
    later = asyncio.ensure_future(watch.run(engine.generate(longer, turn, session=session)))
    while not any(request.sampled for request in inner._running.values()):  # noqa: ASYNC110
        await asyncio.sleep(0)
    given_up = watch.seconds
    await engine.pause()
    assert not inner._open  # the slots are free for others
    await inner.update_weights(second, 1)
    await asyncio.sleep(0.01)
    assert not inner._running
    assert watch.seconds < given_up  # it is no work
    engine.go_on()
    after = await later
    assert (before.weight_version, after.weight_version, after.version_spans) == (0, 1, ())
    subject.expect_learner([prompt], [before], params=first)
    subject.expect_learner([longer], [after], params=second)
    alone = EmbeddedEngine(CONFIG, second, SETTINGS)
    assert (await alone.generate(longer, turn)).token_ids == after.token_ids
    engine.close_session(session)
    assert not inner._open
    await alone.close()
    await engine.close()


def test_a_trajectory_continued_under_newer_weights_trains_every_token_once_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first turn calls a tool that answers only after the update; the second turn has the new weights."""
    calls = ("enumerate_calls=true", "loss.importance=tis", "loss.importance_level=sequence", "loss.importance_cap=9")
    keys = [f"algorithm.{key}" for key in (*calls, "advantage.centre=false", "tasks_per_step=2", "group_size=2")]
    cfg = config(tmp_path, *MICRO, *OVERSAMPLE, *keys)
    chat, environment = make_chat(cfg), make_environment(cfg)
    slow, answered = next(environment.train_tasks(2))[0].id, asyncio.Event()
    step = QuickstartEpisode.step

    async def slow_step(self: QuickstartEpisode, call: ToolCall) -> ToolResult:
        if self.task.id == slow:
            await answered.wait()
        return await step(self, call)

    monkeypatch.setattr(QuickstartEpisode, "step", slow_step)
    model, params = make_policy(cfg, chat)
    other = drawn_params(model, 7)
    with LoopThread() as loop:
        rest = {"tokenizer_size": 1, "directory": tmp_path, "loop": loop, "processes": Processes()}
        serving = start_engine(cfg.rollout, model, params, 1, **rest)
        rollouts = rollout_source(
            cfg.algorithm, cfg.rollout, cfg.seed, make_collector(cfg, environment, chat), serving.engine,
            environment.train_tasks(2), loop, steps=2,
        )  # fmt: skip
        first, counts = rollouts.take(0, 1, Budget())
        assert counts["groups/carried"] == 1
        loop.run(serving.engine.update_weights(other, 2))
        loop.call_soon(answered.set)
        second, counts = rollouts.take(1, 2, Budget())
        assert (counts["groups/carried"], counts["groups/restarted"], counts["staleness/max"]) == (0, 0, 1)
        loop.run(serving.close())
        loop.run(environment.close())
    names = [(t.task.id, t.member) for t in (*first, *second)]
    assert len(set(names)) == len(names) == 8
    versions = {
        name: [turn.weight_version for turn in t.turns] for name, t in zip(names, (*first, *second), strict=True)
    }
    assert [set(versions[slow, member]) for member in range(2)] == [{1, 2}] * 2
    assert versions[slow, 0][0] == 1
    shapes = policy_shapes(cfg.algorithm, cfg.model, cfg.rollout.limits.max_length, cfg.rollout.history)
    rows = [row for t in second for row in sequences(t, 0.5)]
    sampled = [((*row.tokens,), {n: p for n, p in enumerate(row.logprobs) if row.sampled[n]}) for row in rows]
    assert sum(len(loss) for _, loss in sampled) == sum(len(turn.sampled_ids) for t in second for turn in t.turns)
    from orchestra_jax.rl.packing import policy_batches

    found = [row for batch in policy_batches(rows, shapes) for part in parts(batch) for row in trained(part)]
    assert canonical(found) == canonical(sampled)
    scores = Subject(serving.engine, model, other, params, cfg.rollout.limits.max_length)
    carried = [t for t in second if t.task.id == slow]
    for t in carried:  # the turn after the call has the log-probs of the new weights
        (row,) = sequences(t, 0.5)
        after = len(t.turns[0].sampled_ids)
        expected = scores.learner_logprobs(other, [(row.tokens, row.sampled)], cfg.rollout.temperature)[0][after:]
        engine = [p for p, used in zip(row.logprobs, row.sampled, strict=True) if used][after:]
        np.testing.assert_allclose(engine, expected, atol=1e-3)
