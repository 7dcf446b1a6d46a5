"""Snippets on another machine: an HTTP server around `PythonSandbox`, and the executor that asks it.

    python -m orchestra_jax.tools.python.server --workers 8 --port 8765

POST /run {"code": str} answers {"text": str, "error": bool, "seconds": float}; GET /health answers what isolates. Where
the variable ORCHESTRA_SANDBOX_KEY is set, on both machines, requests must bear it.
"""

import argparse
import hmac
import logging
import os
from typing import TYPE_CHECKING

from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.http_json import JsonClient, require_aiohttp
from orchestra_jax.io.stopwatch import current, queued
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.tools.python.sandbox import PythonSandbox
from orchestra_jax.tools.python.spec import TOOL
from orchestra_jax.types import InfrastructureError, ToolResult, Usage

if TYPE_CHECKING:
    from aiohttp import web

KEY_VARIABLE = "ORCHESTRA_SANDBOX_KEY"
_MAX_REQUEST_BYTES = 8 << 20


class RemoteSandbox:
    """Sends each snippet to a sandbox server, in place of `PythonSandbox`.

    Args:
        url: of the server, like http://10.0.0.5:8765.
        timeout_s: seconds until an answer, the wait for one of the server's workers included.
    """

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        JsonClient(url)
        self._url, self._timeout_s = url, timeout_s
        self._closed = False

    async def run(self, code: str) -> ToolResult:
        """Execute one snippet there; its ledger row has the seconds that it ran, without waits and transfers.

        Raises:
            InfrastructureError: no answer in time, or one that is none.
        """
        if self._closed:
            raise InfrastructureError("The remote sandbox is closed; make a new one.")
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else None
        # A connection for each snippet: `close` is no coroutine and could not close one that is kept.
        client = JsonClient(self._url, headers=headers, timeout_s=self._timeout_s)
        try:
            answer = await queued(client.post("/run", {"code": code}))  # there is a queue too
        finally:
            await client.close()
        match answer:
            case {"text": str(text), "error": bool(error), "seconds": int() | float() as seconds} if seconds >= 0:
                current().add(seconds)
                return ToolResult(text, (Usage(TOOL.name, seconds=seconds),), error)
        raise InfrastructureError(f"The sandbox server {self._url} gave an answer that cannot be read.")

    def close(self) -> None:
        """Later calls raise InfrastructureError."""
        self._closed = True


def application(sandbox: PythonSandbox) -> "web.Application":
    """Return the server; it closes the sandbox when it stops."""
    from aiohttp import web

    key = os.environ.get(KEY_VARIABLE)

    def refuse(problem: str, status: int) -> web.Response:
        return web.json_response({"problem": problem}, status=status)

    async def run(request: web.Request) -> web.Response:
        said = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if key and not hmac.compare_digest(said, f"Bearer {key}".encode()):
            return refuse(f"The request does not bear {KEY_VARIABLE}.", 401)
        try:
            # A web page can make a browser send other types of content here, but not this one.
            body = read_json(await request.read()) if request.content_type == "application/json" else None
        except (Unreadable, web.RequestPayloadError, ConnectionResetError):  # the last: it hung up
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("code"), str):
            return refuse('Send JSON like {"code": "1 + 1"}.', 400)
        try:
            result = await sandbox.run(body["code"])
        except InfrastructureError as error:
            return refuse(str(error), 503)
        seconds = sum(row.seconds for row in result.usage)
        return web.json_response({"text": result.text, "error": result.is_error, "seconds": seconds})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"isolation": sandbox.kind})

    async def close(_: web.Application) -> None:
        sandbox.close()

    logging.getLogger("aiohttp.server").addFilter(_short)
    app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
    app.add_routes([web.post("/run", run), web.get("/health", health)])
    app.on_cleanup.append(close)
    return app


def _short(record: logging.LogRecord) -> bool:
    """Take the traceback from a log line about a request that is no HTTP: it is the client's mistake."""
    from aiohttp import http_exceptions, web

    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, http_exceptions.HttpProcessingError | web.RequestPayloadError):
        record.msg, record.args, record.exc_info = "Refused what is no HTTP: %r", (str(error)[:200],), None
    return True


def main() -> None:
    """Serve until it is interrupted."""
    parser = argparse.ArgumentParser(prog="orchestra_jax.tools.python.server", description="Runs snippets over HTTP.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; with another, set a key")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="snippets at the same time")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds per snippet")
    parser.add_argument("--memory", type=int, default=512, help="MiB per snippet")
    parser.add_argument("--isolation", default="auto", help="auto, bubblewrap, namespaces or none")
    options = parser.parse_args()
    if options.host not in ("127.0.0.1", "::1", "localhost") and not os.environ.get(KEY_VARIABLE):
        parser.error(f"everyone who reaches {options.host} could run code here: set {KEY_VARIABLE} to a secret")
    web = require_aiohttp("web")
    sandbox = PythonSandbox(options.workers, options.timeout, options.memory, isolation=options.isolation)
    # Code whose client has gone is not run, or ended: clients that give up ask again, and would wait behind it.
    web.run_app(application(sandbox), host=options.host, port=options.port, handler_cancellation=True)


if __name__ == "__main__":
    main()
