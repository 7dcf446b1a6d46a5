"""The HTTP server of programs that heed signals themselves. It needs uvicorn (extras `mcp` and `serve`)."""

import contextlib
from collections.abc import Generator

import uvicorn


class HttpServer(uvicorn.Server):
    """uvicorn's server, which leaves SIGINT and SIGTERM to its caller: set `should_exit` to end it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the handlers of signals as they are."""
        yield
