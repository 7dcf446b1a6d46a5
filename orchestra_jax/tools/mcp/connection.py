"""One connection to an MCP server: the process of a command, or HTTP; opened and closed by one task of its own."""

import asyncio
import contextlib
import logging
import os
import shlex
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from orchestra_jax.config.mcp import McpServer
from orchestra_jax.config.ranges import shown
from orchestra_jax.io.foreign_json import read_json, valid_value
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.types import InfrastructureError

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

_CONNECT_S = 30.0
_CLOSE_S = 15.0  # the package asks a process to end, then tells it, then kills it: 6.5 s at most
_CHECK_S = 5.0
_HEARD = 2000  # characters kept of what a process last said on its standard error
_PAGES = 100  # of a tool list, whose end a broken server never reaches


class Connection:
    """A connection that opens at once, and closes when it was retired and its last call has ended.

    It is used in one event loop.

    Attributes:
        retired: it takes no further calls.
    """

    def __init__(self, settings: McpServer) -> None:
        self._settings = settings
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._end, self._calls, self.retired, self._said = asyncio.Event(), 0, False, ""
        self._task = asyncio.create_task(self._live())

    @property
    def closed(self) -> bool:
        """True if nothing of it is left."""
        return self._task.done()

    async def open(self, patience_s: float) -> dict[str, Any]:
        """Wait until it can be used; return the server's name, version and tools as plain JSON.

        Raises:
            InfrastructureError: it cannot be started or reached, or not in time, or does not list its tools.
        """
        try:
            async with asyncio.timeout(patience_s):
                client = await asyncio.shield(self._opened)
                tools = await _tools(client)
        except TimeoutError:
            await self.close()
            raise InfrastructureError(self._sentence(f"did not answer within {patience_s:g} s of its start")) from None
        except InfrastructureError:
            raise
        except Exception as error:  # of the package, whatever it is
            await self.close()
            raise InfrastructureError(self._sentence(f"does not list its tools: {_innermost(error)}")) from None
        except BaseException:
            await self.close()
            raise
        info = client.server_info  # a server need not say who it is
        name, version = (info.name, info.version) if info else ("", "")
        return {"server": {"name": name, "version": version, "protocol": client.protocol_version}, "tools": tools}

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> "CallToolResult":
        """Call a tool; raise what the package raises, and TimeoutError."""
        self._calls += 1
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await self._opened.result().call_tool(tool, valid_value(dict(arguments)))
        finally:
            self._calls -= 1
            self._end_if_unused()

    def retire(self) -> None:
        """Take no further calls; those under way, each of which has a time limit, may end."""
        self.retired = True
        self._end_if_unused()

    async def close(self) -> None:
        """End it now, and the process with it."""
        self.retired = True
        self._end.set()
        if not self._opened.done():
            self._task.cancel()
        done, _ = await asyncio.wait([self._task], timeout=_CLOSE_S)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_S)

    async def _check(self) -> None:
        """Retire the connection of a server that does not answer."""
        try:
            async with asyncio.timeout(_CHECK_S):
                await (await self._opened).list_tools(cache_mode="bypass")
        except Exception:  # whatever it is: a new connection is the remedy
            self.retire()

    def _end_if_unused(self) -> None:
        if self.retired and not self._calls:
            self._end.set()

    async def _live(self) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                self._opened.set_result(await self._client(stack))
                await self._end.wait()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # whatever a server's end makes the package raise
            if not self._opened.done():
                failure = InfrastructureError(self._sentence(f"cannot be used: {_innermost(error)}"))
                self._opened.set_exception(failure)
                self._opened.exception()  # seen, where nobody waits any more
        finally:
            self.retired = True
            self._opened.cancel()

    async def _client(self, stack: contextlib.AsyncExitStack) -> "Client":
        """Return a client of the server: one at an address, or one that is started here as a program."""
        import httpx2
        from mcp import Client, StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        settings = self._settings
        # What they say of every request and failure, we say in a sentence where needed.
        for name in ("mcp", "httpx2", "client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        values = {name: os.environ[name] for name in settings.variables if name in os.environ}
        if settings.url:
            headers = {header: values.get(name, "") for header, name in settings.headers.items()}
            limits = httpx2.Timeout(_CONNECT_S, read=None)  # a call has a limit of its own
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=limits))
            remote = streamable_http_client(settings.url, http_client=http)
            return await stack.enter_async_context(Client(_mending(remote)))
        program, *words = shlex.split(settings.server)
        parameters = StdioServerParameters(command=program, args=words, env=values, encoding_error_handler="replace")
        async with self._ear(stack) as heard:
            return await stack.enter_async_context(Client(_mending(stdio_client(parameters, errlog=heard))))

    @contextlib.asynccontextmanager
    async def _ear(self, stack: contextlib.AsyncExitStack) -> AsyncIterator[Any]:
        """Open a file for the standard error of a process; its end is kept for the sentence of a failure."""
        loop, (reader, writer) = asyncio.get_running_loop(), os.pipe()
        checks = set[asyncio.Task[None]]()
        os.set_blocking(reader, False)

        def hear() -> None:
            with contextlib.suppress(BlockingIOError):
                if said := os.read(reader, 1 << 16):
                    self._said = (self._said + said.decode(errors="replace"))[-_HEARD:]
                else:  # it has ended, most likely: better known now than by the next call
                    loop.remove_reader(reader)
                    checks.add(asyncio.create_task(self._check()))

        def deafen() -> None:
            for check in checks:
                check.cancel()
            loop.remove_reader(reader)
            os.close(reader)

        loop.add_reader(reader, hear)
        stack.callback(deafen)
        with os.fdopen(writer, "w") as file:  # the process keeps a copy
            yield file

    def _sentence(self, what: str) -> str:
        lines = [line.strip() for line in self._said.splitlines() if line.strip()]
        last = f" Its last words: {shown(lines[-1]).rstrip('.')}." if lines else ""
        return f"The MCP server {shown(self._settings.label)} {what}.{last}"


async def _tools(client: "Client") -> list[dict[str, Any]]:
    found, cursor = list[dict[str, Any]](), None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            title = tool.title or (tool.annotations.title if tool.annotations else None)
            about = {"name": tool.name, "description": tool.description or title or "", "schema": tool.input_schema}
            found.append(about | {"read_only": bool(tool.annotations and tool.annotations.read_only_hint)})
        cursor = page.next_cursor
        if not cursor:  # some servers write an empty one instead of none
            break
    return found


@contextlib.asynccontextmanager
async def _mending(transport: Any) -> AsyncIterator[Any]:
    """Open a transport whose messages are mended."""
    async with transport as (read, write, *_):
        yield _Mended(read), write


class _Mended:
    """The incoming messages of a transport; one with half of a surrogate pair is mended, while the package drops it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "_Mended":
        return self

    async def __anext__(self) -> Any:
        return _mended(await self._stream.__anext__())

    async def receive(self) -> Any:
        return _mended(await self._stream.receive())

    async def __aenter__(self) -> "_Mended":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stream.__aexit__(*error)


def _mended(item: Any) -> Any:
    """Return a message; for the package's error of a text that it could not read, the message that we read in it."""
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter
    from pydantic import ValidationError

    if not isinstance(item, ValidationError):
        return item
    text = item.errors()[0]["input"]
    try:
        value = read_json(text if isinstance(text, bytes) else str(text).encode())
        return SessionMessage(jsonrpc_message_adapter.validate_python(value, by_name=False))
    except (Unreadable, ValidationError):
        return item


def _innermost(error: BaseException) -> str:
    """Return the message of the error within the groups that the package's tasks make of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return shown(str(error).rstrip(".") or type(error).__name__)
