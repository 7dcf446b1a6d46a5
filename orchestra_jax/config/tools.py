"""Settings of what can be called; docs/tools.md. Each group is passed on as it is."""

import shlex
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestra_jax.config.choices import MenuForm, SandboxIsolation, WebProvider
from orchestra_jax.config.ranges import ConfigError, Settings, above, at_least, is_url, seconds, shown, text, within

T = TypeVar("T")


@dataclass(frozen=True)
class MenuRule(Settings):
    """How the menus of instances are drawn (section 3.3)."""

    form: MenuForm = MenuForm.separate  # a tool for each expert; the paper's three functions; or nothing to call
    subset: bool = False  # a random subset per instance, else everything
    fewest: int = at_least(2, 1)  # fewest tools of one (models of each function in the released form)
    most: int | None = at_least(None, 1)  # most; null: all
    self_hosted: float = within(0.0, 0, 1)  # chance of each model with open weights to run on the user's own machines
    always: list[str] = field(default_factory=list)  # tools that every random subset has, such as python
    aliases: bool = False  # experts are called expert-1, expert-2, ... in the random order of each menu
    letters: bool = False  # or by random letters, A to Z: a small policy chooses one token, not a number's digits


@dataclass(frozen=True)
class EvaluationOffer(Settings):
    """What evaluation offers in the place of what training does."""

    own: bool = False  # false: evaluation offers tools.names, mcp, experts and menu, and what follows is unused
    names: list[str] = field(default_factory=list)  # see tools.names
    mcp: list[Any] = field(default_factory=list)  # see tools.mcp
    experts: dict[str, list[str]] = field(default_factory=dict)  # see tools.experts
    menu: MenuRule = field(default_factory=MenuRule)  # see tools.menu


@dataclass(frozen=True)
class ExpertServer(Settings):
    """The OpenAI-compatible server of the experts that tools.experts_file does not name."""

    url: str | None = text(None, url=True)  # such as http://10.0.0.5:8000/v1
    api_key_env: str | None = None  # environment variable with its key; null: it wants none
    context_tokens: int | None = at_least(None, 2)  # prompt and reply; null: the model's (conf/models.yaml), or 32,768
    max_tokens: int | None = at_least(None, 1)  # of a reply, reasoning included; null: the model's, or 4,096
    timeout_s: float = seconds(300.0)  # seconds for one request
    retries: int = at_least(4, 0)  # further requests after a failed one
    concurrency: int = at_least(32, 1)  # requests under way at once, of all processes of the run together
    requests_per_minute: float | None = above(None, 0)  # likewise; null: no limit


@dataclass(frozen=True)
class LocalSearchConfig(Settings):
    """Passages that are searched on this machine."""

    corpus: str | None = None  # file of passages, searched by keywords
    index: str | None = text(None, url="if http")  # instead: folder of experiments/index.py, or a server's http address
    embedder_url: str | None = text(None, url=True)  # where the index's embedding server is now; null: where it was
    top_k: int = at_least(3, 1)  # passages per search


@dataclass(frozen=True)
class WebConfig(Settings):
    """Web search."""

    provider: WebProvider = WebProvider.tavily  # tavily: with the key TAVILY_API_KEY; wikipedia: without one
    url: str | None = text(None, url=True)  # of its API; null: the provider's own
    timeout_s: float = seconds(30.0)  # seconds for one request


@dataclass(frozen=True)
class SandboxConfig(Settings):
    """Where python runs."""

    timeout_s: float = seconds(10.0)  # seconds per execution
    workers: int = at_least(2, 1)  # processes
    isolation: SandboxIsolation = SandboxIsolation.auto  # none: code has your rights
    url: str | None = text(None, url=True)  # a sandbox server that runs the code instead


@dataclass(frozen=True)
class McpPrice(Settings):
    """What a call of one tool of a server costs, where the price list has no entry of its name."""

    price_usd: float = at_least(0.0, 0)  # dollars per call; 0 is free
    latency_s: float | None = at_least(None, 0)  # seconds that menu and reward count; null: measured


@dataclass(frozen=True)
class McpServer(Settings):
    """An MCP server whose tools can be called: one entry of `tools.mcp`; docs/mcp.md."""

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
        """Its address; None: it is a command."""
        return self.server if is_url(self.server) else None

    @property
    def label(self) -> str:
        """What sentences and the record call it."""
        return self.name or self.server

    @property
    def variables(self) -> list[str]:
        """The environment variables that it needs."""
        return list(self.headers.values()) if self.url else self.env


@dataclass(frozen=True)
class ToolsConfig(Settings):
    """What can be called; docs/tools.md."""

    names: list[str] = field(default_factory=list)  # plain tools, also module:function of your own (docs/add_a_tool.md)
    mcp: list[Any] = field(default_factory=list)  # MCP servers: commands, addresses, or mappings (docs/mcp.md)
    menu: MenuRule = field(default_factory=MenuRule)
    experts: dict[str, list[str]] = field(default_factory=dict)  # role -> models of the price list that play it
    evaluation: EvaluationOffer = field(default_factory=EvaluationOffer)
    server: ExpertServer = field(default_factory=ExpertServer)
    experts_file: str | None = None  # YAML of experts with servers, context and limits of their own (docs/tools.md)
    descriptions: str | None = None  # file of experiments/describe_tools.py, read before what conf/models.yaml says
    self_hosted: list[str] = field(default_factory=list)  # experts on the user's own machines in every menu
    simulated: dict[str, Any] = field(default_factory=dict)  # experts that cost nothing (docs/descriptions.md)
    judge: str = "match"  # who compares answers: "match" (normalised text and numbers) or a model of the price list
    search: LocalSearchConfig = field(default_factory=LocalSearchConfig)
    web: WebConfig = field(default_factory=WebConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)

    @property
    def mcp_servers(self) -> list[McpServer]:
        """The servers of `mcp`, each once; ConfigError: an entry is none."""
        return [mcp_server(entry, f"tools.mcp[{index}]") for index, entry in enumerate(self.mcp)]

    @property
    def evaluated(self) -> "ToolsConfig":
        """The tools as evaluation offers them."""
        offer = self.evaluation
        own = self
        if offer.own:
            own = replace(self, names=offer.names, mcp=offer.mcp, experts=offer.experts, menu=offer.menu)
        return own._shown

    @property
    def opened(self) -> "ToolsConfig":
        """The tools of training and of evaluation, which a run opens once for both."""
        own, evaluated = self._shown, self.evaluated
        names = list(dict.fromkeys([*own.names, *evaluated.names]))
        roles = dict.fromkeys([*own.experts, *evaluated.experts])
        both = {
            role: list(dict.fromkeys([*own.experts.get(role, []), *evaluated.experts.get(role, [])])) for role in roles
        }
        mcp = [*own.mcp, *(entry for entry in evaluated.mcp if entry not in own.mcp)]
        return replace(self, names=names, mcp=mcp, experts=both)

    @property
    def _shown(self) -> "ToolsConfig":
        """Without what the menu does not show."""
        return replace(self, names=[], mcp=[], experts={}) if self.menu.form is MenuForm.none else self


# Of a server with a name: what may differ between a run and its continuation.
MCP_MAY_MOVE = ("server", "env", "headers", "timeout_s", "retries", "concurrency")


def mcp_server(entry: Any, key: str) -> McpServer:
    """The server of one entry: a command or address, or a mapping with the fields of `McpServer`.

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
    """The dataclass with these values; raises ConfigError."""
    try:
        return cast(T, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), given)))
    except (OmegaConfBaseException, ConfigError, ValueError) as error:
        known = ", ".join(field.name for field in fields(kind))  # type: ignore[arg-type]
        raise ConfigError(
            f"{key}: {shown(str(error).splitlines()[0].rstrip('.'))}; its settings are {known}."
        ) from None
