"""A call that was refused is no call: it earns nothing in Eq. 2, is in no figure of calls, and has one of its own."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from orchestra_jax.evaluation.measures import summarize, tool_shares
from orchestra_jax.money.budgets import Limits
from orchestra_jax.rl.groups import group_arrays
from orchestra_jax.rl.rewards import feature_matrix, preference_reward
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.tools.entries import within_budget
from orchestra_jax.types import Preference, ToolCall
from tests.rollout.scripted import ANSWER, LIMITS, TASK, call, make, roll

WANTS_ECHO = replace(TASK, preference=Preference("echo", "", {"echo": 1.0}, outcome=0.0))
EMPTY = render_call(ToolCall("echo", {}))


async def test_calls_without_arguments_earn_nothing_where_the_tool_is_preferred(words):
    collector, world, _ = make(words, limits=replace(LIMITS, max_turns=30, max_calls=30))
    scripts = [(EMPTY,) * 20 + (ANSWER,), (call("echo"), ANSWER)]
    found, _ = await roll(collector, lambda session, turn: scripts[session][turn], [WANTS_ECHO], group_size=2)
    assert [t.solved for t in found] == [True, True]
    assert world.calls == ["hello"]
    arrays = group_arrays(found, 2)
    np.testing.assert_array_equal(arrays.tool_counts[0, :, 0], [0, 1])
    matrix = feature_matrix(*map(jnp.asarray, (arrays.tool_counts, arrays.solved, arrays.cost_usd, arrays.latency_s)))
    rewards = preference_reward(
        matrix, jnp.asarray(arrays.preference), jnp.asarray(arrays.solved), jnp.asarray(arrays.completed),
        jnp.asarray(arrays.tool_mask),
    )  # fmt: skip
    np.testing.assert_allclose(rewards[0], [0.0, 1.0])
    assert [(len(t.calls), t.refused) for t in found] == [(0, 20), (1, 0)]
    assert [row.name for row in found[0].ledger] == ["orchestrator"] * 21


async def test_figures_count_executed_calls_and_show_refused_ones_apart(words):
    collector, _, _ = make(words)
    (trajectory,), _ = await roll(
        collector, lambda session, turn: (EMPTY, call("nothing"), call("echo", "error"), ANSWER)[turn]
    )
    figures = summarize([trajectory])
    assert (figures["calls"], figures["refused"]) == (1.0, 2.0)
    assert tool_shares([trajectory])["all"] == {"echo": 1.0}  # its own error is one of an executed call
    assert [result.refused for turn in trajectory.turns[:3] for result in turn.results] == [True, True, False]
    assert all(result.is_error for turn in trajectory.turns for result in turn.results)


async def test_what_no_budget_allows_is_refused_and_not_charged_at_the_menus_price(words):
    collector, world, _ = make(words, allowance=Limits(calls=1))
    world.echo = within_budget(world.echo)
    (trajectory,), _ = await roll(collector, lambda session, turn: (call("echo"), call("echo"), ANSWER)[turn])
    assert (trajectory.tool_names, trajectory.refused) == (["echo"], 1)
    assert [row.name for row in trajectory.ledger if row.role == "tool"] == ["echo"]
