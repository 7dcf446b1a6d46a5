"""Plain tools as entries of a catalogue, and the wrappers that every handler of a run gets: budget and record."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.money.reservations import acquire
from orchestra_jax.money.store import Recorded
from orchestra_jax.tools.answer_tool import ANSWER_TOOL
from orchestra_jax.tools.base import Tool
from orchestra_jax.tools.catalogue import Entry
from orchestra_jax.tools.executor import ToolHandler, as_result
from orchestra_jax.tools.relay import RELAY
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import InfrastructureError, ToolResult, Usage

OUT_OF_BUDGET = "This task's budget does not allow the call, so it was not made. Go on with what is known."


class AnswerTool(Tool):
    """Ends the task with its argument."""

    spec = ANSWER_TOOL
    listed = False
    settings = None

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        return ToolResult("The answer is given.", (Usage(self.spec.name),), final=arguments["answer"])


def relay_entry() -> Entry:
    """Return the entry of `relay` in a catalogue; `tools.relay` makes its handler for each episode."""

    async def absent(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        raise AssertionError("The handler of `relay` is made for each episode.")

    return Entry(RELAY, absent)


def plain_entry(tool: Tool, prices: PriceList, replay: Replay) -> Entry:
    """Return the entry of a plain tool, charged by the price list if that names it, else by its own price per call.

    Raises:
        ValueError: see `check_spec`.
    """
    spec = tool.spec
    check_spec(spec)
    listed = tool.listed and (spec.price_usd is None or spec.name in prices.entries)
    if listed:
        spec = replace(spec, price_usd=None, latency_s=None)
    run = tool.run if tool.reserves or not spec.price_usd else at_price(tool.run, spec.name, spec.price_usd)
    handler = run if tool.settings is None else recorded(spec.name, run, replay, tool.settings)
    return Entry(spec, within_budget(handler), billed=(spec.name,) if listed else ())


def at_price(handler: ToolHandler, name: str, usd: float) -> ToolHandler:
    """Wrap a handler so that budgets count its price per call. A call that failed counts: it may have been paid for."""

    async def call(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        price = Usage(name, cost_usd=usd)
        reservation = await acquire(budget, price)
        try:
            result = as_result(await handler(arguments, budget))
        except BaseException:
            reservation.settle(price)
            raise
        if result.refused:
            reservation.release()
        else:
            reservation.settle(price)
        return result

    return call


def within_budget(handler: ToolHandler) -> ToolHandler:
    """Wrap a handler so that a trajectory whose own budget is used up reads that as an observation.

    Its policy spent that budget. The budget of a step or run ends the run.
    """

    async def call(arguments: Mapping[str, Any], budget: Budget) -> ToolResult | str:
        try:
            return await handler(arguments, budget)
        except BudgetExceeded as error:
            if error.scope != "trajectory":
                raise
            return ToolResult(OUT_OF_BUDGET, error.usage, is_error=True, refused=True)

    return call


def recorded(kind: str, handler: ToolHandler, replay: Replay, settings: Mapping[str, Any]) -> ToolHandler:
    """Wrap a handler of this machine so that its calls are recorded; a replayed call has the recorded seconds and cost.

    Args:
        settings: all that an answer depends on beside the arguments.
    """

    async def call(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        async def run() -> Recorded:
            result = as_result(await handler(arguments, budget))
            more = {name: value for name in ("final", "refused") if (value := getattr(result, name))}
            value = {"text": result.text, **more} if more else result.text
            return Recorded(value, result.usage, result.is_error)

        found = await replay.call(kind, {"arguments": dict(arguments), **settings}, run)
        told = {"text": found.value} if isinstance(found.value, str) else found.value
        try:
            result = ToolResult(usage=found.usage, is_error=found.is_error, **told)
            return as_result(result)
        except (TypeError, AttributeError):
            said = f"What is recorded of a call of {kind} is no answer of it; record to another replay.path."
            raise InfrastructureError(said) from None

    return call
