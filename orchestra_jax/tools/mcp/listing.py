"""The tools of a server's list as a menu offers them: names, descriptions, schemas and prices, each checked once."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestra_jax.config.mcp import McpPrice, McpServer
from orchestra_jax.config.ranges import shown
from orchestra_jax.tools.schema import check_spec
from orchestra_jax.types import ToolSpec

_LONGEST_NAME = 64


def specs(listing: Mapping[str, Any], settings: McpServer) -> dict[str, ToolSpec]:
    """Return the tools to offer, by the names that their server has for them.

    Args:
        listing: list of the server, see `McpSession.listing`.
        settings: settings of the server.

    Raises:
        ValueError: one sentence, with the fix, for the first thing that cannot be offered.
    """
    where, tools = f"The MCP server {shown(settings.label)}", {str(tool["name"]): tool for tool in listing["tools"]}
    chosen = settings.tools or list(tools)
    for key, names in (("tools", chosen), ("prices", list(settings.prices))):
        if unknown := [name for name in names if name not in tools]:
            raise ValueError(
                f"{where} has no tool {shown(unknown[0])}, which {key} of tools.mcp names: it has "
                f"{', '.join(map(shown, tools)) or 'none'}."
            )
    if not chosen:
        raise ValueError(f"{where} offers no tool: leave it out of tools.mcp.")
    found = {}
    for name in chosen:
        try:
            found[name] = _spec(tools[name], settings)
        except ValueError as error:
            others = ", ".join(other for other in chosen if other != name)
            fix = f" Offer only its others with {{server: ..., tools: [{shown(others)}]}}." if others else ""
            raise ValueError(f"{where} has a tool that no menu can offer. {error}{fix}") from None
    return found


def _spec(tool: Mapping[str, Any], settings: McpServer) -> ToolSpec:
    name = f"{settings.name}_{tool['name']}" if settings.name else tool["name"]
    price = settings.prices.get(tool["name"], McpPrice())
    spec = ToolSpec(
        # Servers may use dots and slashes, for which chat templates and the API of OpenAI have no place.
        name=re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_LONGEST_NAME],
        description=" ".join(tool["description"].split()) or f"The tool {name}.",
        parameters=tool["schema"],
        price_usd=price.price_usd,
        latency_s=price.latency_s,
        local=settings.local,
    )
    check_spec(spec)
    for reference in _references(spec.parameters):
        if not _is_internal(reference, spec.parameters):
            raise ValueError(f"The parameters of tool {spec.name!r} refer to {shown(reference)}, which is not in them.")
    return spec


def _references(node: Any) -> Iterator[str]:
    """Yield every `$ref` of a schema."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            else:
                yield from _references(value)
    elif isinstance(node, list):
        for item in node:
            yield from _references(item)


def _is_internal(reference: str, root: Any) -> bool:
    """Return whether a reference is to a part of the schema itself: nothing is fetched while a call is checked."""
    if not reference.startswith("#"):
        return False
    if not reference.startswith("#/"):
        return reference == "#"
    node = root
    for part in reference[2:].split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, Mapping) and part in node:
            node = node[part]
        else:
            return False
    return True
