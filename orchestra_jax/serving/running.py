"""Run the server until it is told to stop."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestra_jax.config.exit_status import INTERRUPTED, USAGE_ERROR
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.serving import wire
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.training.stopping import end_now, handling

if TYPE_CHECKING:
    from orchestra_jax.serving.server import ServerLimits

KEY = "ORCHESTRA_API_KEY"  # environment variable with the key that clients have to send
_STOP_S = 10  # for requests under way to end, once the server is told to stop
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(policy: str, settings: Sequence[str], host: str, port: int, limits: dict[str, Any]) -> int:
    """Serve a policy; return the status to exit with. What a user can mend is one sentence."""
    try:
        with handling(end_now):
            allowed = _limits(host, limits)
            with _listening(host, port) as listening, Orchestrator.load(policy, *settings) as orchestrator:
                allowed = replace(allowed, under_way=2 * orchestrator.slots, body=_body_limit(orchestrator.max_length))
                asyncio.run(_served(orchestrator, allowed, listening, host))
    except KeyboardInterrupt:  # before it served
        return INTERRUPTED
    except ConfigError as error:
        _tell(str(error))
        return USAGE_ERROR
    _tell("Ended; everything is closed.")
    return 0


def _limits(host: str, limits: dict[str, Any]) -> "ServerLimits":
    """Return the limits of the server.

    Raises:
        ConfigError: others may reach it and no key is set, or the packages are not installed.
    """
    try:
        from orchestra_jax.serving.server import ServerLimits
    except ImportError as error:
        raise ConfigError(f"The server needs the package {error.name}: pip install 'orchestra-jax[serve]'.") from error
    key = os.environ.get(KEY) or None
    if host not in _LOOPBACK and key is None:
        raise ConfigError(f"Others can reach {host}: set the environment variable {KEY} to a key that they must send.")
    hosts = _LOOPBACK if host in _LOOPBACK else ("*",)
    return ServerLimits(**limits, key=key, hosts=hosts)


def _body_limit(tokens: int) -> int:
    """Return the most bytes of a request: what is longer than the context need not be read and tokenised."""
    return min(wire.MOST_BYTES, (64 << 10) + 16 * tokens)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens, before anything is loaded; raise ConfigError if there can be none."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"Nothing can be served at port {port} of {host} ({reason}): set --port or --host."
        ) from error
    return listening


async def _served(orchestrator: Orchestrator, limits: "ServerLimits", listening: socket.socket, host: str) -> None:
    """Serve until SIGINT or SIGTERM; a second one does not wait for requests under way."""
    import uvicorn

    from orchestra_jax.io.http_server import HttpServer
    from orchestra_jax.serving.server import ChatServer

    server = ChatServer(orchestrator, limits)
    http = HttpServer(
        uvicorn.Config(
            server.app(),
            log_level="warning",
            timeout_graceful_shutdown=_STOP_S,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
        )
    )

    def stop() -> None:
        http.force_exit, http.should_exit = http.should_exit, True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    shown = f"[{host}]" if ":" in host else host
    _tell(
        f"Serves {orchestrator.name} at http://{shown}:{listening.getsockname()[1]}/v1 "
        f"({'with' if limits.key else 'without'} a key); requests in {orchestrator.folder}. Ctrl-C ends it."
    )
    await http.serve(sockets=[listening])


def _tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
