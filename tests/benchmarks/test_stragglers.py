"""The books of benchmarks/stragglers.py: a call that failed and was made again is not one that was cut off."""

import asyncio
import importlib
import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from orchestra_jax.envs.quickstart.environment import QuickstartEpisode
from orchestra_jax.types import InfrastructureError, ToolCall, ToolResult, Usage

ROOT = Path(__file__).resolve().parents[2]


def test_a_call_that_fails_on_a_busy_machine_and_is_made_again_is_not_cut_off(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    stragglers = importlib.import_module("stragglers")
    failures: list[Exception] = [InfrastructureError("The sandbox worker gave no answer in 60 s.")]

    async def step(self: QuickstartEpisode, call: ToolCall) -> ToolResult:
        if failures:
            raise failures.pop()
        if call.name == "slow":
            await asyncio.sleep(600)
        return ToolResult("4", (Usage(call.name, cost_usd=0.02),))

    def train(_: list[str]) -> None:
        episode, call = SimpleNamespace(task=SimpleNamespace(id="t")), ToolCall("python", {})
        with suppress(InfrastructureError):
            asyncio.run(QuickstartEpisode.step(episode, call))
        asyncio.run(QuickstartEpisode.step(episode, call))
        with suppress(TimeoutError):
            asyncio.run(asyncio.wait_for(QuickstartEpisode.step(episode, ToolCall("slow", {})), 0.01))

    monkeypatch.setattr(QuickstartEpisode, "step", step)
    monkeypatch.setattr(stragglers, "train_here", train)
    stragglers._train(tmp_path / "books.jsonl", 0.0, 1, [])
    lines = [json.loads(line) for line in (tmp_path / "books.jsonl").read_text().splitlines()]
    began, paid = stragglers._calls(lines)
    assert began == Counter({("t", "python"): 1, ("t", "slow"): 1})  # only the slow one was cut off
    assert paid == Counter({("t", "python", (0.02,)): 1})
