"""What a tool is, the decorator that makes one of a function, and the executor that checks, runs and charges calls."""

import inspect
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar, cast, overload
from urllib.parse import urlsplit

from orchestra_jax.config.registry import Registry
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.io.stopwatch import worked
from orchestra_jax.io.untrusted import valid_text
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools import schema
from orchestra_jax.types import InfrastructureError, ToolCall, ToolResult, ToolSpec, Usage

# Executes a call: (its validated arguments, the budget that pays for it) -> what the policy reads.
ToolHandler = Callable[[Mapping[str, Any], Budget], Awaitable[ToolResult | str]]
ToolFunction = Callable[..., Awaitable[ToolResult | str]]
T = TypeVar("T")


def as_result(answer: ToolResult | str) -> ToolResult:
    """What a handler gave, where a text alone will do, with texts that every tokenizer can take."""
    result = ToolResult(answer) if isinstance(answer, str) else answer
    final = None if result.final is None else valid_text(result.final)
    return replace(result, text=valid_text(result.text), final=final)


@dataclass
class ToolContext:
    """What a run's tools are made from: its settings, what is really paid, and the record of calls."""

    cfg: WorldConfig
    prices: PriceList
    replay: Replay
    _shared: dict[Callable[..., Any], Any] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether calls are made at all, or only replayed: then a tool opens nothing."""
        return self.cfg.replay.mode != "replay"

    def share(self, make: "Callable[[ToolContext], T]") -> T:
        """What `make` makes of this context: once, for all tools that ask for it."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return cast(T, self._shared[make])


class Tool:
    """A plain tool of a run. Subclass it for a tool that opens something; else decorate a function with `tool`.

    Attributes:
        spec: what the policy sees. `price_usd` is the tool's own price per call, where the price list has no entry of
            its name; None: every price list needs one.
        listed: whether price lists name it at all; False for what is never charged.
        settings: what its answers depend on beside the arguments, for the record of calls; None: it keeps no record, or
            does so itself.
    """

    spec: ToolSpec
    listed: bool = True
    settings: Mapping[str, Any] | None = MappingProxyType({})

    def __init__(self, context: ToolContext) -> None:
        """Opens what the tool needs; a subclass that needs nothing leaves this as it is."""

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult | str:
        """Executes a call. Its ledger rows bear tokens and seconds, and dollars only where something is really paid.

        Raises:
            InfrastructureError: it failed through no fault of the policy; the sample is invalid.
            BudgetExceeded: the budget does not allow the call.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Releases what the tool opened."""

    @classmethod
    def problems(cls, cfg: WorldConfig, prices: PriceList) -> list[str]:
        """One sentence, with the fix, for everything in the `WorldConfig` that the tool lacks; starts nothing."""
        return []


class FunctionTool(Tool):
    """A tool that is one async function; see `tool`. Calling it calls the function."""

    def __init__(self, function: ToolFunction, spec: ToolSpec, budget: str | None) -> None:
        self.function, self.spec, self._budget = function, spec, budget

    def __call__(self, *arguments: Any, **options: Any) -> Awaitable[ToolResult | str]:
        return self.function(*arguments, **options)

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        given = {**arguments, self._budget: budget} if self._budget else dict(arguments)
        start = worked()
        try:
            answer = await self.function(**given)
        except ValueError as error:
            answer = ToolResult(str(error) or type(error).__name__, is_error=True)
        except OSError as error:
            raise InfrastructureError(f"{self.spec.name} failed: {error or type(error).__name__}.") from error
        result = as_result(answer)
        if result.refused:
            return result
        own = Usage(self.spec.name, seconds=worked() - start)
        return replace(result, usage=result.usage or (own,))


@overload
def tool(function: ToolFunction, /) -> FunctionTool: ...
@overload
def tool(
    *, name: str | None = None, price_usd: float = 0.0, latency_s: float | None = None, local: bool = False
) -> Callable[[ToolFunction], FunctionTool]: ...
def tool(
    function: ToolFunction | None = None,
    /,
    *,
    name: str | None = None,
    price_usd: float = 0.0,
    latency_s: float | None = None,
    local: bool = False,
) -> FunctionTool | Callable[[ToolFunction], FunctionTool]:
    """Decorator that makes a tool of an async function, also without parentheses.

    The first paragraph of its docstring describes the tool, "Args:" its arguments, and their annotations make the JSON
    schema: str, int, float, bool, Literal, list, dict, "X | None". An argument with a default may be left out. One that
    is annotated `Budget` is filled in with the trajectory's and not shown. The function returns text or a `ToolResult`.

    A ValueError is the policy's doing, such as a bad argument: its text is the observation. An OSError (connections and
    time-outs are such) or InfrastructureError makes the sample invalid. Everything else is a bug and ends the run.

    Args:
        name: what the policy calls; the function's own by default.
        price_usd: dollars per call, where the price list has no entry of this name; 0 is free.
        latency_s: seconds per call that the menu shows and the reward counts; None: measured.
        local: whether it runs on the user's own machine.

    Raises:
        TypeError: the function is not async, or an argument has a type that is none of these.
        ValueError: see `schema.check_spec`.
    """

    def make(function: ToolFunction) -> FunctionTool:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"The tool {function.__name__!r} must be an async function: write `async def`.")
        description, parameters, budget = schema.signature(function, filled=Budget)
        figures: dict[str, Any] = {"price_usd": price_usd, "latency_s": latency_s, "local": local}
        spec = ToolSpec(name=name or function.__name__, description=description, parameters=parameters, **figures)
        schema.check_spec(spec)
        return FunctionTool(function, spec, budget)

    return make if function is None else make(function)


@dataclass(frozen=True, slots=True)
class Tariff:
    """The two price lists of a call: budgets count by what is really paid, rewards by the instance's.

    Attributes:
        shown: of the instance.
        paid: what the dollars of a tool's own rows were counted by.
    """

    shown: PriceList
    paid: PriceList

    def charge(self, row: Usage) -> Usage:
        """The row at the instance's price. What was not billed stays free, and what the list lacks as it is."""
        if row.name not in self.shown.entries:
            return replace(row, price_list=self.shown.id)
        if row.price_list and row.cost_usd == 0 < self.paid.charge(row).cost_usd:
            return replace(row, price_list=self.shown.id)
        return self.shown.charge(row)


class ToolExecutor:
    """Validates, executes and charges the calls of one episode; this is the one place where a call gets its price.

    Charging: where the menu shows a price per call, that price is charged and the menu's latency (measured seconds
    where it shows none). Otherwise the tool's own rows are charged by the instance's price list, or kept as they are
    without one, and a tool without rows is charged zero dollars and the menu's latency. A call that was refused (see
    `ToolResult`) costs what its rows say: nothing, as a rule.

    Args:
        tools: the menu of this instance.
        handlers: by tool name; may hold more than the menu.
        budget: of the trajectory: pays for the calls.

    Raises:
        ValueError: a tool of the menu has no handler, or two tools share a name.
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec],
        handlers: Mapping[str, ToolHandler],
        budget: Budget,
        tariff: Tariff | None = None,
    ) -> None:
        self.tools = tuple(tools)
        self._specs = {spec.name: spec for spec in self.tools}
        self._handlers, self._budget, self._tariff = handlers, budget, tariff
        if len(self._specs) != len(self.tools):
            raise ValueError(f"Two tools of the menu share a name: {sorted(spec.name for spec in self.tools)}.")
        missing = [name for name in self._specs if name not in handlers]
        if missing:
            raise ValueError(f"No handler for tool {missing[0]!r}; this environment offers {sorted(handlers)}.")

    @property
    def prices(self) -> PriceList | None:
        """The instance's price list, where it has one of its own."""
        return None if self._tariff is None else self._tariff.shown

    async def step(self, call: ToolCall) -> ToolResult:
        """Executes one call; see `Episode.step`."""
        spec = self._specs.get(call.name)
        if spec is None:
            known = ", ".join(self._specs) or "none"
            said = f"Unknown tool {call.name!r}; the available tools are: {known}."
            return ToolResult(said, is_error=True, refused=True)
        problem = schema.validate_arguments(spec, call.arguments)
        if problem is not None:
            return ToolResult(problem, is_error=True, refused=True)
        start = worked()
        result = as_result(await self._handlers[call.name](call.arguments, self._budget))
        elapsed = worked() - start
        if result.refused and not result.usage:
            return result
        return replace(result, usage=charge(spec, result.usage, elapsed, self._tariff))


def charge(spec: ToolSpec, rows: tuple[Usage, ...], elapsed: float, tariff: Tariff | None = None) -> tuple[Usage, ...]:
    """Ledger rows of one executed call under the rule in `ToolExecutor`, from the rows that the tool itself reported.

    The measured seconds of work `elapsed` are used where neither menu nor tool gives seconds.
    """
    if spec.price_usd is None and rows:
        return rows if tariff is None else tuple(tariff.charge(row) for row in rows)
    seconds = spec.latency_s
    if seconds is None:
        seconds = sum(row.seconds for row in rows) if rows else elapsed
    row = Usage(
        name=spec.name,
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        cached_tokens=sum(row.cached_tokens for row in rows),
        completion_tokens=sum(row.completion_tokens for row in rows),
        cost_usd=spec.price_usd or 0.0,
        seconds=seconds,
        price_list="menu",
    )
    return (row,)


def unreachable(name: str, url: str | None, key: str = "tools.*") -> list[str]:
    """One sentence where nothing answers at the address of `name`; an address that is no URL is none of a server."""
    if not (url or "").startswith("http"):
        return []
    parts = urlsplit(str(url))
    address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection(address, 5.0).close()
    except OSError as error:
        return [f"No server answers at {url} for {name} ({error}): start it, or correct its address in {key}."]
    return []


# A name stands for a tool, such as a decorated function, or for what makes one, such as a subclass of `Tool`.
MakeTool = Callable[[ToolContext], Tool]

TOOLS: Registry[Tool | MakeTool] = Registry(
    "tool",
    "tools.names",
    group="orchestra_jax.tools",
    builtin={
        "python": "orchestra_jax.tools.plain:Python",
        "local_search": "orchestra_jax.tools.plain:LocalSearch",
        "web_search": "orchestra_jax.tools.plain:WebSearch",
        "web_extract": "orchestra_jax.tools.plain:WebExtract",
        "answer": "orchestra_jax.tools.plain:Answer",
    },
)
