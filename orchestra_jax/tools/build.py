"""From a configuration to the tools of a run: experts, searches, sandbox, prices, record; and what they lack."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestra_jax.config.checks import missing_inputs
from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.config.record import note
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.config.tools import EvaluationOffer, MenuRule, ToolsConfig
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.paid import MissingKey
from orchestra_jax.money.price_book import PriceBook, price_book
from orchestra_jax.money.prices import MissingPrice
from orchestra_jax.money.replay import Replay
from orchestra_jax.processes import Processes
from orchestra_jax.tools.base import TOOLS, MakeTool, Tool, ToolContext, unreachable
from orchestra_jax.tools.catalogue import Catalogue, Entry
from orchestra_jax.tools.entries import expert_entries, plain_entry
from orchestra_jax.tools.experts import descriptions
from orchestra_jax.tools.experts.cards import api_fields
from orchestra_jax.tools.experts.client import ExpertClient, expert_clients
from orchestra_jax.tools.experts.expert import Expert, read_experts
from orchestra_jax.tools.experts.judge import Judge
from orchestra_jax.tools.experts.simulated import SimulatedTool, experts_from_config
from orchestra_jax.tools.mcp import servers as mcp
from orchestra_jax.tools.mcp.servers import McpServers
from orchestra_jax.tools.python.isolation import IsolationError
from orchestra_jax.tools.schema import check_spec
from orchestra_jax.types import InfrastructureError, ToolResult

_NOWHERE = "http://replayed.invalid/v1"  # of experts that are only replayed


@dataclass(frozen=True)
class RunTools:
    """The tools of a run.

    Attributes:
        catalogue: draws instances and executes their calls.
        evaluation: the same for evaluation: its own tools, and prices as they are in pricing.name.
        judge: None where answers are matched only.
        close: ends everything, once requests under way have been paid.
    """

    catalogue: Catalogue
    evaluation: Catalogue
    judge: Judge | None
    close: Callable[[], Awaitable[None]]


def make_tools(cfg: WorldConfig, answers: Sequence[str] = ()) -> RunTools:
    """Opens what the tools need. With replay.mode=replay that is the record alone.

    `answers` to some questions of the run are what simulated experts say where they are wrong and know nothing nearer.

    Raises:
        ConfigError: one sentence for what cannot be used.
    """
    try:
        return _make(cfg, answers)
    except (OSError, ValueError, ImportError, MissingPrice, IsolationError) as error:
        raise ConfigError(str(error)) from error


def named_experts(cfg: WorldConfig, names: Sequence[str]) -> list[Expert]:
    """These models as tools.experts_file says, else at tools.server; each once, whatever the menus offer.

    Raises:
        ValueError: one of them has no server.
        FileNotFoundError: no such file.
    """
    alone = replace(
        cfg.tools, experts={"any": list(names)}, names=[], judge="match", menu=MenuRule(), evaluation=EvaluationOffer()
    )
    return _experts(replace(cfg, tools=alone))


def _make(cfg: WorldConfig, answers: Sequence[str]) -> RunTools:
    tools, book = cfg.tools.opened, price_book(cfg)
    replay = Replay(cfg.replay.path, cfg.replay.mode)
    context = ToolContext(cfg, book.base, replay)
    servers = McpServers(context)
    try:
        return _open(cfg, answers, tools, book, context, servers)
    except BaseException:
        servers.stop()  # no process outlives a run that cannot begin
        raise


def _open(
    cfg: WorldConfig,
    answers: Sequence[str],
    tools: ToolsConfig,
    book: PriceBook,
    context: ToolContext,
    servers: McpServers,
) -> RunTools:
    replay = context.replay
    clients = expert_clients(_experts(cfg), book.base, replay=replay)
    closes: list[Callable[[], Awaitable[object]]] = [client.close for client in clients.values()]
    plain = dict[str, Entry]()
    for name in tools.names:
        found = TOOLS.get(name)
        tool = found if isinstance(found, Tool) else found(context)
        closes.append(tool.close)
        plain[name] = plain_entry(tool, book.base, replay)
    search = next((name for name in ("web_search", "local_search") if name in plain), None)
    served = [(each, [plain_entry(tool, book.base, replay) for tool in servers.tools(each)])
              for each in tools.mcp_servers]  # fmt: skip
    closes.append(servers.close)
    if servers.identities:
        note("mcp", servers.identities)
    experts = expert_entries(
        tools.experts,
        clients,
        search=(search, plain[search].handler) if search else None,
        run=("python", plain["python"].handler) if "python" in plain else None,
        descriptions=descriptions.load(tools.descriptions) if tools.descriptions else None,
        local=tools.self_hosted,
    )
    simulated = [Entry(expert.spec, _absent, for_task=expert.handler) for expert in _simulated(cfg, answers)]

    def offer(some: ToolsConfig, book: PriceBook) -> Catalogue:
        if some.menu.form == "none":
            return Catalogue([], book, some.menu)
        entries = [entry for entry in experts if entry.model in some.experts.get(entry.role, [])]
        if some.menu.form != "released":  # there searches and sandbox work behind its functions
            own = some.mcp_servers
            foreign = [entry for server, listed in served if server in own for entry in listed]
            entries = [*(plain[name] for name in some.names), *foreign, *entries]
            if foreign:
                _check_names([*entries, *simulated])
        return Catalogue([*entries, *simulated], book, some.menu)

    async def close() -> None:
        try:
            await asyncio.gather(*(each() for each in closes))
            await replay.drain()
        finally:
            replay.close()

    judge = None if tools.judge == "match" else Judge(clients[tools.judge])
    return RunTools(offer(cfg.tools, book), offer(cfg.tools.evaluated, PriceBook(book.base)), judge, close)


def _check_names(entries: Sequence[Entry]) -> None:
    """Raises ValueError where two tools have one name, one of them of an MCP server."""
    names = [entry.spec.name for entry in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(
            f"Two tools are called {twice!r}: give an MCP server that has it a name, which then stands before the "
            "names of its tools, as in tools.mcp=[{server: ..., name: NAME}]."
        )


def make_judge(cfg: WorldConfig) -> tuple[Judge, Callable[[], Coroutine[Any, Any, None]]]:
    """The judge without any other tool, and what ends it once requests under way have been paid.

    Raises:
        ConfigError: nobody judges, or one sentence for what it lacks.
    """
    name = cfg.tools.judge
    if name == "match":
        raise ConfigError("tools.judge=match asks nobody: set tools.judge to a model of the price list.")
    client, close = _alone(cfg, name, "judge")
    return Judge(client), close


def user_client(cfg: WorldConfig, name: str) -> tuple[ExpertClient, Callable[[], Coroutine[Any, Any, None]]]:
    """The model that plays the user of conversations, and what ends it, as `make_judge`; it is served as experts are.

    Raises:
        ConfigError: one sentence for what it lacks.
    """
    return _alone(cfg, name, "user")


def judge_client(cfg: WorldConfig) -> tuple[ExpertClient, Callable[[], Coroutine[Any, Any, None]]]:
    """The model of `tools.judge`, for what `Judge` does not ask, and what ends it, as `make_judge`.

    Raises:
        ConfigError: one sentence for what it lacks.
    """
    return _alone(cfg, cfg.tools.judge, "judge")


def _alone(cfg: WorldConfig, name: str, role: str) -> tuple[ExpertClient, Callable[[], Coroutine[Any, Any, None]]]:
    """The client of one model without any tool."""
    alone = replace(cfg, tools=replace(cfg.tools, experts={}, names=[], judge=name, evaluation=EvaluationOffer()))
    asks = cfg.replay.mode is not ReplayMode.replay
    try:
        book, (expert,) = price_book(cfg), _experts(alone)
        replay = Replay(cfg.replay.path, cfg.replay.mode)
        client = expert_clients([expert], book.base, replay=replay)[name]
        if asks:
            client.check()
    except (OSError, ValueError, ImportError, MissingPrice) as error:
        raise ConfigError(str(error)) from error
    if asks and not cfg.evaluation.dry_run and (problems := unreachable(f"the {role} {name!r}", expert.base_url)):
        replay.close()
        raise ConfigError("\n".join(problems))

    async def close() -> None:
        try:
            await client.close()
            await replay.drain()
        finally:
            replay.close()

    return client, close


def instance_seed(seed: int, task: str, draw: int) -> int:
    """The seed of an instance: of the run, the task and, in training, the draw of its place in the stream."""
    return int.from_bytes(hashlib.blake2b(repr((seed, task, draw)).encode(), digest_size=8).digest())


def tool_problems(cfg: WorldConfig) -> list[str]:
    """One sentence, with the fix, for everything that the tools of questions lack; starts nothing."""
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
    if tools.simulated and "released" in (tools.menu.form, cfg.tools.evaluated.menu.form):
        found.append("Simulated experts have no part in the released form: take tools.menu.form=separate.")
    if tools.mcp and "released" in (tools.menu.form, cfg.tools.evaluated.menu.form):
        found.append("MCP servers have no part in the released form: take tools.menu.form=separate.")
    wanted = [*sorted(_models(tools)), *filter(None, map(_price_name, plain))]
    for prices in (book.base, *book.lists):
        if lacking := [name for name in wanted if name not in prices.entries]:
            found.append(
                f"Price list {prices.id!r} has no price for {', '.join(lacking)}: take another pricing.name or "
                "pricing.randomise.lists, or leave the tools out."
            )
    if cfg.replay.mode == "replay" or found:
        return found
    try:
        experts = _experts(cfg)
        for client in expert_clients(experts, book.base).values():
            client.check()
        for tool in plain:
            found += tool.problems(cfg, book.base) if hasattr(tool, "problems") else []
        found += mcp.problems(tools.mcp_servers)
    except (OSError, ValueError, ImportError, MissingKey) as error:
        return [*found, str(error)]
    servers = {expert.base_url: f"expert {expert.name!r}" for expert in experts}
    return found + [problem for url, name in servers.items() for problem in unreachable(name, url)]


def _price_name(found: Tool | MakeTool) -> str | None:
    """The entry that every price list needs for a tool; None where it has a price of its own, or is made later."""
    spec = getattr(found, "spec", None)
    return spec.name if spec is not None and spec.price_usd is None and getattr(found, "listed", True) else None


def _models(tools: ToolsConfig) -> set[str]:
    judges = set() if tools.judge == "match" else {tools.judge}
    return {model for models in tools.experts.values() for model in models} | judges


def _experts(cfg: WorldConfig) -> list[Expert]:
    """Every model that plays a role or judges: as tools.experts_file says, else at tools.server.

    What may be asked of a server at a time and in a minute holds for the run: each of its processes has a share.
    """
    processes = Processes.of_run()

    def own_share(expert: Expert) -> Expert:
        rate = expert.requests_per_minute
        return replace(
            expert,
            concurrency=processes.share(expert.concurrency),
            requests_per_minute=rate and rate / processes.count,
        )

    tools = cfg.tools.opened
    known = {expert.name: expert for expert in (read_experts(tools.experts_file) if tools.experts_file else ())}
    url = tools.server.url or (_NOWHERE if cfg.replay.mode == "replay" else None)
    options = {key: value for key, value in asdict(tools.server).items() if key != "url" and value is not None}
    experts = []
    for name in sorted(_models(tools)):
        if name in known:
            experts.append(own_share(known[name]))
            continue
        if url is None:
            raise ValueError(
                f"There is no server for {name!r}: set tools.server.url=http://HOST:PORT/v1, or name it in "
                "tools.experts_file."
            )
        experts.append(own_share(Expert(name=name, model=name, base_url=url, **{**api_fields(name), **options})))
    return experts


def _simulated(cfg: WorldConfig, answers: Sequence[str] = ()) -> list[SimulatedTool]:
    experts = experts_from_config({"seed": cfg.env.seed, "experts": cfg.tools.simulated})
    tools = [SimulatedTool(expert, answers) for expert in experts]
    for tool in tools:
        check_spec(tool.spec)
    return tools


async def _absent(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
    raise InfrastructureError("This tool is only replayed.")
