"""The MCP servers of a run, and each of their tools as a plain tool: called, recorded and replayed like any other."""

import asyncio
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from orchestra_jax.config.mcp import McpPrice, McpServer
from orchestra_jax.config.ranges import shown
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.io.stopwatch import worked
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.replay import Replay
from orchestra_jax.money.store import Recorded
from orchestra_jax.processes import several
from orchestra_jax.tools.base import Tool, ToolContext, unreachable
from orchestra_jax.tools.mcp.session import McpSession, changed
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import InfrastructureError, ToolResult, ToolSpec, Usage

_LONGEST_NAME = 64  # of a tool in a menu
_OLDEST = (2, 3)
_FIX = "pip install 'orchestra-jax[mcp]'"
_LISTED = "mcp.tools"  # kind of record


class McpTool(Tool):
    """One tool of a server.

    Args:
        own: its name at the server.
        identity: name, version and protocol of the server, a part of the key of every recorded call.
        session: calls to the server; None if they are only replayed.
    """

    reserves = False

    def __init__(self, spec: ToolSpec, own: str, identity: Mapping[str, str], session: McpSession | None) -> None:
        self.spec, self._own, self._session = spec, own, session
        self.settings = {"server": identity, "tool": own}

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        assert self._session is not None  # what is only replayed is not run
        start = worked()
        result = await self._session.call(self._own, arguments)
        return ToolResult(result.text, (Usage(self.spec.name, seconds=worked() - start),), result.is_error)


class McpServers:
    """The servers of a run.

    Attributes:
        identities: name, version and protocol of each server, by its label.
    """

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._sessions: list[McpSession] = []
        self._background: LoopThread | None = None
        self.identities: dict[str, Mapping[str, str]] = {}

    def tools(self, settings: McpServer) -> list[McpTool]:
        """Return the tools of one server, which is started to list them; in the mode "replay" they are as recorded.

        Raises:
            ValueError: it cannot be used, is another than the recorded one, or has a tool that no menu can offer.
            ImportError: the package is not installed.
        """
        session, replay = None, self._context.replay
        if self._context.live:
            session = self._open(settings)
            try:
                listing = session.listing()
            except InfrastructureError as error:
                raise ValueError(f"{error} Mend it, or leave it out of tools.mcp.") from None
            _keep(listing, settings, replay)
        else:
            recorded = replay.recorded_answer(_LISTED, {"server": settings.label})
            if recorded is None:
                raise ValueError(
                    f"The record has no tool list of the MCP server {shown(settings.label)}: record a run with it "
                    "(replay.mode=replay_or_record), under the same name."
                )
            listing = recorded.value
        identity = listing["server"]
        self.identities[settings.label] = identity
        return [McpTool(spec, own, identity, session) for own, spec in specs(listing, settings).items()]

    async def close(self) -> None:
        """End every connection and every process."""
        await asyncio.gather(*(session.close() for session in self._sessions))
        self.stop()

    def stop(self) -> None:
        """End everything at once, for a run that cannot begin."""
        if self._background is not None:
            self._background.stop()

    def _open(self, settings: McpServer) -> McpSession:
        if sentence := lacking():
            raise ImportError(sentence)
        self._background = self._background or LoopThread("mcp")
        session = McpSession(settings, self._background, several.processes_of_run().share(settings.concurrency))
        self._sessions.append(session)
        return session


def lacking() -> str | None:
    """Return the sentence for a package `mcp` that is not there or too old, or None; import nothing."""
    try:
        found = metadata.version("mcp")
    except metadata.PackageNotFoundError:
        return f"tools.mcp needs the package mcp, {_OLDEST[0]}.{_OLDEST[1]} or newer: {_FIX}."
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) >= _OLDEST:
        return None
    return (
        f"tools.mcp needs the package mcp, {_OLDEST[0]}.{_OLDEST[1]} or newer, and {found} is installed: {_FIX}; a "
        "server that needs an older one runs in an environment of its own (docs/mcp.md)."
    )


def problems(servers: Sequence[McpServer]) -> list[str]:
    """Return a sentence, with the fix, for everything that servers lack; start nothing."""
    if servers and (sentence := lacking()):
        return [sentence]
    found = []
    for settings in servers:
        label = f"the MCP server {shown(settings.label)}"
        found += [
            f"Set the environment variable {shown(name)}: {label} needs it."
            for name in settings.variables
            if name not in os.environ
        ]
        if settings.url:
            found += unreachable(label, settings.url, "tools.mcp")
        elif shutil.which(program := shlex.split(settings.server)[0]) is None:
            found.append(f"tools.mcp: there is no program {shown(program)} to start {label}: install it, or mend it.")
    return found


def _keep(listing: Mapping[str, Any], settings: McpServer, replay: Replay) -> None:
    """Record what a server offers, for a replay; raise ValueError: the record has calls of another server."""
    request = {"server": settings.label}
    known = replay.recorded_answer(_LISTED, request) if replay.mode == "replay_or_record" else None
    if known is None:
        replay.keep_now(_LISTED, request, Recorded(listing))
    elif known.value != listing:
        raise ValueError(
            f"The MCP server {shown(settings.label)} {changed(known.value, listing)}, and what is recorded does not "
            "hold for it: record to another replay.path, or give it another name in tools.mcp."
        )


def specs(listing: Mapping[str, Any], settings: McpServer) -> dict[str, ToolSpec]:
    """Return the tools to offer, each checked once, by the names that their server has for them.

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
