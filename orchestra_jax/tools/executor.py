"""Checks, runs and charges the calls of an episode."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from orchestra_jax.io.stopwatch import worked
from orchestra_jax.io.untrusted import valid_text
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.prices import PriceList, call_rows
from orchestra_jax.tools.schema import validate_arguments
from orchestra_jax.types import InfrastructureError, ToolCall, ToolResult, ToolSpec

# Executes a call: (its validated arguments, the budget that pays for it) -> what the policy reads.
ToolHandler = Callable[[Mapping[str, Any], Budget], Awaitable[ToolResult | str]]


def as_result(answer: ToolResult | str) -> ToolResult:
    """Return what a handler gave, text or result, as a result whose texts every tokenizer takes."""
    result = ToolResult(answer) if isinstance(answer, str) else answer
    final = None if result.final is None else valid_text(result.final)
    return replace(result, text=valid_text(result.text), final=final)


class ToolExecutor:
    """Validates, executes and charges the calls of one episode; the price is by `money.prices.call_rows`.

    A call that was refused (see `ToolResult`) costs what its rows say: nothing, as a rule.

    Args:
        handlers: handlers by tool name; there may be more than the menu has.
        shown: price list that the instance shows; None: a tool's own rows stay as they are.
        paid: price list of the dollars in a tool's own rows; None: `shown`.

    Raises:
        ValueError: a tool of the menu has no handler, or two tools share a name.
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec],
        handlers: Mapping[str, ToolHandler],
        budget: Budget,
        shown: PriceList | None = None,
        paid: PriceList | None = None,
    ) -> None:
        self.tools, self.shown = tuple(tools), shown
        self._specs = {spec.name: spec for spec in self.tools}
        self._handlers, self._budget, self._paid = handlers, budget, paid
        if len(self._specs) != len(self.tools):
            raise ValueError(f"Two tools of the menu share a name: {sorted(spec.name for spec in self.tools)}.")
        if missing := [name for name in self._specs if name not in handlers]:
            raise ValueError(f"No handler for tool {missing[0]!r}; this environment offers {sorted(handlers)}.")

    async def step(self, call: ToolCall) -> ToolResult:
        """Execute one call; see `Episode.step`."""
        if (spec := self._specs.get(call.name)) is None:
            said = f"Unknown tool {call.name!r}; the available tools are: {', '.join(self._specs) or 'none'}."
            return ToolResult(said, is_error=True, refused=True)
        if (problem := validate_arguments(spec, call.arguments)) is not None:
            return ToolResult(problem, is_error=True, refused=True)
        start, charged = worked(), partial(call_rows, shown=self.shown, paid=self._paid)
        free = replace(spec, price_usd=None)  # the price per call is of executed ones
        try:
            result = as_result(await self._handlers[call.name](call.arguments, self._budget))
        except (InfrastructureError, BudgetExceeded) as error:
            rows = charged(free, error.usage, 0.0) if error.usage else ()
            error.usage = tuple(replace(row, seconds=0.0) for row in rows)  # that time is not the trajectory's
            raise
        if result.refused and not result.usage:
            return result
        return replace(result, usage=charged(free if result.refused else spec, result.usage, worked() - start))
