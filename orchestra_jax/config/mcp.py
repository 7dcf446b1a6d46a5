"""Settings of an MCP server whose tools can be called: one entry of `tools.mcp`; docs/mcp.md."""

import shlex
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestra_jax.config.addresses import is_url
from orchestra_jax.config.ranges import ConfigError, Settings, at_least, seconds, shown
from orchestra_jax.config.tools import ToolsConfig

T = TypeVar("T")


@dataclass(frozen=True)
class McpPrice(Settings):
    """Price and latency of one tool, where the price list has no entry of its name."""

    price_usd: float = at_least(0.0, 0)  # dollars per call; 0 is free
    latency_s: float | None = at_least(None, 0)  # seconds that menu and reward count; null: measured


@dataclass(frozen=True)
class McpServer(Settings):
    """One MCP server."""

    server: str  # the command that starts it, or its http address (streamable HTTP)
    name: str | None = None  # stands before the names of its tools, and for the server in the record
    tools: list[str] = field(default_factory=list)  # the ones to offer, as it names them; empty: all
    prices: dict[str, McpPrice] = field(default_factory=dict)  # by tool, as the server names it
    local: bool = False  # its tools run on the user's own machine
    env: list[str] = field(default_factory=list)  # environment variables that a command gets too, by name
    headers: dict[str, str] = field(default_factory=dict)  # of HTTP requests: the variable that holds the value
    timeout_s: float = seconds(60.0)  # seconds for one call
    retries: int = at_least(2, 0)  # further tries to start or reach it
    concurrency: int = at_least(32, 1)  # calls under way at once, of all processes of the run together

    @property
    def url(self) -> str | None:
        """The server's address, or None if it is a command."""
        return self.server if is_url(self.server) else None

    @property
    def label(self) -> str:
        """The name of the server in sentences and in the record."""
        return self.name or self.server

    @property
    def variables(self) -> list[str]:
        """The environment variables that the server needs."""
        return list(self.headers.values()) if self.url else self.env


def mcp_servers(tools: ToolsConfig) -> list[McpServer]:
    """Return the servers of tools.mcp, each once; raise ConfigError where an entry is none."""
    return [mcp_server(entry, f"tools.mcp[{index}]") for index, entry in enumerate(tools.mcp)]


def mcp_server(entry: Any, key: str) -> McpServer:
    """Return the server of one entry: a command or address, or a mapping with the fields of `McpServer`.

    Raises:
        ConfigError: one sentence that begins with `key`.
    """
    given = {"server": entry} if isinstance(entry, str) else entry
    if not isinstance(given, dict) or not given.get("server"):
        raise ConfigError(f"{key}={shown(entry)} names no server: write a command, an address, or {{server: ...}}.")
    prices = given.get("prices") or {}
    if not isinstance(prices, dict):
        raise ConfigError(f"{key}: prices={shown(prices)} is no mapping: write {{TOOL: {{price_usd: 0.01}}}}.")
    found = _typed(McpServer, {name: value for name, value in given.items() if name != "prices"}, key)
    found = replace(found, prices={str(tool): _typed(McpPrice, given, key) for tool, given in prices.items()})
    if found.server.startswith(("http:", "https:")) and not found.url:
        raise ConfigError(f"{key}: {shown(found.server)} is no address such as http://HOST:PORT/mcp: change it.")
    try:
        words = shlex.split(found.server)
    except ValueError as error:
        raise ConfigError(f"{key}: the command {shown(found.server)} cannot be read ({error}): mend it.") from None
    if not words:
        raise ConfigError(f"{key} is an empty command: name a program.")
    if found.url and found.env:
        raise ConfigError(f"{key}: env is for a command; the headers of an address are {{HEADER: VARIABLE}}.")
    if found.headers and not found.url:
        raise ConfigError(f"{key}: headers are for an address; a command gets variables with env: [VARIABLE].")
    return found


def _typed(kind: type[T], given: Any, key: str) -> T:
    """Return the dataclass with these values, or raise ConfigError."""
    try:
        return cast(T, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), given)))
    except (OmegaConfBaseException, ConfigError, ValueError) as error:
        known = ", ".join(field.name for field in fields(kind))  # type: ignore[arg-type]
        raise ConfigError(
            f"{key}: {shown(str(error).splitlines()[0].rstrip('.'))}; its settings are {known}."
        ) from None
