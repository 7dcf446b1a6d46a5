"""The tools of a server's list as a menu offers them: names, descriptions, schemas and prices, each checked once."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from orchestra_jax.config.mcp import McpPrice, McpServer
from orchestra_jax.config.ranges import shown
from orchestra_jax.tools.spec_check import check_spec
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
    if len(tools) < len(listing["tools"]):
        (twice, _), *_ = Counter(str(tool["name"]) for tool in listing["tools"]).most_common(1)
        raise ValueError(f"{where} lists two tools of the name {shown(twice)}: mend it, or leave it out of tools.mcp.")
    chosen = settings.tools or list(tools)
    for key, names in (("tools", chosen), ("prices", list(settings.prices))):
        if unknown := [name for name in names if name not in tools]:
            raise ValueError(
                f"{where} has no tool {shown(unknown[0])}, which {key} of tools.mcp names: it has "
                f"{', '.join(map(shown, tools)) or 'none'}."
            )
    if not chosen:
        raise ValueError(f"{where} offers no tool: leave it out of tools.mcp.")
    found, taken = dict[str, ToolSpec](), dict[str, str]()
    for name in chosen:
        try:
            found[name] = _spec(tools[name], settings)
        except ValueError as error:
            others = ", ".join(other for other in chosen if other != name)
            fix = f" Offer only its others with {{server: ..., tools: [{shown(others)}]}}." if others else ""
            raise ValueError(f"{where} has a tool that no menu can offer. {error}{fix}") from None
        if (other := taken.setdefault(found[name].name, name)) != name:
            raise ValueError(
                f"{where} lists {shown(other)} and {shown(name)}, which are both called {found[name].name} in a menu: "
                "offer one of them with {server: ..., tools: [...]}."
            )
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
    return spec
