"""Make the tools of a run from its configuration, and tell what they lack.

Experts, judge and MCP servers are plug-ins: they are imported only when a configuration names them.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from orchestra_jax.config.mcp import McpServer, mcp_servers
from orchestra_jax.config.missing import missing_inputs
from orchestra_jax.config.record import note
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.config.tools import ToolsConfig
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.price_book import PriceBook, price_book
from orchestra_jax.money.prices import MissingPrice, PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.base import TOOLS, MakeTool, Tool, ToolContext, unreachable
from orchestra_jax.tools.catalogue import Catalogue, Entry, models_of
from orchestra_jax.tools.entries import plain_entry, relay_entry
from orchestra_jax.tools.python.isolation import IsolationError
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import InfrastructureError, ToolResult

if TYPE_CHECKING:
    from orchestra_jax.tools.experts.client import ExpertClient
    from orchestra_jax.tools.experts.judge import Judge
    from orchestra_jax.tools.mcp.servers import McpServers


@dataclass(frozen=True)
class RunTools:
    """The tools of a run.

    Attributes:
        evaluation: catalogue of evaluation: the tools of tools.evaluation, at the prices of pricing.name, undrawn.
        judge: judge of answers; None where they are only matched.
    """

    catalogue: Catalogue
    evaluation: Catalogue
    judge: "Judge | None"
    close: Callable[[], Awaitable[None]]


def make_tools(cfg: WorldConfig, answers: Sequence[str] = ()) -> RunTools:
    """Make all tools of a run and open what they need. With replay.mode=replay that is the record alone.

    Args:
        answers: answers to some questions of the run, which simulated experts give where they are wrong and know
            nothing nearer.

    Raises:
        ConfigError: one sentence for what cannot be used.
    """
    try:
        return _open(cfg, answers)
    except (OSError, ValueError, ImportError, MissingPrice, IsolationError) as error:
        raise ConfigError(str(error)) from error


def _open(cfg: WorldConfig, answers: Sequence[str]) -> RunTools:
    tools, book = cfg.tools.opened, price_book(cfg)
    replay = Replay(cfg.replay.path, cfg.replay.mode)
    context = ToolContext(cfg, book.base, replay)
    clients = _clients(cfg, context)
    found = {name: TOOLS.get(name) for name in tools.names}
    made = {name: each if isinstance(each, Tool) else each(context) for name, each in found.items()}
    plain = {name: plain_entry(tool, book.base, replay) for name, tool in made.items()}
    experts = _expert_entries(tools, clients, plain) if clients or tools.descriptions else []
    simulated = _simulated(cfg, answers)
    judge = None
    if tools.judge != "match":
        from orchestra_jax.tools.experts.judge import Judge

        judge = Judge(clients[tools.judge])
    servers = None
    if tools.mcp:
        from orchestra_jax.tools.mcp.servers import McpServers

        servers = McpServers(context)  # the last: nothing that follows may fail without ending their processes
    try:
        entries = plain, experts, _served(servers, tools, book.base, replay), simulated
        catalogue = _catalogue(cfg.tools, book, *entries)
        evaluation = _catalogue(cfg.tools.evaluated, PriceBook(book.base), *entries)
    except BaseException:
        if servers:
            servers.stop()
        raise

    closes: list[Callable[[], Awaitable[object]]] = [client.close for client in clients.values()]
    closes += [tool.close for tool in made.values()]
    closes += [servers.close] if servers else []

    async def close() -> None:
        try:
            await asyncio.gather(*(each() for each in closes))
            await replay.drain()
        finally:
            replay.close()

    return RunTools(catalogue, evaluation, judge, close)


def _clients(cfg: WorldConfig, context: ToolContext) -> "Mapping[str, ExpertClient]":
    """Return a client for every model that plays a role or judges."""
    tools = cfg.tools.opened
    if not _asks_models(tools):
        return {}
    from orchestra_jax.tools.experts.client import expert_clients
    from orchestra_jax.tools.experts.run_experts import run_experts

    return expert_clients(run_experts(cfg), context.prices, replay=context.replay)


def _expert_entries(
    tools: ToolsConfig, clients: "Mapping[str, ExpertClient]", plain: Mapping[str, Entry]
) -> Sequence[Entry]:
    """Return the entries of experts; the run's search and sandbox stand behind query and code writers."""
    from orchestra_jax.tools.experts import descriptions
    from orchestra_jax.tools.experts.entries import expert_entries

    search = next((name for name in ("web_search", "local_search") if name in plain), None)
    return expert_entries(
        tools.experts,
        clients,
        search=(search, plain[search].handler) if search else None,
        run=("python", plain["python"].handler) if "python" in plain else None,
        descriptions=descriptions.load(tools.descriptions) if tools.descriptions else None,
        local=tools.self_hosted,
    )


def _simulated(cfg: WorldConfig, answers: Sequence[str] = ()) -> Sequence[Entry]:
    """Return the entries of tools.simulated, which cost nothing; raise ValueError: one of them cannot be offered."""
    if not cfg.tools.simulated:
        return []
    from orchestra_jax.tools.experts.simulated_tool import SimulatedTool, simulated_experts

    tools = [SimulatedTool(expert, answers) for expert in simulated_experts(cfg.tools.simulated, cfg.env.seed)]
    for tool in tools:
        check_spec(tool.spec)
    return [Entry(tool.spec, _without_task, for_task=tool.handler) for tool in tools]


async def _without_task(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
    raise InfrastructureError("This tool is only replayed.")


def _served(
    servers: "McpServers | None", tools: ToolsConfig, prices: PriceList, replay: Replay
) -> Sequence[tuple[McpServer, Sequence[Entry]]]:
    """Start the MCP servers and return the entries of their tools."""
    if servers is None:
        return []
    found = []
    for server in mcp_servers(tools):
        found.append((server, [plain_entry(tool, prices, replay) for tool in servers.tools(server)]))
    note("mcp", servers.identities)
    return found


def _catalogue(
    offer: ToolsConfig,
    book: PriceBook,
    plain: Mapping[str, Entry],
    experts: Sequence[Entry],
    served: Sequence[tuple[McpServer, Sequence[Entry]]],
    simulated: Sequence[Entry],
) -> Catalogue:
    """Return the catalogue of training or of evaluation: the entries that it offers, of all that are opened.

    Args:
        plain: entries by their names in tools.names.
    """
    if offer.menu.form == "none":
        return Catalogue([], book, offer.menu)
    chosen = [entry for entry in experts if entry.model in offer.experts.get(entry.role, [])]
    if offer.menu.form != "released":  # there searches and sandbox work behind its functions
        own = mcp_servers(offer)
        foreign = [entry for server, listed in served if server in own for entry in listed]
        chosen = [*(plain[name] for name in offer.names), *foreign, *chosen]
        if offer.relay:
            chosen.append(relay_entry())
        if foreign or offer.relay:
            _check_names([*chosen, *simulated])
    return Catalogue([*chosen, *simulated], book, offer.menu)


def _check_names(entries: Sequence[Entry]) -> None:
    """Raise ValueError where two tools have one name, one of them `relay` or of an MCP server."""
    times = Counter(entry.spec.name for entry in entries)
    if twice := next((name for name, count in times.items() if count > 1), None):
        raise ValueError(
            f"Two tools are called {twice!r}: give an MCP server that has it a name, which then stands before the "
            "names of its tools, as in tools.mcp=[{server: ..., name: NAME}]."
        )


def tool_problems(cfg: WorldConfig) -> list[str]:
    """Return a sentence, with the fix, for everything that the tools of a run lack; start nothing."""
    tools, found = cfg.tools.opened, []
    try:
        book = price_book(cfg)
    except ConfigError as error:
        return [str(error)]
    if any(sentence.startswith("tools.") for sentence in missing_inputs(cfg)):
        return []  # of what is not there, nothing more can be said
    if unknown := [problem for name in tools.names if (problem := TOOLS.problem(name))]:
        return unknown
    meant = {cfg.tools.menu.form, cfg.tools.evaluated.menu.form} == {"none"}
    if not (tools.names or tools.mcp or tools.experts or tools.simulated or meant):
        return ["There is nothing to call: name tools in tools.names, or take tools=offline; tools=none means it."]
    try:
        _simulated(cfg)
        plain = [TOOLS.get(name) for name in tools.names]
    except ValueError as error:
        return [str(error)]
    if bare := [name for name, made_by in zip(tools.names, plain, strict=True) if iscoroutinefunction(made_by)]:
        return [f"tools.names={bare[0]} is no tool: write @tool above the function (docs/add_a_tool.md)."]
    if tools.simulated and "released" in (tools.menu.form, cfg.tools.evaluated.menu.form):
        found.append("Simulated experts have no part in the released form: take tools.menu.form=separate.")
    if tools.mcp and "released" in (tools.menu.form, cfg.tools.evaluated.menu.form):
        found.append("MCP servers have no part in the released form: take tools.menu.form=separate.")
    if tools.relay and {cfg.tools.menu.form, cfg.tools.evaluated.menu.form} != {"separate"}:
        found.append("tools.relay hands over the result of a tool: it needs tools.menu.form=separate.")
    wanted = [*models_of(tools), *filter(None, map(_price_name, plain))]
    for prices in (book.base, *book.lists):
        if lacking := [name for name in wanted if name not in prices.entries]:
            found.append(
                f"Price list {prices.id!r} has no price for {', '.join(lacking)}: take another pricing.name or "
                "pricing.randomise.lists, or leave the tools out."
            )
    if cfg.replay.mode == "replay" or found:
        return found
    servers = dict[str, str]()
    try:
        if _asks_models(tools):
            from orchestra_jax.tools.experts.client import expert_clients
            from orchestra_jax.tools.experts.run_experts import run_experts

            experts = run_experts(cfg)
            for client in expert_clients(experts, book.base).values():
                client.check()
            servers = {expert.base_url: f"expert {expert.name!r}" for expert in experts}
        for tool in plain:
            found += tool.problems(cfg, book.base) if hasattr(tool, "problems") else []
        if tools.mcp:
            from orchestra_jax.tools.mcp.servers import problems

            found += problems(mcp_servers(tools))
    except (OSError, ValueError, ImportError) as error:
        return [*found, str(error)]
    return found + [problem for url, name in servers.items() for problem in unreachable(name, url)]


def _asks_models(tools: ToolsConfig) -> bool:
    """Return whether the plug-in of experts is needed; a file of experts is checked even if nobody is asked."""
    return bool(models_of(tools) or tools.experts_file)


def _price_name(found: Tool | MakeTool) -> str | None:
    """Return the entry that every price list needs for a tool; None: it has a price of its own, or is made later."""
    spec = getattr(found, "spec", None)
    return spec.name if spec is not None and spec.price_usd is None and getattr(found, "listed", True) else None
