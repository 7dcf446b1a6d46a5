"""Questions with reference answers, answered with the tools of a catalogue or with those of this machine alone."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from orchestra_jax.envs.base import Message, Score, initial_messages
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.tools.answers import extract_answer, marked_answer, matches, without_thinking
from orchestra_jax.tools.base import ToolExecutor, ToolHandler
from orchestra_jax.tools.catalogue import Catalogue
from orchestra_jax.tools.experts.roles import Judge
from orchestra_jax.tools.python import sandbox
from orchestra_jax.tools.search import local as local_search
from orchestra_jax.types import Task, ToolCall, ToolResult, ToolSpec, Usage

OFFLINE_TOOLS = (sandbox.TOOL, local_search.TOOL)
SYSTEM = (
    "Answer the user's question. Call tools where they help, mind their prices and latencies and the user's wishes, "
    "and end with the final answer in \\boxed{}."
)
SYSTEM_TERMINAL = (
    "Answer the user's question. Call tools where they help, mind their prices and latencies and the user's wishes, "
    "and end by calling answer."
)


class QAEpisode:
    """One question under one menu; see `envs.base.Episode`."""

    def __init__(
        self,
        task: Task,
        handlers: Mapping[str, ToolHandler],
        system: str | None,
        judge: Judge | None,
        budget: Budget,
    ) -> None:
        self._task, self._judge, self._budget = task, judge, budget
        self._executor = ToolExecutor(task.tools, handlers, budget)
        self.messages: list[Message] = initial_messages(task, system)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._executor.tools

    async def step(self, call: ToolCall) -> ToolResult:
        return await self._executor.step(call)

    async def score(self, answer: str) -> bool | Score:
        """Equal to a reference, or the judge finds it so; it is asked only about answers that are not equal."""
        if matches(extract_answer(answer), self._task.answer):
            return True
        if self._judge is None:
            return False
        reply = without_thinking(answer)
        # The judge is not the policy's to pay: the trajectory's own budget does not hold for it.
        payer = self._budget.parent or self._budget
        verdict = await self._judge.judge(
            self._task.question, marked_answer(reply) or reply, self._task.answer, budget=payer
        )
        return Score(verdict.correct, verdict.usage)


class QAEnvironment:
    """Runs the tools of a catalogue where the task has an instance of it ("instance" in its `extra`).

    Other tasks get this machine's tools: `python` where there is a sandbox, `local_search` where there is an index.

    Args:
        catalogue: tools by instance.
        judge: decides on answers that do not match; None: those are wrong.
        on_close: closes what belongs to the catalogue and the judge.
        sandbox: runs code; owned and closed by this environment.
        index: passages to search.
        prices: charges the offline tools by measured seconds and calls, where the menu shows no price per call.
        handlers: further tools by name.
        top_k: passages per search.
        system: system message, None for none.
    """

    def __init__(
        self,
        *,
        sandbox: sandbox.PythonSandbox | None = None,
        index: local_search.LocalIndex | None = None,
        prices: PriceList | None = None,
        handlers: Mapping[str, ToolHandler] | None = None,
        top_k: int = 3,
        system: str | None = SYSTEM,
        catalogue: Catalogue | None = None,
        judge: Judge | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._catalogue, self._judge, self._on_close = catalogue, judge, on_close
        self._sandbox, self._index, self._prices = sandbox, index, prices
        self._top_k, self._system = top_k, system
        self._handlers: dict[str, ToolHandler] = dict(handlers or {})
        if sandbox is not None:
            self._handlers[OFFLINE_TOOLS[0].name] = self._python
        if index is not None:
            self._handlers[OFFLINE_TOOLS[1].name] = self._search

    def reset(self, task: Task, budget: Budget) -> QAEpisode:
        instance = task.extra.get("instance") if self._catalogue is not None else None
        if self._catalogue is None or instance is None:
            return QAEpisode(task, self._handlers, self._system, self._judge, budget)
        return QAEpisode(task, self._catalogue.handlers(instance, task), self._system, self._judge, budget)

    async def close(self) -> None:
        if self._on_close is not None:
            await self._on_close()
        if self._sandbox is not None:
            self._sandbox.close()

    async def _python(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        assert self._sandbox is not None
        return self._priced(await self._sandbox.run(arguments["code"]))

    async def _search(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        assert self._index is not None
        start = time.perf_counter()
        text = self._index.answer(arguments["query"], self._top_k)
        row = Usage(OFFLINE_TOOLS[1].name, seconds=time.perf_counter() - start)
        return self._priced(ToolResult(text, (row,)))

    def _priced(self, result: ToolResult) -> ToolResult:
        if self._prices is None:
            return result
        return replace(result, usage=tuple(self._prices.charge(row) for row in result.usage))
