"""Trajectories: every way to end, the ledger, and engines that are left clean. Exact tokens: `test_exactness`."""

import asyncio
import math
from dataclasses import replace

import pytest

from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits
from orchestra_jax.engines.base import Generation
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.envs.base import initial_messages
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.rl.batching import sequences
from orchestra_jax.types import Status, ToolCall
from tests.rollout.scripted import (
    ANSWER,
    HANG,
    LIMITS,
    SECONDS,
    TASK,
    TOOLS,
    FakeEngine,
    call,
    exact,
    make,
    roll,
    says,
)

# --- endings ---


@pytest.mark.parametrize(
    ("turns", "status", "reason"),
    [
        ((ANSWER,), Status.COMPLETED, ""),
        (("green",), Status.COMPLETED, ""),
        ((call("echo"), "<tool_call>\n{}\n</tool_call>"), Status.MALFORMED, "not a valid call"),
        ((call("echo")[:-12],), Status.MALFORMED, "closing </tool_call> is missing"),
        (("",), Status.NO_ANSWER, "final answer is empty"),
        (("<think> hm",), Status.NO_ANSWER, "final answer is empty"),
        ((call("echo"),) * 2 + (call("echo") * 2,), Status.NO_ANSWER, "more than 3 tool calls"),
        ((call("nothing"),) * 4, Status.NO_ANSWER, "more than 3 tool calls"),
        ((call("echo"), call("echo"), call("echo"), ANSWER), Status.COMPLETED, ""),
    ],
)
async def test_how_a_trajectory_ends(words, turns, status, reason):
    collector, world, _ = make(words)
    (trajectory,), engine = await roll(collector, says(*turns))
    assert trajectory.status is status
    assert reason in trajectory.reason
    assert bool(reason) == bool(trajectory.reason)
    assert trajectory.solved is (turns[-1] == ANSWER)
    assert trajectory.answer == (turns[-1] if status is Status.COMPLETED else None)
    assert world.scored == ([turns[-1]] if status is Status.COMPLETED else [])
    exact(trajectory, engine.log[0])


async def test_a_turn_that_is_cut_off_is_malformed_and_not_executed(words):
    collector, world, chat = make(words)
    for text in (ANSWER, call("echo")):
        (trajectory,), engine = await roll(collector, says(chat.encode(text)))
        assert (trajectory.status, trajectory.reason) == (Status.MALFORMED, "the output was cut off")
        exact(trajectory, engine.log[0])
    assert world.calls == world.scored == []


async def test_the_call_limit_counts_whole_turns_and_executes_none_of_the_last(words):
    collector, world, _ = make(words)
    (trajectory,), _ = await roll(collector, says(call("echo") * 2))
    assert (len(world.calls), trajectory.tool_names) == (2, ["echo", "echo"])


@pytest.mark.parametrize("history", ["keep", "strip_thinking"])
async def test_the_turn_limit(words, history):
    collector, world, _ = make(words, history=history, limits=replace(LIMITS, max_calls=50))
    (trajectory,), engine = await roll(collector, says("<think>hm</think>" + call("echo")))
    assert (trajectory.status, trajectory.reason) == (Status.NO_ANSWER, "no answer within 4 turns")
    # What is called on the last turn could not be used: it is neither made nor paid.
    assert (len(trajectory.turns), len(world.calls), len(trajectory.calls)) == (4, 3, 3)
    assert all(trajectory.sequences)  # the fork that nothing was sampled from is no sequence
    exact(trajectory, engine.log[0])


async def test_the_context_limit(words):
    _, _, chat = make(words)
    prompt = len(chat.prompt_ids(initial_messages(TASK), TOOLS))
    turn = len(chat.encode(call("echo"))) + 1 + len(chat.observation_ids(["hello"]))
    for limit, turns in ((prompt, 0), (prompt + 1, 1), (prompt + turn, 1), (prompt + turn + 1, 2)):
        collector, _, _ = make(words, limits=replace(LIMITS, max_length=limit))
        (trajectory,), engine = await roll(collector, says(call("echo"), ANSWER))
        assert len(trajectory.turns) == turns
        assert all(len(row.tokens) <= limit for row in sequences(trajectory, 1.0))
        exact(trajectory, engine.log[0])
        if turns < 2 or len(trajectory.turns[1].sampled_ids) == 1:
            assert trajectory.status is Status.NO_ANSWER
            assert trajectory.reason == f"the context limit of {limit} tokens was reached"


# --- tools ---


async def test_a_tools_error_text_is_an_observation_and_counts(words):
    collector, _, chat = make(words)
    (trajectory,), _ = await roll(collector, says(call("echo", "error"), call("nothing"), ANSWER))
    assert trajectory.solved
    assert (trajectory.tool_names, trajectory.refused) == (["echo"], 1)
    assert [turn.results[0].is_error for turn in trajectory.turns[:2]] == [True, True]
    assert trajectory.turns[1].prompt_ids == chat.observation_ids(["x is an error"])


async def test_calls_of_a_turn_run_side_by_side_and_keep_their_order(words):
    collector, world, chat = make(words)
    (trajectory,), _ = await roll(collector, says(call("echo", "slow") + call("echo", "b") + call("model"), ANSWER))
    assert world.calls == ["b", "slow"]
    assert [result.text for result in trajectory.turns[0].results] == ["slow", "b", "green"]
    assert trajectory.tool_names == ["echo", "echo", "model"]
    assert trajectory.turns[1].prompt_ids == chat.observation_ids(["slow", "b", "green"])


async def test_the_ledger_holds_every_call_and_nothing_else(words):
    collector, _, _ = make(words)
    (trajectory,), engine = await roll(collector, says(call("echo") + call("model"), call("nothing"), ANSWER))
    own = [row for row in trajectory.ledger if row.role == "orchestrator"]
    log = engine.log[0]
    assert [row.prompt_tokens for row in own] == [len(prompt) for prompt, _, _ in log]
    assert [row.completion_tokens for row in own] == [len(sampled) for _, sampled, _ in log]
    # A turn reads anew what was appended since the last sampled id.
    assert [row.cached_tokens for row in own] == [0, *(len(prompt) + len(sampled) for prompt, sampled, _ in log[:-1])]
    assert {row.price_list for row in own} == {"test-1"}
    for row in own:
        fresh = row.prompt_tokens - row.cached_tokens
        dollars = (fresh * 1.0 + row.cached_tokens * 0.1 + row.completion_tokens * 10.0) / 1e6
        assert math.isclose(row.cost_usd, dollars)
        assert row.seconds == 0.5 * row.completion_tokens
    names = [(row.name, row.role) for row in trajectory.ledger]
    assert names == [
        ("orchestrator", "orchestrator"), ("echo", "tool"), ("model", "tool"), ("model", "judge"),
        ("orchestrator", "orchestrator"), ("orchestrator", "orchestrator"),
    ]  # fmt: skip
    # The judge is kept apart; a refused call costs nothing.
    assert math.isclose(trajectory.cost_usd, sum(row.cost_usd for row in own) + 0.25 + 0.5)
    assert math.isclose(trajectory.latency_s, sum(row.seconds for row in own) + 3.0)  # echo, and model beside it


async def test_measured_seconds_and_forks_in_the_ledger(words):
    collector, _, _ = make(words, history="strip_thinking", seconds=None)
    (trajectory,), engine = await roll(collector, says("<think>hm</think>" + call("echo"), ANSWER))
    first, _, second = trajectory.ledger
    assert len(trajectory.sequences) == 2
    assert second.cached_tokens == 0
    assert second.prompt_tokens == len(engine.log[0][1][0])
    assert 0 < first.seconds < 5


# --- infrastructure ---


async def test_a_tool_that_fails_is_tried_again_alone(words):
    collector, world, _ = make(words)
    world.failures = 2
    (trajectory,), engine = await roll(collector, says(call("broken"), ANSWER))
    assert trajectory.solved
    assert world.failures == 0
    assert len(engine.log) == 1  # sessions
    assert len(set(engine.seeds)) == len(engine.seeds) == 2
    assert world.episodes == 1 + 1  # one renders the prompt
    assert len(trajectory.turns) == 2
    exact(trajectory, engine.log[0])
    own = [row for row in trajectory.ledger if row.role == "orchestrator"]
    assert len(own) == 2  # the failed attempts are no part of it


async def test_a_failure_that_stays_is_never_scored(words):
    collector, world, _ = make(words)
    world.failures = 100
    (trajectory,), engine = await roll(collector, says(call("broken"), ANSWER))
    assert (trajectory.status, trajectory.reason) == (Status.FAILED, "the server is away")
    assert (trajectory.solved, trajectory.answer, trajectory.completed) == (False, None, False)
    assert (world.scored, len(engine.log), world.failures) == ([], 1, 97)


async def test_a_judge_that_is_away_and_an_aborted_generation_are_failures_too(words):
    collector, world, chat = make(words)
    (trajectory,), _ = await roll(collector, says("judge is away"))
    assert (trajectory.status, trajectory.reason, trajectory.solved) == (Status.FAILED, "no judge", False)
    assert world.scored == ["judge is away"] * 3

    class Aborting(FakeEngine):
        async def generate(self, prompt_ids, params, *, session=None):
            return replace(await super().generate(prompt_ids, params, session=session), finish_reason="abort")

    (trajectory,), engine = await roll(collector, Aborting(chat, says(ANSWER)))
    assert (trajectory.status, trajectory.turns) == (Status.FAILED, [])
    assert (trajectory.sequences, sequences(trajectory, 1.0), len(engine.log)) == ((), [], 1)
    assert len(set(engine.seeds)) == len(engine.seeds) == 3


async def test_one_failing_call_waits_for_the_others_of_its_turn(words):
    collector, world, _ = make(words, limits=replace(LIMITS, retries=0))
    world.failures = 1
    (trajectory,), _ = await roll(collector, says(call("broken") + call("echo", "slow")))
    assert trajectory.status is Status.FAILED
    assert world.calls == ["slow"]


# --- many episodes ---


async def test_order_groups_seeds_and_progress(words):
    collector, _, _ = make(words)
    tasks = [replace(TASK, id=str(i), answer=(("blue", "green")[i % 2],)) for i in range(3)]

    def script(session, turn):
        return call("echo", "slow") if turn < 3 - session % 4 else ANSWER

    done = []
    found, engine = await roll(collector, script, tasks, group_size=4, on_done=done.append)
    assert [(t.task.id, t.group, t.member) for t in found] == [(str(g), g, m) for g in range(3) for m in range(4)]
    assert [len(t.turns) for t in found] == [4, 3, 2, 1] * 3
    assert [t.solved for t in found] == [True] * 4 + [False] * 4 + [True] * 4
    assert sorted(map(id, done)) == sorted(map(id, found))
    assert len(set(engine.seeds)) == len(engine.seeds)
    again, repeat = await roll(collector, script, tasks, group_size=4)
    assert sorted(repeat.seeds) == sorted(engine.seeds)
    assert [t.turns[0].sampled_ids for t in again] == [t.turns[0].sampled_ids for t in found]
    _, other = await roll(collector, script, tasks, group_size=4, seed=(1,))
    assert not set(other.seeds) & set(engine.seeds)


async def test_groups_rolled_out_one_by_one_are_those_of_the_whole_step(words):
    collector, _, _ = make(words)
    tasks = [replace(TASK, id=str(i)) for i in range(3)]
    script = says(call("echo"), ANSWER)
    whole, engine = await roll(collector, script, tasks, group_size=2, seed=(4, 2))
    alone = FakeEngine(collector.chat, script)
    async with asyncio.timeout(SECONDS):
        groups = await asyncio.gather(
            *(
                collector.collect(
                    alone, [tasks[g]], numbers=[g], group_size=2, temperature=1.0, seed=(4, 2), budget=Budget()
                )
                for g in (2, 0, 1)
            )
        )
    found = [trajectory for group in (groups[1], groups[2], groups[0]) for trajectory in group]
    assert [(t.task, t.group, t.member) for t in found] == [(t.task, t.group, t.member) for t in whole]
    assert sorted(alone.seeds) == sorted(engine.seeds)
    assert not alone.open


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancelled_group_ends_its_own_actors_only(words, steps):
    collector, world, chat = make(words)
    engine = FakeEngine(
        chat, lambda session, turn: HANG if session < 2 and turn else says(call("echo"), ANSWER)(0, turn)
    )
    options = {"group_size": 2, "temperature": 1.0, "seed": (0,)}
    async with asyncio.timeout(SECONDS):
        doomed = asyncio.ensure_future(collector.collect(engine, [TASK], numbers=[0], **options, budget=Budget()))
        await asyncio.sleep(0)  # its sessions are the first two
        other = asyncio.ensure_future(collector.collect(engine, [TASK], numbers=[1], **options, budget=Budget()))
        for _ in range(10 * steps):
            await asyncio.sleep(0)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        assert not engine.open & {0, 1}
        assert [trajectory.solved for trajectory in await other] == [True, True]
    assert not engine.open
    assert collector.watchdog.waiting() == []
    assert len(world.scored) == 2


async def test_every_attempt_is_paid_from_a_part_of_the_budget_it_was_given(words):
    collector, world, _ = make(words, allowance=Limits(calls=2))
    step = Budget(name="step", parent=Budget())
    found, _ = await roll(collector, says(call("echo"), ANSWER), [TASK] * 3, group_size=2, budget=step)
    assert all(trajectory.solved for trajectory in found)
    assert len({id(budget) for budget in world.budgets}) == 6
    assert all(budget.parent is step and budget.limits.calls == 2 for budget in world.budgets)
    assert [budget.spent.calls for budget in world.budgets] == [1] * 6
    assert step.spent.calls == step.parent.spent.calls == 6


async def test_scripts_play_without_an_engine(words):
    collector, _, chat = make(words)

    def script(task, results):
        return ToolCall("echo", {"x": "hello"}) if not results else ANSWER

    (trajectory,) = await collector.play(script, [TASK], budget=Budget())
    assert trajectory.solved
    assert [turn.text for turn in trajectory.turns] == [call("echo"), ANSWER]
    assert [row.tokens for row in sequences(trajectory, 1.0)] == [
        (
            *chat.prompt_ids(initial_messages(TASK), TOOLS),
            *chat.encode(call("echo")),
            chat.stop_ids[0],
            *chat.observation_ids(["hello"]),
            *chat.encode(ANSWER),
            chat.stop_ids[0],
        )
    ]


# --- the embedded engine's sessions ---


class Scripted(EmbeddedEngine):
    """The embedded engine's sessions and schedule, with scripted text in place of a model."""

    def __init__(self, chat, script, lockstep):
        config = Qwen3Config(8, 8, 8, 1, 1, 1, 8)
        limits = RolloutLimits(max_length=4000)
        super().__init__(config, None, RolloutConfig(slots=2, limits=limits, widths=[8], lockstep=lockstep))
        self.chat, self.script, self.turns = chat, script, {}

    def _step(self):
        for session, request in sorted(self._waiting.items()):
            turn = self.turns[session] = self.turns.get(session, -1) + 1
            ids = (*self.chat.encode(self.script(session, turn)), self.chat.stop_ids[0])
            del self._waiting[session]
            request.future.set_result(Generation(ids, (0.0,) * len(ids), "stop", 0))


@pytest.mark.parametrize("lockstep", [True, False])
async def test_a_bug_in_a_tool_surfaces_and_leaves_the_engine_usable(words, lockstep):
    collector, world, chat = make(words)

    def script(session, turn):
        return call("buggy") if (session, turn) == (3, 1) else ANSWER if turn == 2 else call("echo", "slow")

    engine = Scripted(chat, script, lockstep)
    with pytest.raises(KeyError, match="a bug"):
        await roll(collector, engine, [TASK] * 6)
    assert not engine._open
    assert not engine._waiting
    calls = len(world.calls)
    await asyncio.sleep(0.03)
    assert len(world.calls) == calls  # nothing goes on in the background
    found, _ = await roll(collector, engine, [TASK] * 3)
    assert all(trajectory.solved for trajectory in found)
    await engine.close()


async def test_a_trajectory_past_its_deadline_fails_and_is_never_scored(words):
    collector, _, chat = make(words, limits=replace(LIMITS, deadline_s=0.5, retries=1), seconds=None)
    engine = Scripted(chat, says(call("echo", "hang")), lockstep=True)
    (trajectory,), _ = await roll(collector, engine)
    assert trajectory.status is Status.FAILED
    assert "deadline of 0.5 s" in trajectory.reason
    assert not trajectory.solved
    assert not engine._open
    await engine.close()


async def test_retries_do_not_block_a_lockstep_engine(words):
    collector, world, chat = make(words)
    world.failures = 7
    engine = Scripted(chat, lambda session, turn: (call("echo"), call("broken"), ANSWER)[turn], lockstep=True)
    found, _ = await roll(collector, engine, [TASK] * 3, group_size=2)
    assert [t.status for t in found].count(Status.COMPLETED) >= 4
    assert world.failures == 0
    assert not engine._open
    await engine.close()


async def test_a_cancelled_collection_leaves_no_session(words):
    collector, world, chat = make(words)
    engine = Scripted(chat, says(call("echo", "slow")), lockstep=True)
    for steps in range(4):
        running = asyncio.ensure_future(collector.collect(engine, [TASK] * 3, budget=Budget()))
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not engine._open
    assert world.scored == []
    await engine.close()


async def test_a_callback_that_raises_surfaces(words):
    collector, _, chat = make(words)
    engine = Scripted(chat, says(ANSWER), lockstep=True)

    def on_done(trajectory):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await roll(collector, engine, [TASK] * 3, on_done=on_done)
    assert not engine._open
    await engine.close()
