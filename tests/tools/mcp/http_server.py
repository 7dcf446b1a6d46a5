"""An MCP server over HTTP, of the package itself: in a thread of the test, and gone at once where it is told to be."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from tests.processes.running import free_port


def _server(ended: asyncio.Event) -> MCPServer:
    server = MCPServer("over-http", version="3.1")

    @server.tool()
    async def double(number: int) -> str:
        """Doubles a number."""
        if number < 0:
            raise ToolError("Only numbers from 0.")
        return str(2 * number)

    @server.tool()
    async def hang() -> str:
        """Never answers."""
        await ended.wait()
        return ""

    @server.tool()
    async def token(context: Context) -> str:
        """Says what the request bore."""
        return str((context.headers or {}).get("x-token"))

    return server


class Http:
    """The server at one port, which can be stopped in mid-call and started again.

    Attributes:
        url: its address.
    """

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/mcp"

    def start(self) -> None:
        """Listens when this returns."""
        self._listening, self._end = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._listening.wait(60)

    def stop(self) -> None:
        """Breaks off all requests and frees the port."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = _server(asyncio.Event()).streamable_http_app()
        server = uvicorn.Server(uvicorn.Config(app, port=self._port, log_level="critical"))
        task = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.01)
        self._listening.set()
        await self._end.wait()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        server.should_exit = server.force_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.contextmanager
def http_server() -> Iterator[Http]:
    """The server, started."""
    server = Http()
    server.start()
    try:
        yield server
    finally:
        server.stop()
