"""Run the server until it is told to stop."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra_jax.config.exit_status import INTERRUPTED, USAGE_ERROR
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.config.served_path import FILE
from orchestra_jax.serving.answers import tell
from orchestra_jax.serving.opened import FOLDER, checked_settings, open_checked
from orchestra_jax.training.stopping import end_now, handling

if TYPE_CHECKING:
    from orchestra_jax.serving.server import ChatServer

KEY = "ORCHESTRA_API_KEY"  # environment variable with the key that clients have to send
_STOP_S = 10  # for requests under way to end, once the server is told to stop
_LAST_S = 2  # for clients to read that their requests were ended
_HOUR_S = 3600
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    policy: str,
    settings: Sequence[str],
    host: str,
    port: int,
    limits: dict[str, Any],
    address: str | None = None,
    follow: str | None = None,
    canary: float | None = None,
    keys: str | None = None,
) -> int:
    """Serve a policy; return the status to exit with. What a user can mend is one sentence.

    Args:
        limits: fields of `ServerLimits`.
        address: address of the database; None: a file in the folder.
        follow: folder of a run or checkpoint, whose other weights are taken up.
        canary: share of the conversations that they answer; None: all.
    """
    try:
        with handling(end_now), contextlib.ExitStack() as parts:
            listening = parts.enter_context(_listening(host, port))
            # What is wrong is told before a policy is loaded, which may take minutes; a wrong path before JAX is.
            checked = checked_settings(policy, settings)
            try:
                from orchestra_jax.serving import wire
                from orchestra_jax.serving.canary import Canary, check_canary
                from orchestra_jax.serving.database import opened
                from orchestra_jax.serving.following import Follower
                from orchestra_jax.serving.key_file import KeyFile, read_key_file
                from orchestra_jax.serving.orchestrator import Orchestrator
                from orchestra_jax.serving.server import ChatServer, ServerLimits
            except ImportError as error:
                raise ConfigError(
                    f"The server needs the package {error.name}: pip install 'orchestra-jax[serve]'."
                ) from error
            hosts = _LOOPBACK if host in _LOOPBACK else ("*",)
            allowed = ServerLimits(**limits, key=os.environ.get(KEY) or None, hosts=hosts)
            check_canary(canary, follow)
            if keys is not None:
                read_key_file(Path(keys))
            place = address or Path(checked.output_dir, FOLDER, FILE)
            if host not in _LOOPBACK and not (allowed.key or keys or _has_keys(place)):
                raise ConfigError(
                    f"Others can reach {host}: make a key (orchestra-jax served {policy} add-key NAME), or set the "
                    f"environment variable {KEY} to a key that they must send."
                )
            orchestrator = parts.enter_context(Orchestrator(open_checked(checked, alone=False)))
            divided = None if canary is None else Canary(orchestrator, canary)
            database = parts.enter_context(opened(place))
            parts.callback(orchestrator.close)  # its requests end before the database closes; twice is harmless
            if divided is not None:
                parts.callback(divided.close)
            key_file = None if keys is None else KeyFile(database, Path(keys))
            # What is longer than the context need not be read and tokenised.
            body = min(wire.MOST_BYTES, (64 << 10) + 16 * orchestrator.max_length)
            allowed = replace(allowed, under_way=2 * orchestrator.slots, body=body)
            server = ChatServer(orchestrator, database, allowed, divided)
            follower = None if follow is None else Follower(divided or orchestrator, Path(follow))
            beside = [each.follow() for each in (follower, key_file) if each is not None]
            asyncio.run(_served(server, listening, host, beside))
    except KeyboardInterrupt:  # before it served
        return INTERRUPTED
    except ConfigError as error:
        tell(str(error))
        return USAGE_ERROR
    tell("Ended; everything is closed.")
    return 0


def _has_keys(place: str | Path) -> bool:
    """Return whether keys are in force in a database, which is not made here."""
    from orchestra_jax.serving.database import opened
    from orchestra_jax.serving.keys import KeyRing

    if isinstance(place, Path) and not place.is_file():
        return False
    with opened(place) as database:
        return bool(KeyRing(database, None).read().known)


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


async def _served(
    server: "ChatServer", listening: socket.socket, host: str, beside: Sequence[Coroutine[Any, Any, None]]
) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends requests under way. `beside` runs meanwhile."""
    import uvicorn

    from orchestra_jax.io.http_server import HttpServer

    http = HttpServer(
        uvicorn.Config(
            server.app(),
            log_level="warning",
            timeout_graceful_shutdown=_STOP_S + _LAST_S,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
        )
    )

    def stop() -> None:
        if not http.should_exit:
            loop.call_later(_STOP_S, server.stopping.set)
            if server.under_way:
                tell(f"Stops; requests under way: {server.under_way}. They have {_STOP_S} s; Ctrl-C ends them now.")
        else:
            http.force_exit = server.stopping.is_set()
            server.stopping.set()
        http.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    shown = f"[{host}]" if ":" in host else host
    needed = "with" if server.keys.read().needed else "without"
    tell(
        f"Serves {server.orchestrator.name} at http://{shown}:{listening.getsockname()[1]}/v1 "
        f"({needed} keys); requests in {server.database.shown}. Ctrl-C ends it."
    )
    tasks = [asyncio.create_task(each) for each in (_forget(server), *beside)]
    await http.serve(sockets=[listening])
    for task in tasks:
        task.cancel()


async def _forget(server: "ChatServer") -> None:
    """Delete what is older than it may be kept, each hour."""
    from orchestra_jax.serving.ledger import forget

    while True:
        with contextlib.suppress(OSError):  # the next hour tries again
            await asyncio.wrap_future(forget(server.database, server.limits.keep_days))
        await asyncio.sleep(_HOUR_S)
