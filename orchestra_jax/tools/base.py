"""The executor of tool calls: it checks the arguments, calls the tool and charges the call."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools import schema
from orchestra_jax.types import ToolCall, ToolResult, ToolSpec, Usage

# Executes a call: (its validated arguments, the budget that pays for it) -> what the policy reads.
ToolHandler = Callable[[Mapping[str, Any], Budget], Awaitable[ToolResult | str]]


class ToolExecutor:
    """Validates, executes and charges the calls of one episode.

    Charging: where the menu shows a price per call, that price is charged and the menu's latency (measured seconds
    where it shows none). Otherwise the rows that the tool itself returned are kept (models priced per token), and a
    tool that returned none is charged zero dollars and the menu's latency. A call that was refused (unknown tool,
    bad arguments) was not executed and costs nothing.

    Args:
        tools: the menu of this instance.
        handlers: by tool name; may hold more than the menu.
        budget: of the trajectory: pays for the calls.

    Raises:
        ValueError: a tool of the menu has no handler, or two tools share a name.
    """

    def __init__(self, tools: Sequence[ToolSpec], handlers: Mapping[str, ToolHandler], budget: Budget) -> None:
        self.tools = tuple(tools)
        self._specs = {spec.name: spec for spec in self.tools}
        self._handlers, self._budget = handlers, budget
        if len(self._specs) != len(self.tools):
            raise ValueError(f"Two tools of the menu share a name: {sorted(spec.name for spec in self.tools)}.")
        missing = [name for name in self._specs if name not in handlers]
        if missing:
            raise ValueError(f"No handler for tool {missing[0]!r}; this environment offers {sorted(handlers)}.")

    async def step(self, call: ToolCall) -> ToolResult:
        """Executes one call; see `Episode.step`."""
        spec = self._specs.get(call.name)
        if spec is None:
            known = ", ".join(self._specs) or "none"
            return ToolResult(f"Unknown tool {call.name!r}; the available tools are: {known}.", is_error=True)
        problem = schema.validate_arguments(spec, call.arguments)
        if problem is not None:
            return ToolResult(problem, is_error=True)
        start = time.perf_counter()
        answer = await self._handlers[call.name](call.arguments, self._budget)
        elapsed = time.perf_counter() - start
        result = ToolResult(answer) if isinstance(answer, str) else answer
        return replace(result, usage=charge(spec, result.usage, elapsed))


def charge(spec: ToolSpec, rows: tuple[Usage, ...], elapsed: float) -> tuple[Usage, ...]:
    """Ledger rows of one executed call under the rule in `ToolExecutor`.

    Args:
        spec: the called tool with the menu's price and latency.
        rows: what the tool itself reported.
        elapsed: measured wall-clock seconds, used where neither menu nor tool gives seconds.
    """
    if spec.price_usd is None and rows:
        return rows
    seconds = spec.latency_s
    if seconds is None:
        seconds = sum(row.seconds for row in rows) if rows else elapsed
    row = Usage(
        name=spec.name,
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        cached_tokens=sum(row.cached_tokens for row in rows),
        completion_tokens=sum(row.completion_tokens for row in rows),
        cost_usd=spec.price_usd or 0.0,
        seconds=seconds,
        price_list="menu",
    )
    return (row,)
