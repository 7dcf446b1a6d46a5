"""JSON over HTTP: the client for every server, and one kind of error for everything that can go wrong."""

import asyncio
import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal

from orchestra_jax.io.fields import one_line
from orchestra_jax.io.foreign_json import MOST_BYTES, read_json
from orchestra_jax.io.stopwatch import queued
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.types import InfrastructureError

if TYPE_CHECKING:
    import aiohttp
    from tenacity import RetryCallState

CONNECT_S = 10.0  # a server that takes longer to accept a connection counts as dead
# SGLang closes an idle connection after 5 s, aiohttp after 75 s. A connection that we drop first never breaks.
_KEEP_ALIVE_S = 2.0
_LONGEST_PAUSE_S = 30.0
_SHOWN = 300  # most characters of a server's own error text in a message

Kind = Literal["transport", "status", "timeout", "protocol"]


class ServerError(InfrastructureError):
    """A request to one server failed.

    Attributes:
        kind: "transport": the connection was refused, reset or closed before a byte of the answer; "status": the server
            answered with an error; "timeout": no whole answer in time; "protocol": an answer that is cut off, not JSON,
            or not what was asked for.
        status: HTTP status of kind "status", else None.
        sent: whether the request may have reached the server; False where no connection was made.
        retry_after_s: seconds that the server asks to wait, None where it does not say.
    """

    def __init__(
        self,
        message: str,
        kind: Kind,
        status: int | None = None,
        *,
        sent: bool = True,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.status, self.sent, self.retry_after_s = kind, status, sent, retry_after_s

    @property
    def may_pass(self) -> bool:
        """Return whether the same request may succeed later: unless a status says that the request itself is wrong."""
        return self.status is None or self.status in (408, 429) or self.status >= 500


@dataclass(frozen=True, slots=True)
class Response:
    """A server's answer of any status.

    Attributes:
        headers: by name, in any case.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes


class JsonClient:
    """A client of one server, for one event loop. Connections are opened when needed and kept for a moment.

    Args:
        url: of the server, such as "http://127.0.0.1:8000".
        headers: headers of every request; their values never appear in an error.
        timeout_s: seconds for one whole answer, if a request does not say.
        retries: further requests of `post` after one that failed and may succeed later; 0 for requests that must not be
            repeated.
        backoff_s: pause before the first retry; it doubles each time and has up to `backoff_s` of jitter. A server's
            own Retry-After comes first. No pause is above 30 s.

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
        retries: int = 0,
        backoff_s: float = 0.5,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"The server's address {url!r} is no URL; write it like http://127.0.0.1:30000.")
        require_aiohttp()
        self.url = url.rstrip("/")
        self._headers = dict(headers or {})
        self._timeout_s, self._retries, self._backoff_s = timeout_s, retries, backoff_s
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the answer to GET, {} if it is empty; raise ServerError if no JSON object comes in time."""
        found = await self._json("GET", path, None, timeout_s)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise ServerError(f"{self._name(path)} answered a {type(found).__name__}, not an object.", "protocol")
        return found

    async def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """Return the answer to POST, or None if it is empty.

        Raises:
            ServerError: no JSON in time, after the last retry.
        """
        data = json.dumps(dict(body)).encode()
        if not self._retries:
            return await self._json("POST", path, data, timeout_s)
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._retries + 1),
            retry=retry_if_exception(lambda error: isinstance(error, ServerError) and error.may_pass),
            wait=self._pause,
            sleep=lambda seconds: queued(asyncio.sleep(seconds)),
            reraise=True,
        )
        return await retrying(self._json, "POST", path, data, timeout_s)

    async def request(
        self,
        method: str,
        path: str,
        *,
        data: bytes | None = None,
        query: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Response:
        """Return the whole answer to one request, of any status.

        Raises:
            ServerError: of the kinds "transport", "timeout" and "protocol".
        """
        aiohttp, name, seconds = require_aiohttp(), self._name(path), timeout_s or self._timeout_s
        kind = {} if data is None else {"Content-Type": "application/json"}
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=min(CONNECT_S, seconds))
        answered = False
        try:
            async with self._open().request(
                method,
                self.url + path,
                data=data,
                params=query,
                timeout=limits,
                allow_redirects=False,
                headers={**self._headers, **kind},
            ) as response:
                answered = True
                content = await _read(response)
                if content is not None:
                    return Response(response.status, response.headers, content)
                failure = ServerError(f"{name} gave an answer of more than {MOST_BYTES} bytes.", "protocol")
        except aiohttp.ConnectionTimeoutError:
            failure = ServerError(f"{name} did not accept a connection in {CONNECT_S:g} s.", "transport", sent=False)
        except TimeoutError:
            failure = ServerError(f"{name} gave no whole answer in {seconds:g} s.", "timeout")
        except (aiohttp.ClientError, OSError) as error:
            text = self.shown(str(error) or type(error).__name__)
            # A status line that is no HTTP at all is an answer too.
            answered |= isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientResponseError)
            if answered:
                failure = ServerError(f"{name} gave an answer that is cut off or no HTTP ({text}).", "protocol")
            else:
                said = f"{name} cannot be reached or closed the connection ({text})."
                sent = not isinstance(error, aiohttp.ClientConnectorError)
                failure = ServerError(said, "transport", sent=sent)
        raise failure  # out here, where aiohttp's error, which holds the headers, is not chained to it

    async def close(self) -> None:
        """Close the connections. A later request opens new ones."""
        if self._session is not None:
            await self._session.close()

    def shown(self, text: str) -> str:
        """Return the start of a server's text in one line, without the headers' values: some repeat a bad key."""
        for value in self._headers.values():
            text = text.replace(value.removeprefix("Bearer "), "***")
        return one_line(text)[:_SHOWN]

    async def _json(self, method: str, path: str, data: bytes | None, timeout_s: float | None) -> Any:
        """Return the JSON of an answer with a status of success; None where it is empty."""
        name, answer = self._name(path), await self.request(method, path, data=data, timeout_s=timeout_s)
        shown = self.shown(answer.content.decode(errors="replace"))
        if not 200 <= answer.status < 300:
            said = f"{name} answered with status {answer.status}: {shown or 'no text'}."
            raise ServerError(said, "status", answer.status, retry_after_s=retry_after(answer.headers))
        if not answer.content.strip():
            return None
        try:
            return read_json(answer.content)
        except Unreadable as problem:
            said = f"{name} gave an answer that cannot be read, as {problem}: {shown!r}."
            raise ServerError(said, "protocol") from None

    def _name(self, path: str) -> str:
        return f"The server {self.url}{path}"

    def _open(self) -> "aiohttp.ClientSession":
        if self._session is None or self._session.closed:
            aiohttp = require_aiohttp()
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    def _pause(self, state: "RetryCallState") -> float:
        """Return the seconds until the next try."""
        from tenacity import wait_exponential, wait_random

        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.retry_after_s if isinstance(error, ServerError) else None
        backoff = wait_exponential(self._backoff_s, max=_LONGEST_PAUSE_S) + wait_random(0, self._backoff_s)
        return min(backoff(state) if asked is None else asked, _LONGEST_PAUSE_S)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a response asks to wait, by retry-after-ms or Retry-After, or None."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if not value:
            continue
        try:
            seconds = float(value) / unit
        except ValueError:
            try:
                seconds = (parsedate_to_datetime(value).astimezone(UTC) - datetime.now(UTC)).total_seconds()
            except (ValueError, OverflowError, TypeError, LookupError):
                continue  # no date, or one beyond the last year
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


async def _read(response: "aiohttp.ClientResponse") -> bytes | None:
    """Return the whole content, or None if it is longer than an answer may be. That of a failure may break off."""
    content = bytearray()
    try:
        async for part in response.content.iter_any():
            content += part
            if len(content) > MOST_BYTES:
                return None
    except require_aiohttp().ClientPayloadError:
        if response.status < 500:
            raise
    return bytes(content)


def require_aiohttp(part: str = "") -> Any:
    """Return the module aiohttp, or its submodule `part`; raise an ImportError that tells how to install it."""
    try:
        return importlib.import_module(f"aiohttp.{part}" if part else "aiohttp")
    except ImportError:
        raise ImportError("Servers are called with aiohttp; pip install orchestra-jax[tools].") from None
