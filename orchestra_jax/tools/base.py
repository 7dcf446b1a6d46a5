"""Tools: the class to subclass, the decorator that makes one of a function, and the registry of their names.

The setting `tools.names` is read in two namespaces: as names of this registry, and by env=quickstart as names of the
tools of its generated world (conf/tools/quickstart.yaml).
"""

import inspect
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar, cast, overload
from urllib.parse import urlsplit

from orchestra_jax.config.registry import Registry
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.io.stopwatch import worked
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools import signatures
from orchestra_jax.tools.executor import as_result
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import InfrastructureError, ToolResult, ToolSpec, Usage

ToolFunction = Callable[..., Awaitable[ToolResult | str]]
T = TypeVar("T")


@dataclass
class ToolContext:
    """The settings of a run, its paid price list and its record of calls, from which its tools are made."""

    cfg: WorldConfig
    prices: PriceList
    replay: Replay
    _shared: dict[Callable[..., Any], Any] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """True if calls are made; False if they are only replayed, so that a tool opens nothing."""
        return self.cfg.replay.mode != "replay"

    def share(self, make: "Callable[[ToolContext], T]") -> T:
        """Return `make(context)`, which is called once for all tools of a run that share its result."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return cast(T, self._shared[make])


class Tool:
    """A plain tool of a run. Subclass it for a tool that opens something; else decorate a function with `tool`.

    Attributes:
        spec: name, description and arguments as the policy sees them. `price_usd` is the tool's own price per call,
            used if the price list has no entry of its name; None: every price list needs one.
        listed: False for a tool that no price list names, since it is never charged.
        settings: all that its answers depend on beside the arguments, for the record of calls; None: it keeps no
            record, or does so itself.
        reserves: True if `run` reserves in its budget what it pays; False: budgets count `spec.price_usd` of each call.
    """

    spec: ToolSpec
    listed: bool = True
    settings: Mapping[str, Any] | None = MappingProxyType({})
    reserves: bool = True

    def __init__(self, context: ToolContext) -> None:
        """Open what the tool needs; a subclass that needs nothing leaves this as it is."""

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult | str:
        """Execute a call. Its ledger rows bear tokens and seconds, and dollars only if something is really paid.

        Raises:
            InfrastructureError: the tool failed through no fault of the policy; the sample is invalid.
            BudgetExceeded: the budget does not allow the call.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Release what the tool opened."""

    @classmethod
    def problems(cls, cfg: WorldConfig, prices: PriceList) -> list[str]:
        """Return a sentence, with the fix, for everything that the tool lacks; start nothing."""
        return []


class FunctionTool(Tool):
    """A tool that is one async function; see `tool`. Calling it calls the function."""

    def __init__(self, function: ToolFunction, spec: ToolSpec, budget: str | None) -> None:
        self.function, self.spec, self._budget, self.reserves = function, spec, budget, budget is not None

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
            raise InfrastructureError(f"{self.spec.name} failed: {str(error) or type(error).__name__}.") from error
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
    '''Make a tool of an async function, also without parentheses.

    The first paragraph of its docstring describes the tool, "Args:" its arguments, and their annotations make the JSON
    schema: str, int, float, bool, Literal, list, dict, "X | None". An argument with a default may be left out. One that
    is annotated `Budget` is filled in with the trajectory's and not shown. The function returns text or a `ToolResult`.

    A ValueError is the policy's doing, such as a bad argument: its text is the observation. After an OSError (time-outs
    are such), an InfrastructureError, or the deadline of all tools (rollout.limits.tool_deadline_s), the call is tried
    again, and in the end the sample is invalid. Everything else is a bug and ends the run. A shorter deadline of the
    tool's own is `async with asyncio.timeout(...)` in the function.

    Examples:
        >>> @tool(price_usd=0.01)
        ... async def area(width: float, height: float) -> str:
        ...     """Compute the area of a rectangle.
        ...
        ...     Args:
        ...         width: its width.
        ...         height: its height.
        ...     """
        ...     return str(width * height)
        >>> area.spec.name, area.spec.parameters["required"]
        ('area', ['width', 'height'])

    Args:
        name: name of the tool; the function's own by default.
        price_usd: dollars of each executed call if the price list has no entry of this name. `ToolExecutor` charges it
            to ledger and reward. Budgets count it too, unless the function takes the `Budget`: then they count what it
            reserves there (`money.reservations.acquire`).
        latency_s: seconds per call that the menu shows and the reward counts; None: measured.
        local: True if it runs on the user's own machine.

    Raises:
        TypeError: the function is not async, or an argument has a type that is none of these.
        ValueError: see `check_spec`.
    '''

    def make(function: ToolFunction) -> FunctionTool:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"The tool {function.__name__!r} must be an async function: write `async def`.")
        description, parameters, budget = signatures.signature(function, filled=Budget)
        figures: dict[str, Any] = {"price_usd": price_usd, "latency_s": latency_s, "local": local}
        spec = ToolSpec(name=name or function.__name__, description=description, parameters=parameters, **figures)
        check_spec(spec)
        return FunctionTool(function, spec, budget)

    return make if function is None else make(function)


def unreachable(name: str, url: str | None, key: str = "tools.*") -> list[str]:
    """Return one sentence if nothing answers at the address of `name`; a text that is no URL is no server's address."""
    if not (url or "").startswith("http"):
        return []
    try:
        parts = urlsplit(str(url))
        address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection(address, 5.0).close()
    except (OSError, ValueError) as error:  # the latter of a name or port that there cannot be
        return [f"No server answers at {url} for {name} ({error}): start it, or correct its address in {key}."]
    return []


# A name stands for a tool, such as a decorated function, or for what makes one, such as a subclass of `Tool`.
MakeTool = Callable[[ToolContext], Tool]

TOOLS: Registry[Tool | MakeTool] = Registry(
    "tool",
    "tools.names",
    group="orchestra_jax.tools",
    builtin={
        "python": "orchestra_jax.tools.python.tool:PythonTool",
        "local_search": "orchestra_jax.tools.search.local_search:LocalSearch",
        "web_search": "orchestra_jax.tools.search.web:WebSearchTool",
        "web_extract": "orchestra_jax.tools.search.web:WebExtractTool",
        "answer": "orchestra_jax.tools.entries:AnswerTool",
    },
)
