"""From a configuration to the tools of a run: experts, searches, sandbox, prices, record; and what they lack."""

import asyncio
import hashlib
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from orchestra_jax.config.checks import missing_inputs
from orchestra_jax.config.schema import ConfigError, RunConfig, ToolsConfig
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.paid import MissingKey
from orchestra_jax.money.prices import MissingPrice, Price, PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.base import ToolHandler
from orchestra_jax.tools.catalogue import ANSWER_TOOL, Catalogue, Entry, MenuRule, PriceBook, give_answer
from orchestra_jax.tools.entries import expert_entries, recorded, within_budget
from orchestra_jax.tools.experts import describing, descriptions
from orchestra_jax.tools.experts.client import Expert, expert_clients
from orchestra_jax.tools.experts.roles import Judge
from orchestra_jax.tools.experts.simulated import SimulatedTool, experts_from_config
from orchestra_jax.tools.python import sandbox
from orchestra_jax.tools.python.isolation import Isolation, IsolationError
from orchestra_jax.tools.python.server import RemoteSandbox
from orchestra_jax.tools.schema import check_spec
from orchestra_jax.tools.search import local as local_search
from orchestra_jax.tools.search import web as web_search
from orchestra_jax.tools.search.server import RemoteIndex, open_index
from orchestra_jax.types import InfrastructureError, ToolResult

PRICES = Path(__file__).resolve().parents[2] / "conf" / "pricing"
PLAIN_TOOLS = ("python", "local_search", "web_search", "web_extract", ANSWER_TOOL.name)
_NOWHERE = "http://replayed.invalid/v1"  # of experts that are only replayed
Close = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class RunTools:
    """The tools of a run.

    Attributes:
        catalogue: draws instances and executes their calls.
        judge: None where answers are matched only.
        close: ends everything, once requests under way have been paid.
    """

    catalogue: Catalogue
    judge: Judge | None
    close: Callable[[], Awaitable[None]]


def price_book(cfg: RunConfig) -> PriceBook:
    """The run's prices; the policy's own tokens are at the configured price in all lists.

    Raises:
        ConfigError: a list is not there or broken.
    """
    pricing = cfg.pricing
    own = {"orchestrator": Price(input=pricing.orchestrator_input, output=pricing.orchestrator_output)}

    def load(key: str, name: str) -> PriceList:
        file = PRICES / f"{name}.yaml"
        if not file.is_file():
            known = ", ".join(sorted(path.stem for path in PRICES.glob("*.yaml")))
            raise ConfigError(f"{key}={name} is no price list: use one of {known}.")
        try:
            prices = PriceList.load(file)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return PriceList(prices.id, prices.date, prices.source, {**prices.entries, **own}, prices.latencies)

    lists = [load("pricing.randomise.lists", name) for name in pricing.randomise.lists]
    return PriceBook(load("pricing.name", pricing.name), lists, pricing.randomise.low, pricing.randomise.high)


def make_toolbox(cfg: RunConfig, answers: Sequence[str] = ()) -> RunTools:
    """Opens what the tools need. With replay.mode=replay that is the record alone.

    Args:
        cfg: of the run.
        answers: to some questions of the run: what simulated experts say where they are wrong and know nothing nearer.

    Raises:
        ConfigError: one sentence for what cannot be used.
    """
    try:
        return _make(cfg, answers)
    except (OSError, ValueError, ImportError, MissingPrice, IsolationError) as error:
        raise ConfigError(str(error)) from error


def _make(cfg: RunConfig, answers: Sequence[str]) -> RunTools:
    tools, book = cfg.tools, price_book(cfg)
    replay = Replay(cfg.replay.path, cfg.replay.mode)
    clients = expert_clients(_experts(cfg), book.base, replay=replay)
    closes: list[Close] = [client.close for client in clients.values()]
    plain = _plain_tools(cfg, book.base, replay, closes)
    entries = list(plain.values())
    search = next((name for name in ("web_search", "local_search") if name in plain), None)
    entries += expert_entries(
        tools.experts,
        clients,
        search=(search, plain[search].handler) if search else None,
        run=("python", plain["python"].handler) if "python" in plain else None,
        descriptions=descriptions.load(tools.descriptions) if tools.descriptions else None,
        local=tools.self_hosted,
    )
    if tools.form == "released":  # searches and sandbox work behind its functions
        entries = [entry for entry in entries if entry.role]
    for tool in _simulated(cfg, answers):
        entries.append(Entry(tool.spec, _absent, for_task=tool.handler))
    rule = MenuRule(tools.form, tools.subset, tools.subset_min, tools.subset_max, tools.aliases)
    catalogue = Catalogue(entries, book, rule)

    async def close() -> None:
        try:
            await asyncio.gather(*(each() for each in closes))
        finally:
            replay.close()

    return RunTools(catalogue, None if tools.judge == "match" else Judge(clients[tools.judge]), close)


def instance_seed(seed: int, task: str, draw: int) -> int:
    """The seed of an instance: of the run, the task and, in training, the draw of its place in the stream."""
    return int.from_bytes(hashlib.blake2b(repr((seed, task, draw)).encode(), digest_size=8).digest())


def toolbox_problems(cfg: RunConfig) -> list[str]:
    """One sentence, with the fix, for everything that the tools of questions lack; starts nothing."""
    tools, found = cfg.tools, []
    try:
        book = price_book(cfg)
    except ConfigError as error:
        return [str(error)]
    if any(sentence.startswith("tools.") for sentence in missing_inputs(cfg)):
        return []  # of what is not there, nothing more can be said
    if unknown := sorted(set(tools.names) - set(PLAIN_TOOLS)):
        return [f"tools.names has {unknown[0]}: choose from {', '.join(PLAIN_TOOLS)}, or take tools=offline."]
    if not tools.names and not tools.experts and not tools.simulated:
        return ["There is nothing to call: name tools in tools.names, or take tools=offline."]
    try:
        _simulated(cfg)
    except ValueError as error:
        found.append(str(error))
    if tools.simulated and tools.form == "released":
        found.append("Simulated experts have no part in the released form: take tools.form=separate.")
    wanted = [*sorted(_models(tools)), *(name for name in tools.names if name != ANSWER_TOOL.name)]
    for prices in (book.base, *book.lists):
        lacking = [name for name in wanted if name not in prices.entries]
        if lacking:
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
        if {"web_search", "web_extract"} & set(tools.names):
            _web(cfg, book.base, None).check()
    except (OSError, ValueError, ImportError, MissingKey) as error:
        return [*found, str(error)]
    addresses = {expert.base_url: f"expert {expert.name!r}" for expert in experts}
    addresses |= {tools.index or "": "local_search", tools.sandbox_url or "": "python"}
    for url, who in addresses.items():
        if url.startswith("http"):
            found += _unreachable(who, url)
    return found


def _models(tools: ToolsConfig) -> set[str]:
    judges = set() if tools.judge == "match" else {tools.judge}
    return {model for models in tools.experts.values() for model in models} | judges


def _experts(cfg: RunConfig) -> list[Expert]:
    """Every model that plays a role or judges: as experts_file says, else at experts_url."""
    tools = cfg.tools
    listed = describing.read_experts(tools.experts_file) if tools.experts_file else []
    known = {expert.name: expert for expert in listed}
    url = tools.experts_url or (_NOWHERE if cfg.replay.mode == "replay" else None)
    experts = []
    for name in sorted(_models(tools)):
        if name in known:
            experts.append(known[name])
            continue
        if url is None:
            raise ValueError(
                f"There is no server for {name!r}: set tools.experts_url=http://HOST:PORT/v1, or name it in "
                "tools.experts_file."
            )
        experts.append(
            Expert(
                name, name, url, tools.experts_key_env, tools.experts_context, tools.experts_max_tokens,
                timeout_s=tools.experts_timeout_s, retries=tools.experts_retries,
                concurrency=tools.experts_concurrency, requests_per_minute=tools.experts_requests_per_minute,
            )
        )  # fmt: skip
    return experts


def _plain_tools(cfg: RunConfig, prices: PriceList, replay: Replay, closes: list[Close]) -> dict[str, Entry]:
    """The tools of `tools.names`; what they open is closed by `closes`."""
    tools, entries = cfg.tools, dict[str, Entry]()
    live = cfg.replay.mode != "replay"
    web = _web(cfg, prices, replay) if {"web_search", "web_extract"} & set(tools.names) else None
    if web is not None:
        closes.append(web.close)
    for name in tools.names:
        match name:
            case "python":
                handler = _sandbox(tools, closes) if live else _absent
                handler = recorded(name, handler, replay, {"timeout_s": tools.sandbox_timeout_s})
                entries[name] = Entry(sandbox.TOOL, handler, billed=(name,))
            case "local_search":
                handler = _local_search(tools, closes) if live else _absent
                source = Path(tools.index or tools.corpus or "").name
                handler = recorded(name, handler, replay, {"top_k": tools.top_k, "source": source})
                entries[name] = Entry(local_search.TOOL, handler, billed=(name,))
            case "web_search" | "web_extract":
                assert web is not None
                spec = web_search.SEARCH_TOOL if name == "web_search" else web_search.EXTRACT_TOOL
                handler = web.search if name == "web_search" else web.extract
                entries[name] = Entry(spec, within_budget(handler), billed=(name,))
            case "answer":
                entries[name] = Entry(ANSWER_TOOL, give_answer)
            case _:
                raise ValueError(f"tools.names has {name}: choose from {', '.join(PLAIN_TOOLS)}.")
    return entries


def _sandbox(tools: ToolsConfig, closes: list[Close]) -> ToolHandler:
    executor: sandbox.Executor
    if tools.sandbox_url:
        executor = RemoteSandbox(tools.sandbox_url, tools.sandbox_timeout_s + 50.0)
    else:
        isolation = cast(Isolation, tools.sandbox_isolation)
        executor = sandbox.PythonSandbox(tools.sandbox_workers, tools.sandbox_timeout_s, isolation=isolation)

    async def run(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        return await executor.run(arguments["code"])

    async def close() -> None:
        executor.close()

    closes.append(close)
    return run


def _local_search(tools: ToolsConfig, closes: list[Close]) -> ToolHandler:
    index: local_search.Searchable
    if tools.index is None:
        if tools.corpus is None:
            raise ValueError("local_search needs passages: set tools.corpus=FILE or tools.index=FOLDER.")
        index = local_search.LocalIndex.build(local_search.read_passages(tools.corpus))
    elif tools.index.startswith("http"):
        index = RemoteIndex(tools.index)
        closes.append(index.close)
    else:
        saved = open_index(tools.index, tools.embedder_url)
        if not isinstance(saved, local_search.LocalIndex):
            closes.append(saved.close)
        index = saved
    return local_search.search_handler(index, tools.top_k)


def _web(
    cfg: RunConfig, prices: PriceList, replay: Replay | None
) -> web_search.TavilySearch | web_search.WikipediaSearch:
    tools = cfg.tools
    options: dict[str, Any] = {"replay": replay, "timeout_s": tools.web_timeout_s}
    if tools.web_url:
        options["url"] = tools.web_url
    return (web_search.TavilySearch if tools.web == "tavily" else web_search.WikipediaSearch)(prices, **options)


def _simulated(cfg: RunConfig, answers: Sequence[str] = ()) -> list[SimulatedTool]:
    experts = experts_from_config({"seed": cfg.env.seed, "experts": cfg.tools.simulated})
    tools = [SimulatedTool(expert, answers) for expert in experts]
    for tool in tools:
        check_spec(tool.spec)
    return tools


async def _absent(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
    raise InfrastructureError("This tool is only replayed.")


def _unreachable(who: str, url: str) -> list[str]:
    parts = urlsplit(url)
    address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection(address, 5.0).close()
    except OSError as error:
        return [f"No server answers at {url} for {who} ({error}): start it, or correct its address in tools.*."]
    return []
