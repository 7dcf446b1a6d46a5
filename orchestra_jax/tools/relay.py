"""The action that ends a task with a tool's result as the final answer, so that no policy retypes what it was told."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.tools.executor import ToolExecutor, ToolHandler
from orchestra_jax.types import ToolCall, ToolResult, ToolSpec, Usage

_TOOL = {"type": "string", "description": "The tool whose last result it is; left out, the last call's."}
RELAY = ToolSpec(
    name="relay",
    description="Ends the task with the result of a tool as the final answer, word for word.",
    parameters={"type": "object", "properties": {"tool": _TOOL}, "required": []},
    terminal=True,
)


class RelayingExecutor(ToolExecutor):
    """Keeps the last result of each tool of an episode, and hands one over when `relay` is called.

    Errors, refused calls and empty results are not kept. A call beside others of its turn sees those of earlier turns,
    and of its own turn what has ended.
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec],
        handlers: Mapping[str, ToolHandler],
        budget: Budget,
        prices: PriceList | None = None,
        paid: PriceList | None = None,
    ) -> None:
        super().__init__(tools, {**handlers, RELAY.name: self._relay}, budget, prices, paid)
        self._results = dict[str, str]()  # by tool, the last call's at the end

    async def step(self, call: ToolCall) -> ToolResult:
        result = await super().step(call)
        if call.name != RELAY.name and can_relay(result):
            self._results.pop(call.name, None)
            self._results[call.name] = result.text
        return result

    async def _relay(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        name = arguments.get("tool", next(reversed(self._results), None))
        if name in self._results:
            return ToolResult(self._results[name], (Usage(RELAY.name),), final=self._results[name])
        missing = "There is no result to hand over yet: call a tool first."
        if self._results:
            missing = f"There is no result of {name!r}; results are there of {', '.join(self._results)}."
        return ToolResult(missing, is_error=True, refused=True)


def can_relay(result: ToolResult) -> bool:
    """Return whether `relay` would hand over this result."""
    return not (result.is_error or result.refused) and bool(result.text.strip())
