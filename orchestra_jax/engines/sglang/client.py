"""One SGLang server's HTTP: JSON in, JSON out, and every failure as one kind of error."""

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from orchestra_jax.types import InfrastructureError

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 10.0  # a server on the same network that takes longer to accept a connection is as good as dead
# SGLang closes a connection that was idle for 5 s; one that we drop first never breaks under a request.
_KEEP_ALIVE_S = 2.0
_SHOWN = 300  # characters of a server's own error text that a message repeats

Kind = Literal["transport", "status", "timeout", "protocol"]


class WorkerError(InfrastructureError):
    """A request to one server failed.

    Attributes:
        kind: "transport": the connection was refused, reset or closed before a byte of the answer; "status": the server
            answered with an error; "timeout": no whole answer in time; "protocol": an answer that is cut off, not JSON,
            or not what was asked for.
        status: HTTP status of kind "status", else None.
    """

    def __init__(self, message: str, kind: Kind, status: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.status = kind, status


class Worker:
    """One server, reached by URL. Connections are opened when needed and kept for a moment.

    Args:
        url: where the server listens, such as "http://10.0.0.7:30000".

    Raises:
        ImportError: aiohttp is not installed.
        ValueError: no http(s) URL.
    """

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"The server's address {url!r} is no URL; write it like http://127.0.0.1:30000.")
        _aiohttp()
        self.url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def get(self, path: str, *, timeout_s: float) -> dict[str, Any]:
        """The answer to GET; {} where it is empty.

        Raises:
            WorkerError: no JSON object within `timeout_s` seconds.
        """
        found = await self._request("GET", path, None, timeout_s)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise WorkerError(f"{self._name(path)} answered a {type(found).__name__}, not an object.", "protocol")
        return found

    async def post(self, path: str, body: Mapping[str, Any] | bytes, *, timeout_s: float) -> Any:
        """The answer to POST; None where it is empty. A body of bytes is JSON already, for what is large.

        Raises:
            WorkerError: no JSON within `timeout_s` seconds.
        """
        data = body if isinstance(body, bytes) else json.dumps(dict(body)).encode()
        return await self._request("POST", path, data, timeout_s)

    async def close(self) -> None:
        """Closes the connections; a later request opens new ones."""
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()

    def _name(self, path: str) -> str:
        return f"The server {self.url}{path}"

    def _open(self) -> "aiohttp.ClientSession":
        """The session of the running event loop."""
        aiohttp = _aiohttp()
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            # What a former loop left is closed with it: its sockets cannot be closed from here.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
            self._session, self._loop = aiohttp.ClientSession(connector=connector, trust_env=False), loop
        return self._session

    async def _request(self, method: str, path: str, data: bytes | None, timeout_s: float) -> Any:
        aiohttp, name = _aiohttp(), self._name(path)
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_S, timeout_s))
        headers = {"Content-Type": "application/json"}
        answered = False
        try:
            async with self._open().request(
                method, self.url + path, data=data, headers=headers, timeout=limits, allow_redirects=False
            ) as response:
                answered = True
                content = await response.read()
                status = response.status
        except aiohttp.ConnectionTimeoutError as error:
            raise WorkerError(f"{name} did not accept a connection in {CONNECT_S:g} s.", "transport") from error
        except TimeoutError as error:
            raise WorkerError(f"{name} gave no whole answer in {timeout_s:g} s.", "timeout") from error
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError, aiohttp.ServerDisconnectedError, OSError) as e:
            # A status line that is no HTTP at all is an answer too.
            if answered or isinstance(e, aiohttp.ClientPayloadError | aiohttp.ClientResponseError):
                raise WorkerError(f"{name} gave an answer that is cut off or no HTTP ({_text(e)}).", "protocol") from e
            raise WorkerError(f"{name} cannot be reached or closed the connection ({_text(e)}).", "transport") from e
        if not 200 <= status < 300:
            shown = content.decode(errors="replace").strip()[:_SHOWN] or "no text"
            raise WorkerError(f"{name} answered with status {status}: {shown}.", "status", status)
        if not content.strip():
            return None
        try:
            return json.loads(content)
        except ValueError as error:
            shown = content[:_SHOWN].decode(errors="replace")
            raise WorkerError(f"{name} answered with what is not JSON: {shown!r}.", "protocol") from error


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _aiohttp() -> Any:
    try:
        import aiohttp
    except ImportError as error:
        raise ImportError('Talking to SGLang needs aiohttp; install it with pip install -e ".[sglang]".') from error
    return aiohttp
