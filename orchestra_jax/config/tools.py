"""Settings of tools; docs/tools.md."""

from dataclasses import dataclass, field, replace
from typing import Any

from orchestra_jax.config.choices import MenuForm, SandboxIsolation, WebProvider
from orchestra_jax.config.ranges import Settings, above, at_least, seconds, text, within


@dataclass(frozen=True)
class MenuRule(Settings):
    """The draw of each instance's menu (section 3.3)."""

    form: MenuForm = MenuForm.separate  # a tool for each expert; the paper's three functions; or nothing to call
    subset: bool = False  # a random subset per instance, else everything
    fewest: int = at_least(2, 1)  # fewest tools of a menu (models of each function in the released form)
    most: int | None = at_least(None, 1)  # most tools of a menu; null: all
    self_hosted: float = within(0.0, 0, 1)  # chance of each model with open weights to run on the user's own machines
    always: list[str] = field(default_factory=list)  # tools that every random subset has, such as python
    aliases: bool = False  # experts are called expert-1, expert-2, ... in the random order of each menu
    letters: bool = False  # aliases are letters, A to Z, drawn at random: a small policy chooses by one token


@dataclass(frozen=True)
class EvaluationOffer(Settings):
    """Tools that evaluation offers instead of the training's."""

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
    max_tokens: int | None = at_least(None, 1)  # tokens of a reply, reasoning included; null: the model's, or 4,096
    timeout_s: float = seconds(300.0)  # seconds for one request
    retries: int = at_least(4, 0)  # further requests after a failed one
    concurrency: int = at_least(32, 1)  # requests under way at once, of all processes of the run together
    requests_per_minute: float | None = above(None, 0)  # requests a minute of all processes together; null: no limit


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
    url: str | None = text(None, url=True)  # address of its API; null: the provider's own


@dataclass(frozen=True)
class SandboxConfig(Settings):
    """The sandbox that runs python."""

    timeout_s: float = seconds(10.0)  # seconds per execution
    workers: int = at_least(2, 1)  # processes
    isolation: SandboxIsolation = SandboxIsolation.auto  # none: code has your rights
    url: str | None = text(None, url=True)  # a sandbox server that runs the code instead


@dataclass(frozen=True)
class ToolsConfig(Settings):
    """The tools; docs/tools.md."""

    names: list[str] = field(default_factory=list)  # plain tools, also module:function of your own (docs/add_a_tool.md)
    mcp: list[Any] = field(default_factory=list)  # MCP servers: commands, addresses, or mappings (docs/mcp.md)
    menu: MenuRule = field(default_factory=MenuRule)
    experts: dict[str, list[str]] = field(default_factory=dict)  # role -> models of the price list that play it
    evaluation: EvaluationOffer = field(default_factory=EvaluationOffer)
    server: ExpertServer = field(default_factory=ExpertServer)
    relay: bool = False  # every menu has `relay`, which hands over a tool's result as the final answer (docs/tools.md)
    experts_file: str | None = None  # YAML of experts with servers, context and limits of their own (docs/tools.md)
    descriptions: str | None = None  # file of experiments/describe_tools.py, read before what conf/models.yaml says
    self_hosted: list[str] = field(default_factory=list)  # experts on the user's own machines in every menu
    simulated: dict[str, Any] = field(default_factory=dict)  # experts that cost nothing (docs/descriptions.md)
    judge: str = "match"  # who compares answers: "match" (normalised text and numbers) or a model of the price list
    search: LocalSearchConfig = field(default_factory=LocalSearchConfig)
    web: WebConfig = field(default_factory=WebConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)

    @property
    def evaluated(self) -> "ToolsConfig":
        """The tools as evaluation offers them."""
        offer = self.evaluation
        if not offer.own:
            return self._on_the_menu
        return replace(self, names=offer.names, mcp=offer.mcp, experts=offer.experts, menu=offer.menu)._on_the_menu

    @property
    def opened(self) -> "ToolsConfig":
        """The tools of training and of evaluation, which a run opens once for both."""
        own, evaluated = self._on_the_menu, self.evaluated
        names = list(dict.fromkeys([*own.names, *evaluated.names]))
        experts = {
            role: list(dict.fromkeys([*own.experts.get(role, []), *evaluated.experts.get(role, [])]))
            for role in (own.experts | evaluated.experts)
        }
        mcp = [*own.mcp, *(entry for entry in evaluated.mcp if entry not in own.mcp)]
        return replace(self, names=names, mcp=mcp, experts=experts)

    @property
    def _on_the_menu(self) -> "ToolsConfig":
        """The tools without those that the menu does not show."""
        return replace(self, names=[], mcp=[], experts={}) if self.menu.form is MenuForm.none else self
