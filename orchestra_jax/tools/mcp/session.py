"""An MCP server as a run uses it: one connection for all calls, and a new one after it died."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from orchestra_jax.config.mcp import McpServer
from orchestra_jax.config.ranges import shown
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.io.stopwatch import queued
from orchestra_jax.money.limits import Limiter
from orchestra_jax.tools.mcp.connection import Connection
from orchestra_jax.types import InfrastructureError, ToolResult

T = TypeVar("T")
START_S = 60.0  # a command may have to fetch its package first
BACKOFF_S = 0.5  # doubles with every try to start it


class McpSession:
    """The calls of one run to one server. It is started when first needed.

    Args:
        background: event loop in which its connections live. The `mcp` package wants a connection closed by the task
            that opened it, and tools are listed before a run has an event loop.
        concurrency: most calls of this process that are under way at once.
    """

    def __init__(self, settings: McpServer, background: LoopThread, concurrency: int) -> None:
        self._settings, self._background = settings, background
        self._limiter = Limiter(concurrency)
        self._listed: dict[str, Any] | None = None  # by the first connection; later ones must be of the same server
        self._connections: list[Connection] = []  # the last one takes calls; others end theirs
        self._starting: asyncio.Task[Connection] | None = None
        self._closed = False

    def listing(self) -> dict[str, Any]:
        """Return the server's name, version and tools as plain JSON. Blocks.

        Raises:
            InfrastructureError: it cannot be started or reached, or does not say.
        """
        self._background.run(self._connected())
        assert self._listed is not None
        return self._listed

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool, from any event loop; an error that the server reports is an observation.

        Raises:
            InfrastructureError: it died, hung or broke the protocol; the next call goes to a new connection.
        """
        await self._limiter.acquire()
        try:
            self._check_open()
            # The time of a start is nobody's work.
            await queued(self._awaited(self._connected()))
            return await self._awaited(self._call(tool, arguments))
        finally:
            self._limiter.release()

    async def close(self) -> None:
        """End its connections, and with them the processes; a later call raises InfrastructureError."""
        await self._awaited(self._close())

    async def _awaited(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine of the background's event loop; it is cancelled with its caller."""
        return await asyncio.wrap_future(self._background.start(coroutine))

    # All below runs in the background's event loop.

    async def _call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        from mcp import MCPError
        from mcp.types import INVALID_PARAMS

        connection = await self._connected()
        try:
            result = await connection.call(tool, arguments)
        except TimeoutError:
            connection.retire()
            said = f"gave no answer to {tool} within {self._settings.timeout_s:g} s"
            raise InfrastructureError(self._sentence(said)) from None
        except MCPError as error:
            if error.code == INVALID_PARAMS:  # it is the policy who chose them
                return ToolResult(error.message, is_error=True)
            connection.retire()
            raise InfrastructureError(self._sentence(f"failed in a call of {tool}", error)) from None
        except Exception as error:  # of the package: an answer that is none, a stream that has ended
            connection.retire()
            raise InfrastructureError(self._sentence(f"failed in a call of {tool}", error)) from None
        return ToolResult(text_of(result), is_error=result.is_error)

    async def _connected(self) -> Connection:
        """Return the connection that takes calls; a start serves all who wait for it."""
        self._check_open()
        if self._starting is None:  # the last one is open then
            if self._connections and not self._connections[-1].retired:
                return self._connections[-1]
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(self._started)
        return await asyncio.shield(self._starting)

    def _started(self, task: "asyncio.Task[Connection]") -> None:
        self._starting = None
        if not task.cancelled():
            task.exception()  # seen, where nobody waits any more

    async def _start(self) -> Connection:
        failure: InfrastructureError | None = None
        for attempt in range(self._settings.retries + 1):
            if attempt:
                await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
            connection = Connection(self._settings)
            self._connections = [*(each for each in self._connections if not each.closed), connection]
            try:
                listed = await connection.open(START_S)
            except InfrastructureError as error:
                failure = error
                continue
            if self._listed not in (None, listed):
                connection.retire()
                raise InfrastructureError(self._sentence(changed(self._listed or {}, listed)))
            self._listed = listed
            return connection
        assert failure is not None
        raise failure

    async def _close(self) -> None:
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await asyncio.gather(*(connection.close() for connection in self._connections))

    def _check_open(self) -> None:
        if self._closed:
            raise InfrastructureError(self._sentence("was closed"))

    def _sentence(self, what: str, error: Exception | None = None) -> str:
        why = f": {shown(str(error).rstrip('.') or type(error).__name__)}" if error is not None else ""
        return f"The MCP server {shown(self._settings.label)} {what}{why}."


def changed(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words how two listings of one server differ."""
    old, new = (
        (info["name"] or "without a name", info["version"], info["protocol"]) for info in (was["server"], now["server"])
    )
    if old == new:
        return "lists other tools or schemas now"
    return "was {} {} (protocol {}) and is {} {} (protocol {}) now".format(*map(shown, (*old, *new)))


def text_of(result: Any) -> str:
    """Return the observation of a result: its texts, and a note for everything else.

    Structured content is shown where there is no text, as servers repeat it there for those that do not know it.
    """
    parts = []
    for block in result.content:
        match block.type:
            case "text":
                parts.append(block.text)
            case "resource" if getattr(block.resource, "text", None) is not None:
                parts.append(block.resource.text)
            case "resource" | "resource_link":
                parts.append(f"[resource {getattr(block, 'uri', None) or block.resource.uri}]")
            case kind:
                parts.append(f"[{kind} {block.mime_type}, not shown]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)
