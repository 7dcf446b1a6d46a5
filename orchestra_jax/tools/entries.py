"""The entries of a catalogue: experts by role, plain tools, and what stands around every handler of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestra_jax.config.choices import Role
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Recorded, Replay
from orchestra_jax.tools.base import Tool
from orchestra_jax.tools.catalogue import Entry
from orchestra_jax.tools.executor import ToolHandler, as_result
from orchestra_jax.tools.experts.cards import model_cards
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.roles import ROLES, expert_tool
from orchestra_jax.types import CODE, SEARCH, InfrastructureError, ToolResult

OUT_OF_BUDGET = "This task's budget does not allow the call, so it was not made. Go on with what is known."
_TRAITS: dict[str, tuple[str, ...]] = {Role.query_writer: (SEARCH,), Role.code_writer: (CODE,)}


def expert_entries(
    roles: Mapping[str, Sequence[str]],
    clients: Mapping[str, ExpertClient],
    *,
    search: tuple[str, ToolHandler] | None = None,
    run: tuple[str, ToolHandler] | None = None,
    descriptions: Mapping[str, str] | None = None,
    local: Sequence[str] = (),
) -> list[Entry]:
    """An entry for every model in every role that it plays.

    Args:
        roles: models by role of ROLES.
        clients: by model.
        search: the search that query writers use, with its name in price lists.
        run: what runs the code of code writers, likewise.
        descriptions: what the policy reads about a model beside what its role is; its card's text by default.
        local: models on the user's own machines.

    Raises:
        ValueError: an unknown role.
    """
    entries = []
    follow = {Role.query_writer: search, Role.code_writer: run}
    for role, models in roles.items():
        if role not in ROLES:
            raise ValueError(f"Experts have the roles {', '.join(ROLES)}, not {role!r}.")
        behind = follow.get(Role(role))
        for model in models:
            card = model_cards().get(model)
            about = (descriptions or {}).get(model) or (card.about if card else "")
            spec, handler = expert_tool(
                role,
                clients[model],
                within_budget(behind[1]) if behind else None,
                name=f"{role}-{model}",
                description=" ".join(filter(None, (ROLES[role].description, about, card.origin if card else ""))),
                local=model in local,
                traits=(*(card.traits if card else ()), *_TRAITS.get(role, ())),
            )
            billed = (model, behind[0]) if behind else (model,)
            entries.append(Entry(spec, within_budget(handler), role=role, model=model, billed=billed))
    return entries


def plain_entry(tool: Tool, prices: PriceList, replay: Replay) -> Entry:
    """A plain tool: charged by the price list, where that has its name, else by its own price per call."""
    spec = tool.spec
    listed = tool.listed and (spec.price_usd is None or spec.name in prices.entries)
    if listed:
        spec = replace(spec, price_usd=None, latency_s=None)
    handler = tool.run if tool.settings is None else recorded(spec.name, tool.run, replay, tool.settings)
    return Entry(spec, within_budget(handler), billed=(spec.name,) if listed else ())


def within_budget(handler: ToolHandler) -> ToolHandler:
    """The same handler, for which a trajectory's own budget is an observation.

    That the budget of a trajectory is used up is its policy's doing; that of a step or run ends the run.
    """

    async def call(arguments: Mapping[str, Any], budget: Budget) -> ToolResult | str:
        try:
            return await handler(arguments, budget)
        except BudgetExceeded as error:
            if error.scope != "trajectory":
                raise
            return ToolResult(OUT_OF_BUDGET, is_error=True, refused=True)

    return call


def recorded(kind: str, handler: ToolHandler, replay: Replay, settings: Mapping[str, Any]) -> ToolHandler:
    """A tool of this machine with a place in the record: replayed, its seconds and so its cost are the recorded ones.

    `settings` are what the answer depends on beside the arguments.
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
