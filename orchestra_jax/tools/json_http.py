"""JSON over HTTP with retries, for search and embedding servers; every failure is an InfrastructureError."""

import asyncio
import importlib
import json
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestra_jax.types import InfrastructureError

if TYPE_CHECKING:
    import aiohttp

_LONGEST_PAUSE_S = 30.0
_CONNECT_S = 10.0
# aiohttp's server closes a connection that was idle for 75 s, SGLang after 5 s; one that we drop first never breaks.
_KEEP_ALIVE_S = 2.0
_SHOWN = 300  # characters of a server's own error text that a message repeats


class JsonClient:
    """Posts JSON to one server and reads JSON back. Only for requests that may be repeated.

    Transport errors, time-outs, cut-off answers and the statuses 408, 429 and 5xx are tried again, after a pause that
    doubles each time and is jittered by half, or as long as Retry-After says, at most 30 s.

    Args:
        url: of the server, such as "http://127.0.0.1:8000".
        headers: sent with every request; they never appear in an error.
        timeout_s: for one whole answer.
        retries: further requests after the first.
        backoff_s: pause before the first retry.

    Raises:
        ImportError: aiohttp is not installed.
        ValueError: no http(s) URL.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        retries: int = 4,
        backoff_s: float = 0.5,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"The server's address {url!r} is no URL; write it like http://127.0.0.1:8000.")
        require_aiohttp()
        self.url = url.rstrip("/")
        self._headers = dict(headers or {})
        self._timeout_s, self._retries, self._backoff_s = timeout_s, retries, backoff_s
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that the server answers.

        Raises:
            InfrastructureError: no usable answer after the last retry, or a status that no retry would change.
        """
        data = json.dumps(dict(body)).encode()
        for attempt in range(self._retries + 1):
            try:
                return await self._post(path, data)
            except _RequestError as failure:
                if not failure.again or attempt == self._retries:
                    raise InfrastructureError(str(failure)) from None  # aiohttp's errors hold the headers
                pause = failure.pause_s
            if pause is None:
                pause = self._backoff_s * 2**attempt * random.uniform(0.5, 1.5)
            await asyncio.sleep(min(pause, _LONGEST_PAUSE_S))
        raise AssertionError

    async def close(self) -> None:
        """Closes the connections; a later request opens new ones."""
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()

    def _open(self) -> "aiohttp.ClientSession":
        """The session of the running event loop; a run may use several loops after one another."""
        aiohttp = require_aiohttp()
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
            self._session, self._loop = aiohttp.ClientSession(connector=connector), loop
        return self._session

    async def _post(self, path: str, data: bytes) -> Any:
        aiohttp, name = require_aiohttp(), f"The server {self.url}{path}"
        headers = {**self._headers, "Content-Type": "application/json"}
        limits = aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=min(_CONNECT_S, self._timeout_s))
        try:
            async with self._open().post(
                self.url + path, data=data, headers=headers, timeout=limits, allow_redirects=False
            ) as response:
                content, status, asked = await response.read(), response.status, response.headers.get("Retry-After")
        except TimeoutError as error:
            raise _RequestError(f"{name} gave no answer in {self._timeout_s:g} s.") from error
        except (aiohttp.ClientError, OSError) as error:
            text = self._shown(str(error)) or type(error).__name__
            raise _RequestError(f"{name} cannot be reached or broke off ({text}).") from error
        if not 200 <= status < 300:
            shown = self._shown(content.decode(errors="replace")) or "no text"
            again = status in (408, 429) or status >= 500
            raise _RequestError(f"{name} answered with status {status}: {shown}", again, _seconds(asked))
        try:
            return json.loads(content)
        except ValueError as error:
            shown = self._shown(content.decode(errors="replace"))
            raise _RequestError(f"{name} answered with what is not JSON: {shown!r}.") from error

    def _shown(self, text: str) -> str:
        """The start of a server's text, without the headers' values: some servers repeat a bad key."""
        for value in self._headers.values():
            for secret in (value, value.removeprefix("Bearer ")):
                text = text.replace(secret, "***")
        return text.strip()[:_SHOWN]


def require_aiohttp(part: str = "") -> Any:
    """The module aiohttp, or its submodule `part`.

    Raises:
        ImportError: it is not installed; says how to.
    """
    try:
        return importlib.import_module(f"aiohttp.{part}" if part else "aiohttp")
    except ImportError as error:
        raise ImportError(
            "Search and embedding servers need aiohttp; install it with pip install orchestra-jax[tools]."
        ) from error


class _RequestError(Exception):
    """One request failed. `again`: another may work; `pause_s`: seconds that the server asks for first."""

    def __init__(self, message: str, again: bool = True, pause_s: float | None = None) -> None:
        super().__init__(message)
        self.again, self.pause_s = again, pause_s


def _seconds(header: str | None) -> float | None:
    """Retry-After in seconds; its form as a date is left to the back-off."""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None
