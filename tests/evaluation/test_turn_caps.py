"""A trajectory under a smaller cap of turns is cut from the one under the largest: the same, and sampled once."""

import asyncio
import json
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import EvaluationConfig, RunConfig
from orchestra_jax.engines.base import Generation, SamplingParams
from orchestra_jax.envs.quickstart.demonstrations import BASELINES, answer_from, reference_call
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment, quickstart_chat
from orchestra_jax.evaluation.benchmark_rows import cap_rows
from orchestra_jax.evaluation.intervals import wilson
from orchestra_jax.evaluation.measures import summarize
from orchestra_jax.evaluation.runner import Evaluator
from orchestra_jax.evaluation.turn_caps import CappedEvaluator, capped, cut, draw_turn_caps, ended_by, widest
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import Price, PriceList
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.messages import WholeReply
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.types import InfrastructureError, Status, Task, ToolCall, ToolResult, Trajectory, Usage
from tests.evaluation.test_runner import InThread

PRICES = PriceList("test", "2026-11-20", "test", {"orchestrator": Price(input=1.0, output=2.0)})
LIMITS = RolloutLimits(max_turns=3, max_calls=3, max_length=1500, max_new_tokens=32)
CAPS = [1, 2, 5]
QUESTIONS = 40


@pytest.fixture(scope="module")
def environment() -> Iterator[QuickstartEnvironment]:
    made = QuickstartEnvironment(RunConfig())
    yield made
    asyncio.run(made.close())


def collector(environment: QuickstartEnvironment, limits: RolloutLimits) -> Collector:
    return Collector(
        environment, ChatFormat(quickstart_chat().tokenizer, compact_menu=True), limits, PRICES, seconds_per_token=0.1
    )


class Wanderer:
    """Searches up to six times, by the question, whether a search is offered or not, then answers; counts turns."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat, self.turns, self.sessions = chat, 0, dict[int, list[int]]()

    def open_session(self) -> int:
        self.sessions[len(self.sessions)] = []
        return len(self.sessions) - 1

    def close_session(self, session: object) -> None:
        pass

    async def generate(self, ids: Sequence[int], params: SamplingParams, *, session: int = 0) -> Generation:
        self.turns += 1
        left = self.sessions[session] or [zlib.crc32(repr(ids).encode()) % 7]
        self.sessions[session] = [left[0] - 1]
        text = render_call(ToolCall("local_search", {"query": "capital"})) if left[0] else "Oslo"
        sampled = (*self.chat.encode(text), self.chat.stop_ids[0])
        return Generation(sampled, (0.0,) * len(sampled), "stop", 0)


def scripted(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    """Calls by the task, of tools that are offered, until it answers."""
    calls = zlib.crc32(task.id.encode()) % 7
    if len(results) < calls:
        return reference_call(task, task.tools[len(results) % len(task.tools)].name)
    return answer_from(results)


class Endpoint:
    """A model behind an address, as the wanderer; requests are lost, and billed at their worst case."""

    async def converse(self, messages: Sequence[Mapping[str, Any]], tools: object, **asked: Any) -> WholeReply:
        said = sum(message["role"] == "assistant" for message in messages)
        question = next(message["content"] for message in messages if message["role"] == "user")
        lost = Usage("orchestrator", "orchestrator", completion_tokens=asked["max_tokens"], estimated=True)
        own = Usage("orchestrator", "orchestrator", 10, completion_tokens=5 + said, estimated=said % 3 == 1)
        calls = [("", "local_search", "{}")] if said < zlib.crc32(question.encode()) % 7 else []
        text = "" if calls else "Oslo"
        return WholeReply(text, "", calls, "stop", (*[lost] * ((said + len(question)) % 3), own))

    async def close(self) -> None:
        pass


def play(environment: QuickstartEnvironment, limits: RolloutLimits, speaker: str) -> list[Trajectory]:
    made, tasks = collector(environment, limits), environment.held_out(QUESTIONS)
    if speaker == "endpoint":
        return asyncio.run(made.collect(Endpoint(), tasks, budget=Budget(), temperature=0.0))
    if speaker == "engine":
        return asyncio.run(made.collect(Wanderer(made.chat), tasks, budget=Budget(), temperature=0.0))  # type: ignore[arg-type]
    return asyncio.run(made.play(scripted, tasks, budget=Budget(), silent=speaker == "silent script"))


@pytest.mark.parametrize("speaker", ["engine", "endpoint", "script in tokens", "silent script"])
def test_a_cut_trajectory_is_the_one_under_these_limits(environment: QuickstartEnvironment, speaker: str):
    whole = play(environment, widest(LIMITS, CAPS), speaker)
    assert {len(t.turns) for t in whole} >= {1, 3, 4, 5}
    for limits in [LIMITS, replace(LIMITS, max_calls=1), *capped(LIMITS, CAPS).values()]:
        alone = play(environment, limits, speaker)
        assert [cut(trajectory, limits) for trajectory in whole] == alone
        for trajectory, short in zip(whole, alone, strict=True):
            # Whoever was not ended by a limit is the same under wider ones.
            assert ended_by(short, limits) or short == trajectory


def test_what_failed_later_had_ended_before(environment: QuickstartEnvironment, monkeypatch: pytest.MonkeyPatch):
    step, limits = ToolExecutor.step, widest(LIMITS, [5])
    calls = dict[int, int]()

    async def breaks(self: ToolExecutor, call: ToolCall) -> ToolResult:
        calls[id(self)] = calls.get(id(self), 0) + 1
        if calls[id(self)] >= 3:
            raise InfrastructureError("down")
        return await step(self, call)

    monkeypatch.setattr(ToolExecutor, "step", breaks)
    whole = [t for t in play(environment, replace(limits, retries=0), "engine") if t.status is Status.FAILED]
    assert whole
    for trajectory in whole:
        assert len(trajectory.turns) == 2
        assert cut(trajectory, replace(limits, max_turns=2)).status is Status.NO_ANSWER
        assert cut(trajectory, limits) is trajectory


def evaluator(
    environment: QuickstartEnvironment, caps: Sequence[int], folder: Path, processes: Processes | None = None
) -> tuple[Evaluator, Wanderer]:
    evaluation = EvaluationConfig(benchmarks=["held_out"], questions=QUESTIONS, temperature=0.0, turn_caps=list(caps))
    cfg = replace(RunConfig(), evaluation=evaluation, rollout=replace(RunConfig().rollout, limits=LIMITS))
    made = collector(environment, widest(LIMITS, caps))
    engine = Wanderer(made.chat)
    kind = CappedEvaluator if caps else Evaluator
    return kind(cfg, made, engine, Budget(), folder, processes), engine  # type: ignore[arg-type]


def test_every_cap_has_its_figures_and_nothing_is_sampled_twice(environment, tmp_path, monkeypatch):
    step, executed = ToolExecutor.step, []

    async def counted(self: ToolExecutor, call: ToolCall) -> ToolResult:
        executed.append(call)
        return await step(self, call)

    whole = play(environment, widest(LIMITS, CAPS), "engine")
    monkeypatch.setattr(ToolExecutor, "step", counted)
    plain, engine = evaluator(environment, [], tmp_path)
    alone = asyncio.run(plain.evaluate("policy", "p"))["held_out"]
    first, calls = engine.turns, len(executed)
    capped_too, engine = evaluator(environment, CAPS, tmp_path)
    figures = asyncio.run(capped_too.evaluate("policy", "p"))["held_out"]
    # Only what a limit had ended is played on, from its beginning.
    again = [t for t in whole if ended_by(cut(t, LIMITS), LIMITS)]
    assert 0 < len(again) < QUESTIONS
    assert engine.turns == sum(len(t.turns) for t in again)
    assert first == sum(len(cut(t, LIMITS).turns) for t in whole)
    baselines = [t for runs in capped_too._baseline_runs.values() for t in runs]  # for the scale of the utility
    scripts = sum(len(turn.results) for t in baselines for turn in t.turns)
    assert scripts >= QUESTIONS * len(BASELINES)
    assert len(executed) - calls == scripts + sum(len(turn.results) for t in again for turn in t.turns)
    # The figures proper are those without caps.
    assert {name: figures[name] for name in alone} == alone
    for cap, limits in capped(LIMITS, CAPS).items():
        run = [cut(trajectory, limits) for trajectory in whole]
        found = figures["turn_caps"][str(cap)]
        assert {name: found[name] for name in summarize(run)} == summarize(run)
        assert found["intervals"]["accuracy"]["wilson"] == wilson(sum(t.solved for t in run), QUESTIONS)
    assert list(figures["turn_caps"]) == ["1", "2", "5"]
    costs = [found["cost"] for found in figures["turn_caps"].values()]
    assert costs == sorted(costs)
    # Their trajectories lie beside the policy's, for reports, and the same command asks nothing.
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [
        "policy", "policy-1-turns", "policy-2-turns", "policy-5-turns",
    ]  # fmt: skip
    lines = (tmp_path / "policy-1-turns" / "held_out.t0.jsonl").read_text().splitlines()
    assert {len(json.loads(line)["sequences"][0]) for line in lines} == {1}
    resumed, engine = evaluator(environment, CAPS, tmp_path)
    assert asyncio.run(resumed.evaluate("policy", "p"))["held_out"] == figures
    assert engine.turns == 0


def test_one_process_goes_on_from_what_two_have_sampled(tmp_path):
    async def evaluated(processes: Processes | None) -> tuple[dict[str, Any], int]:
        own = QuickstartEnvironment(RunConfig())  # its sandbox belongs to one event loop
        made, engine = evaluator(own, CAPS, tmp_path, processes)
        try:
            return (await made.evaluate("policy", "p"))["held_out"], engine.turns
        finally:
            await own.close()

    table, meeting = dict[int, bytes](), threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        two = list(threads.map(lambda n: asyncio.run(evaluated(InThread(n, table, meeting))), range(2)))
    assert all(turns for _, turns in two)
    assert asyncio.run(evaluated(None)) == (two[0][0], 0) == (two[1][0], 0)


def test_the_rows_and_the_picture(tmp_path: Path):
    caps = {str(cap): {"accuracy": np.log(cap) / 9, "cost": cap / 1e3} for cap in (10, 20, 50, 100)}
    rows = list(cap_rows("held_out", {"accuracy": 0.4, "intervals": {}, "turn_caps": caps}))
    rows += cap_rows("swap", {"cost": {"turn_caps": caps}, "local": {"accuracy": 0.1}})
    assert [label for label, _, _ in rows[:5]] == [
        "held_out, 10 turns", "held_out, 20 turns", "held_out, 50 turns", "held_out, 100 turns", "swap: cost, 10 turns",
    ]  # fmt: skip
    assert len(rows) == 8
    assert draw_turn_caps(rows, tmp_path).read_bytes().startswith(b"\x89PNG")
