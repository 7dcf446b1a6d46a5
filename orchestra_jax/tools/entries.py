"""The entries of a catalogue: experts by role, plain tools, and what stands around every handler of a run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestra_jax.config.choices import Role
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Recorded, Replay
from orchestra_jax.tools.base import Tool, ToolHandler
from orchestra_jax.tools.catalogue import ROLES, Entry
from orchestra_jax.tools.experts import roles as expert_roles
from orchestra_jax.tools.experts.cards import model_cards
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.types import CODE, SEARCH, ToolResult, ToolSpec

OUT_OF_BUDGET = "This task's budget does not allow the call, so it was not made. Go on with what is known."
_TRAITS: dict[str, tuple[str, ...]] = {Role.query_writer: (SEARCH,), Role.code_writer: (CODE,)}
_NO_NAME = re.compile(r"[^\w-]", re.ASCII)


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
        roles: models by role, see `catalogue.ROLES`.
        clients: by model.
        search: the search that query writers use, with its name in price lists.
        run: what runs the code of code writers, likewise.
        descriptions: what the policy reads about a model beside what its role is; its card's text by default.
        local: models on the user's own machines.

    Raises:
        ValueError: an unknown role.
    """
    entries = []
    for role, models in roles.items():
        if role not in ROLES:
            raise ValueError(f"Experts have the roles {', '.join(ROLES)}, not {role!r}.")
        for model in models:
            client, name = clients[model], _NO_NAME.sub("-", f"{role}-{model}")
            billed = [model]
            match role:
                case "query_writer":
                    spec, handler = expert_roles.query_writer(client, search and within_budget(search[1]), name=name)
                    billed += [search[0]] if search else []
                case "code_writer":
                    spec, handler = expert_roles.code_writer(client, run[1] if run else None, name=name)
                    billed += [run[0]] if run else []
                case "math":
                    spec, handler = expert_roles.maths_model(client, name=name)
                case _:
                    spec, handler = expert_roles.generalist(client, name=name)
            card = model_cards().get(model)
            about = (descriptions or {}).get(model) or (card.about if card else "")
            described = " ".join(filter(None, (spec.description, about, card.origin if card else "")))
            traits = (*(card.traits if card else ()), *_TRAITS.get(role, ()))
            spec = ToolSpec(spec.name, described, spec.parameters, local=model in local, traits=traits)
            entries.append(Entry(spec, within_budget(handler), role, model, tuple(billed)))
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

    Args:
        kind: of the calls, for the record.
        settings: what the answer depends on beside the arguments.
    """

    async def call(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        async def run() -> Recorded:
            answer = await handler(arguments, budget)
            result = ToolResult(answer) if isinstance(answer, str) else answer
            more = {name: value for name in ("final", "refused") if (value := getattr(result, name))}
            value = {"text": result.text, **more} if more else result.text
            return Recorded(value, result.usage, result.is_error)

        found = await replay.call(kind, {"arguments": dict(arguments), **settings}, run)
        told = {"text": found.value} if isinstance(found.value, str) else found.value
        return ToolResult(usage=found.usage, is_error=found.is_error, **told)

    return call
