"""Experts as entries of a catalogue: one for every model in every role that it plays."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestra_jax.config.roles import Role
from orchestra_jax.tools.catalogue import Entry
from orchestra_jax.tools.entries import within_budget
from orchestra_jax.tools.executor import ToolHandler
from orchestra_jax.tools.experts.cards import model_cards
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.roles import ROLES, expert_tool
from orchestra_jax.types import CODE, SEARCH

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
    """Return an entry for every model in every role that it plays.

    Args:
        search: the search that query writers use: its name in price lists, and its handler.
        run: name and handler of the sandbox that runs the code of code writers.
        descriptions: texts for the policy about the models, beside those of the roles; by default their cards' texts.

    Raises:
        ValueError: an unknown role.
    """
    entries = list[Entry]()
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
            while any(entry.spec.name == spec.name for entry in entries):  # of a model like "m.1" beside "m-1"
                spec = replace(spec, name=f"{spec.name}-2")
            billed = (model, behind[0]) if behind else (model,)
            entries.append(Entry(spec, within_budget(handler), role=role, model=model, billed=billed))
    return entries
