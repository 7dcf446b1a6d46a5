import functools
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.envs.base import Demonstrations
from orchestra_jax.envs.quickstart.demonstrations import BASELINES, answer_from, reads_menu, reference_call
from orchestra_jax.envs.quickstart.facts import CATALOGUE
from orchestra_jax.processes import Processes
from orchestra_jax.rl.batching import MicroShapes, PackShapes, TokenSequence
from orchestra_jax.rl.objectives import Normalisers, supervised_objective
from orchestra_jax.rl.packing import micro_batches, pack, policy_batches
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.training import warm_start
from orchestra_jax.training.beginnings import with_beginnings
from orchestra_jax.training.warm_start import (
    _cutter,
    copy_accuracy,
    demonstration_rows,
    demonstration_shapes,
    supervised_batches,
)
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, Trajectory, Turn

TASK = Task(
    "t",
    "Where was Alice Moreno born?",
    ("Lima",),
    (CATALOGUE["local_search"], CATALOGUE["expert_small"]),
    Preference("accuracy", ""),
    "lookup",
    {"steps": (("lookup", "Alice Moreno born"),)},
)
SHAPES = PackShapes(3, rows=4, sequences=4)  # one demonstration a row
CUT = functools.partial(pack, shapes=SHAPES)


def row(n: int) -> TokenSequence:
    """A row that its first token tells apart."""
    return TokenSequence((n, 7, 8), (False, True, True), (0.0, 0.0, 0.0), 0, 1.0)


def trajectory(*turns: Turn, status: Status = Status.COMPLETED, answer: str | None = None, reason: str = ""):
    return Trajectory(TASK, 0, 0, (tuple(turns),), status, reason, answer, False, ())


def call(name: str, arguments: dict, observation: str = "Alice Moreno was born in Lima.") -> Turn:
    return Turn((1, 2), (3, 4), (0.0, 0.0), 0, "stop", "", (ToolCall(name, arguments),), (ToolResult(observation),))


SAID = Turn((5,), (6,), (0.0,), 0, "stop")


def test_unpacked_demonstrations_with_prompts_of_their_own_fill_few_micro_batches():
    rows = [
        TokenSequence((n, 7, 8, 9, 10), (False,) * 3 + (True,) * 2, (0.0,) * 5, prefix=3, advantage=1.0)
        for n in range(1, 11)
    ]
    trainer = SimpleNamespace(cfg=compose("warm_start.packing=false"), shapes=MicroShapes(40, (4,), (8, 16)))
    batches = _cutter(trainer, rows, 1)([[row] for row in rows])
    assert len(batches) == 2  # five rows of eight tokens each
    assert sorted(int(n) for batch in batches for n in np.asarray(batch.tokens)[:, 0]) == list(range(1, 11))
    assert sum(batch.num_tokens for batch in batches) == 20


def test_demonstrations_of_one_prompt_share_it():
    rows = [
        TokenSequence((n // 2 + 1, 7, 8, 9, n + 20), (False,) * 3 + (True,) * 2, (0.0,) * 5, prefix=2, advantage=1.0)
        for n in range(12)
    ]
    trainer = SimpleNamespace(cfg=compose("warm_start.packing=false"), shapes=MicroShapes(48, (4,), (8, 16)))
    batches = _cutter(trainer, rows, 1, each=2)([rows[k : k + 2] for k in range(0, 12, 2)])
    assert sorted(int(n) for batch in batches for n in np.asarray(batch.prefix)[:, 0] if n) == [1, 2, 3, 4, 5, 6]
    assert sum(batch.num_tokens for batch in batches) == 24


def test_a_demonstration_has_rows_for_its_beginnings_that_weigh_their_share_and_one_for_what_follows():
    codes = {render_call(ToolCall("A", {})): (8,), render_call(ToolCall("B", {})): (3,)}
    chat: Any = SimpleNamespace(encode=codes.__getitem__, stop_ids=(4,))
    tokens, sampled = (1, 2, 3, 4, 5, 6, 7), (False, False, True, True, False, True, True)
    whole = TokenSequence(tokens, sampled, (0.0,) * 7, prefix=1, advantage=1.0)
    [rows] = with_beginnings([[whole]], [[(ToolCall("A", {}), 0.3), (ToolCall("B", {}), 0.7)]], chat)
    assert [(row.tokens, row.sampled, row.advantage) for row in rows] == [
        (tokens, (False, False, False, False, False, True, True), 1.0),
        ((1, 2, 8, 4), (False, False, True, True), 0.3),
        ((1, 2, 3, 4), (False, False, True, True), 0.7),
    ]
    assert all(row.prefix == 1 and len(row.logprobs) == len(row.tokens) for row in rows)


def test_a_row_counts_as_often_as_its_weight_says():
    [batch] = micro_batches(
        [replace(row(1), advantage=0.75), replace(row(2), advantage=0.25)],
        MicroShapes(6, (3,), (), response_fractions=(1.0,)),
    )
    logprobs = jnp.asarray([[0.0, -1.0, -2.0], [0.0, -4.0, -8.0]])  # a row's first token carries no loss
    loss, _ = supervised_objective(logprobs, batch, Normalisers(4.0, 4.0, 4.0))
    assert float(loss) == pytest.approx((0.75 * 3 + 0.25 * 12) / 4)


# --- batches ---------------------------------------------------------------------------------------------------------


def take(start: int, count: int, seed: int = 0, rows: int = 11, size: int = 3, growing: int = 0) -> list[list[int]]:
    """First tokens of the rows of `count` batches from step `start` on."""
    batches = supervised_batches([row(n) for n in range(1, rows + 1)], size, CUT, seed, start, growing=growing)
    return [
        [int(n) for micro in batch for n in np.asarray(micro.tokens)[:, 0] if n]
        for batch in itertools.islice(batches, count)
    ]


@pytest.mark.parametrize("start", [1, 2, 3, 7, 30])
def test_batches_are_the_same_wherever_the_iterator_began(start: int):
    assert take(start, 5) == take(0, start + 5)[start:]
    assert take(start, 5, growing=4) == take(0, start + 5, growing=4)[start:]


def test_growing_batches_come_from_the_first_rows_and_at_last_from_all():
    batches = take(0, 60, rows=40, size=8, growing=40)
    most = [max(batch) for batch in batches]
    assert all(len(set(batch)) == 8 for batch in batches)
    assert most[0] <= 10  # a quarter
    for step in range(40):
        assert most[step] <= math.ceil(40 * (0.25 + 0.75 * step / 40))
    assert max(most[30:40]) > 30
    assert batches[40:45] == take(40, 5, rows=40, size=8)
    assert [sorted(batch) for batch in take(0, 3, rows=2, size=5, growing=3)] == [[1, 2]] * 3


def test_batches_resume_in_every_array():
    rows = [row(n) for n in range(1, 12)]
    whole = list(itertools.islice(supervised_batches(rows, 3, CUT, 0, 0), 6))[4:]
    resumed = list(itertools.islice(supervised_batches(rows, 3, CUT, 0, 4), 2))
    chex.assert_trees_all_equal(whole, resumed, strict=True)


def test_an_epoch_has_no_row_twice_and_epochs_differ():
    epochs = [[*itertools.chain(*take(0, 9)[first : first + 3])] for first in (0, 3, 6)]
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert take(0, 3, seed=1) != take(0, 3, seed=0)


def test_fewer_rows_than_a_batch_are_one_batch():
    assert [sorted(batch) for batch in take(0, 3, rows=2, size=5)] == [[1, 2]] * 3


@pytest.mark.parametrize(("micro_tokens", "shards"), [(4096, 1), (4608, 1), (100_000, 1), (1024, 2), (8, 1)])
def test_batches_of_demonstrations_fill_their_shapes(micro_tokens: int, shards: int):
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(50, 95, 550), rng.integers(95, 133, 50)])
    rows = [TokenSequence((1, *[7] * (n - 1)), (False, *[True] * (n - 1)), (0.0,) * n, 0, 1.0) for n in lengths]
    shapes = demonstration_shapes(rows, 64, micro_tokens, (0.5,), shards)
    assert shapes.row_length >= lengths.max()
    assert shapes.rows * shapes.row_length <= max(micro_tokens, 2 * lengths.max())
    batches = itertools.islice(supervised_batches(rows, 64, lambda part: policy_batches(part, shapes, shards), 0, 0), 9)
    computed = [sum(micro.tokens.size for micro in batch) for batch in batches]
    if micro_tokens > 8:  # else every demonstration has a row of its own
        assert np.mean(computed) < 1.5 * 64 * lengths.mean()


LIMITS = RolloutLimits(max_new_tokens=8)


def test_only_what_the_script_said_carries_loss():
    demonstration = trajectory(call("local_search", {"query": "Alice Moreno born"}), SAID, answer="Lima")
    (found,) = demonstration_rows(demonstration, LIMITS)
    assert found.tokens == (1, 2, 3, 4, 5, 6)
    assert found.sampled == (False, False, True, True, False, True)
    assert found.advantage == 1.0


async def test_demonstrations_in_the_making_are_counted(monkeypatch: pytest.MonkeyPatch):
    class Collector:
        chat = None

        async def play(self, script: object, tasks: list[Task], *_: object, **__: object) -> list[Trajectory]:
            return [trajectory(SAID, answer="Lima")] * len(tasks)

    monkeypatch.setattr(warm_start, "_AT_A_TIME", 2)
    seen = list[int]()
    cfg = SimpleNamespace(rollout=SimpleNamespace(limits=LIMITS))
    trainer = SimpleNamespace(cfg=cfg, collector=Collector(), processes=Processes(), money=SimpleNamespace(run=None))
    shown = SimpleNamespace(tasks=[TASK] * 5, script=None, think=None, beginnings=None)
    rows = await warm_start._by_prompt(trainer, shown, SimpleNamespace(update=seen.append, total=5))
    assert (len(rows), seen) == (5, [2, 4, 5])


def test_a_failed_demonstration_is_an_error():
    broken = trajectory(SAID, status=Status.NO_ANSWER, reason="no answer within 4 turns")
    with pytest.raises(ValueError, match="task t ended as no_answer"):
        demonstration_rows(broken, LIMITS)


def test_a_demonstration_that_the_policy_could_not_say_is_an_error():
    demonstration = trajectory(call("local_search", {"query": "Alice Moreno born"}), SAID, answer="Lima")
    with pytest.raises(ValueError, match=r"set rollout\.limits\.max_new_tokens=2 or more"):
        demonstration_rows(demonstration, replace(LIMITS, max_new_tokens=1))
    with pytest.raises(ConfigError, match=r"set rollout\.limits\.max_length=6 or more"):
        demonstration_rows(demonstration, replace(LIMITS, max_length=5))


# --- the gate --------------------------------------------------------------------------------------------------------


def accuracy(*trajectories: Trajectory) -> float:
    shown = Demonstrations(
        tasks=[],
        gate=[],
        script=BASELINES["random_tool"],
        reference_call=reference_call,
        answer_from=answer_from,
        reads_menu=reads_menu,
    )
    return copy_accuracy(trajectories, shown)


def test_copy_accuracy_by_hand():
    right = call("local_search", {"query": "Alice Moreno born"})
    wrong = call("local_search", {"query": "Alice Moreno job"})
    stranger = call("web_search", {"query": "Alice Moreno born"}, "Unknown tool")
    nothing = call("expert_small", {}, "Lima")
    assert accuracy(trajectory(right, SAID, answer="Lima")) == 1.0
    assert accuracy(trajectory(right, SAID, answer="Rome")) == 0.5  # the call, not the answer
    assert accuracy(trajectory(wrong, SAID, answer="Lima")) == 0.5
    assert accuracy(trajectory(nothing, SAID, answer="Lima")) == 1.0  # nothing to copy in the call
    assert accuracy(trajectory(stranger, nothing, SAID, answer="Lima")) == 0.5  # a tool that is not on the menu
    assert accuracy(trajectory(right, right, SAID, answer="Lima")) == pytest.approx(2 / 3)  # a call when it is over
    assert accuracy(trajectory(right, SAID, answer="Lima"), trajectory(wrong, SAID, answer="Rome")) == 0.5
    assert accuracy() == 0.0


def test_figures_of_the_menu_are_copies_too():
    cheap = replace(TASK.tools[0], price_usd=0.03), replace(TASK.tools[1], price_usd=0.05)
    task = replace(TASK, tools=cheap, preference=Preference("cost", ""))
    asked = replace(call("expert_small", {}, "Lima"), text="<think> lookup cheap</think>")

    def read(*figures: str, tool: Turn) -> float:
        turn = replace(tool, text=f"<think> lookup cheap {' '.join(figures)}</think><tool_call>")
        return accuracy(replace(trajectory(turn, SAID, answer="Lima"), task=task))

    right = call("local_search", {"query": "Alice Moreno born"})
    assert accuracy(replace(trajectory(asked, SAID, answer="Lima"), task=task)) == 1.0  # it compares nothing
    assert read("expert_small 5", "local_search 3", tool=right) == 1.0
    assert read("expert_small 5", "local_search 4", tool=right) == pytest.approx(2 / 3)
    assert read("expert_small 5", "web_search 3", tool=right) == pytest.approx(2 / 3)  # not on the menu
    assert read("expert_small 5", "local_search 3", tool=call("expert_small", {}, "Lima")) == 0.5  # the dearer one


def test_a_malformed_trajectory_is_one_failed_copy():
    right = call("local_search", {"query": "Alice Moreno born"})
    assert accuracy(trajectory(SAID, status=Status.MALFORMED, reason="cut off")) == 0.0
    assert accuracy(trajectory(right, SAID, status=Status.NO_ANSWER, reason="empty")) == 0.5


def test_answering_without_a_call_is_no_copy_unless_it_says_so():
    assert accuracy(trajectory(SAID, answer="Lima")) == 0.0
    assert accuracy(trajectory(SAID, answer="unknown")) == 1.0
