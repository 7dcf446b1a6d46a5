"""The action that ends a task with a tool's result as the final answer, so that no policy retypes what it was told."""

from collections.abc import Mapping
from typing import Any

from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.executor import ToolHandler, as_result
from orchestra_jax.types import ToolResult, ToolSpec, Usage

_TOOL = {"type": "string", "description": "The tool whose last result it is; left out, the last call's."}
RELAY = ToolSpec(
    name="relay",
    description="Ends the task with the result of a tool as the final answer, word for word.",
    parameters={"type": "object", "properties": {"tool": _TOOL}, "required": []},
    terminal=True,
)
NO_RESULT = "There is no result to hand over yet: call a tool first."


def relaying(handlers: Mapping[str, ToolHandler]) -> dict[str, ToolHandler]:
    """Return the handlers of an episode, with one for `relay`, which answers with the last result of the others.

    Errors, refused calls and empty results are not handed over. A call beside others of its turn sees the results of
    earlier turns, and of its own turn those that are there already.
    """
    results = dict[str, str]()  # by tool, the last call's at the end

    def kept(name: str, handler: ToolHandler) -> ToolHandler:
        async def call(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
            result = as_result(await handler(arguments, budget))
            if can_relay(result):
                results.pop(name, None)
                results[name] = result.text
            return result

        return call

    async def relay(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        name = arguments.get("tool", next(reversed(results), None))
        if name in results:
            return ToolResult(results[name], (Usage(RELAY.name),), final=results[name])
        missing = (
            f"There is no result of {name!r}; results are there of {', '.join(results)}." if results else NO_RESULT
        )
        return ToolResult(missing, is_error=True, refused=True)

    return {name: kept(name, handler) for name, handler in handlers.items()} | {RELAY.name: relay}


def can_relay(result: ToolResult) -> bool:
    """Return whether `relay` would hand over this result."""
    return not (result.is_error or result.refused) and bool(result.text.strip())
