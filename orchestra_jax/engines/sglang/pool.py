"""A pool of servers: which may take work, under which weights, and how a lost one comes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from orchestra_jax.engines.sglang.client import WEIGHTS, SGLangClient, UpdateError
from orchestra_jax.engines.sglang.weight_sync import DiskWeightSync
from orchestra_jax.io.http_json import ServerError
from orchestra_jax.io.stopwatch import queued
from orchestra_jax.types import OutOfTime

_HEALTH_S = 5.0  # /health samples a token, which takes a second or more
# A busy server is no hung one: SGLang's /health answers as soon as its scheduler sends any token of any request, and
# after 20 s with a status 503. With the usual 10 s between looks a server that hangs is lost after 80 to 90 s.
_MISSES = 3
_LOOK, _HANG = 2.0, 6.0  # pauses between looks: that a look may take, and that a server which hangs was silent


class NoServer(OutOfTime):
    """No server took work for so long that the run gives up the step under way."""


class SGLangPool:
    """Hands out servers, gives them new weights, and brings lost ones back.

    A server is used only when it holds the current weights: it is asked before its first work and after every loss,
    and gets them first if it does not.

    Args: see `SGLangEngine`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        weight_sync: DiskWeightSync,
        *,
        version: int,
        concurrency: int,
        probe_s: float,
        beat_s: float,
        releases: bool,
        down_timeout_s: float,
        revive: Callable[[str, bool], Awaitable[None]] | None,
    ) -> None:
        if not urls or len(set(urls)) < len(urls):
            raise ValueError(f"The server URLs {list(urls)} are none or not distinct; give each server once.")
        self.servers = [SGLangClient(url, concurrency) for url in urls]
        self.version = version
        self.params: Any = None
        self._weight_sync, self._revive, self.label = weight_sync, revive, weight_sync.label
        self._probe_s, self._beat_s, self._down_timeout_s = probe_s, beat_s, down_timeout_s
        self._beats = list[asyncio.Task[None]]()
        # /health samples a token, and a server dies that shall release its memory meanwhile.
        self._beat_path = "/model_info" if releases else "/health"
        self._lock, self._came_up = asyncio.Lock(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the first look at every server; again is harmless.

        Raises:
            RuntimeError: the pool was started in another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            for server in self.servers:
                self._start_watch(server)
                self._beats.append(loop.create_task(self._beat(server)))
        elif self._loop is not loop:
            raise RuntimeError("This engine works in another event loop; make an engine of its own for each loop.")

    async def close(self) -> None:
        """Stop looking, close the connections and remove temporary weights."""
        watches = [*self._beats, *(server.watch for server in self.servers if server.watch is not None)]
        while pending := [watch for watch in watches if not watch.done()]:
            for watch in pending:  # again, if aiohttp took the first time for a time-out of its own, which came with it
                watch.cancel()
            await asyncio.wait(pending, timeout=1)
        await asyncio.gather(*watches, return_exceptions=True)
        for server in self.servers:
            await server.close()
        self._weight_sync.close()

    @contextlib.asynccontextmanager
    async def slot(self, choose: Callable[[Sequence[SGLangClient]], SGLangClient]) -> AsyncIterator[SGLangClient]:
        """Yield a server that is up, with one of its slots. `choose` picks among the servers that are up.

        Raises:
            NoServer: no server was up for `down_timeout_s`.
        """
        while True:
            server = choose(await queued(self._up()))
            server.load += 1
            try:
                await queued(server.slots.acquire())
                try:
                    await queued(server.settled.wait())
                    if server.up:  # else it was lost while this waited for a slot
                        yield server
                        return
                finally:
                    server.slots.release()
            finally:
                server.load -= 1

    def lose(self, server: SGLangClient, problem: str) -> None:
        """Give this server no more work until it answers again and has the current weights."""
        server.problem = problem
        if server.up:
            server.up = False
            self._start_watch(server)

    @property
    def released(self) -> bool:
        """True if a server lacks memory until the next update."""
        return any(server.released for server in self.servers)

    async def release(self) -> None:
        """Have every server give its GPU memory back, until the next update of all; again is harmless.

        One that is being restarted is waited for: it takes memory, and would take more in the middle of an update.

        Raises:
            UpdateError: a server is not up for `down_timeout_s`, or did not release its memory.
        """
        deadline = self._now() + self._down_timeout_s
        while holding := [server for server in self.servers if not (server.up and server.released)]:
            async with self._lock:
                found = await asyncio.gather(*(self._release(server) for server in holding if server.up))
            if not all(found) or not all(server.up for server in holding):
                if self._now() > deadline:
                    raise UpdateError(
                        f"Not every server was up to release its GPU memory within {self._down_timeout_s:g} s: "
                        f"{self._problems()}"
                    )
                await asyncio.sleep(self._probe_s)

    async def _release(self, server: SGLangClient) -> bool:
        """Return whether the server released its memory. A server that is gone is lost."""
        try:
            await server.release()
        except ServerError as error:
            if error.kind == "transport" or (error.kind == "timeout" and self._revive is not None):
                server.hung = error.kind == "timeout"
                self.lose(server, str(error))
                return False
            raise UpdateError(
                f"{server.url} did not release its GPU memory ({error}); look at its log: it must run with "
                "--enable-memory-saver, and nothing but this run may use it."
            ) from error
        return True

    async def update(self, params: Any, version: int) -> None:
        """Give the weights to every server that answers; those that fail are lost, and come back later.

        If all of them are gone or hang, it waits for one that comes back.

        Raises:
            UpdateError: no server took them, or one did not take back the memory that it had released.
        """
        async with self._lock:
            await asyncio.gather(*map(self._resume_weights, self.servers))
            self.params, self.version = params, version
            deadline = self._now() + self._down_timeout_s
            while True:
                servers = await self._answering()
                for server in self.servers:
                    # Whatever one that misses them says when it comes back: an earlier run had this version, too.
                    server.unknown |= server not in servers
                if servers:  # else 16 GB of an 8B policy would be written again and again for nobody
                    await self._give(servers)
                if any(server.up for server in servers):
                    return
                refused = servers and await self._answering()
                if refused or self._now() > deadline:
                    raise UpdateError(f"No server took weight version {version}: {self._problems()}")
                await asyncio.sleep(self._probe_s)

    async def _resume_weights(self, server: SGLangClient) -> None:
        """Take back memory for the weights that was released. A server that is gone is lost."""
        try:
            await server.resume(WEIGHTS)
        except ServerError as error:
            self.lose(server, str(error))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _up(self) -> list[SGLangClient]:
        """Wait for a server, and return all that are up."""
        # All are asked before one is chosen, or the first to answer would get every session.
        await asyncio.gather(*(server.looked.wait() for server in self.servers))
        deadline = self._now() + self._down_timeout_s
        while not (found := [server for server in self.servers if server.up]):
            self._came_up.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._came_up.wait()
            except TimeoutError:
                said = f"No SGLang server was ready for {self._down_timeout_s:g} s: {self._problems()}"
                raise NoServer(said) from None
        return found

    def _problems(self) -> str:
        return " ".join(f"{server.url}: {server.problem}" for server in self.servers if server.problem)

    def _start_watch(self, server: SGLangClient) -> None:
        if server.watch is None or server.watch.done():
            server.watch = asyncio.get_running_loop().create_task(self._watch(server))

    async def _beat(self, server: SGLangClient) -> None:
        """Look at a server that is up, and lose it when it hangs, is gone, or was restarted unseen."""
        while True:
            await asyncio.sleep(self._beat_s)
            if not server.up or not server.steady:
                continue
            try:
                await self._look(server, self._beat_path)
                told = (await server.get("/model_info", timeout_s=_LOOK * self._beat_s)).get("weight_version")
            except ServerError as error:
                if error.kind == "transport":
                    self.lose(server, str(error))
                continue
            if server.up and server.steady and str(told) not in map(self.label, server.versions[server.since :]):
                self.lose(server, f"It holds weight version {told!r}: it was restarted, or another run uses it.")

    async def _look(self, server: SGLangClient, path: str) -> None:
        """See that a server answers. Once it was silent for too long, nothing waits for it any more.

        Raises:
            ServerError: it did not say so in time.
        """
        begun, updates = self._now(), len(server.versions)
        try:
            await server.get(path, timeout_s=_LOOK * self._beat_s)
            server.misses = 0
        except ServerError as error:
            if not server.steady or len(server.versions) != updates:
                server.misses = 0
                raise
            if not server.misses:
                server.silent_since = begun
            server.misses += 1
            silent_s = self._now() - server.silent_since
            if server.misses >= _MISSES and silent_s >= _HANG * self._beat_s and not server.hung:
                if server.up or server.awaited:
                    with contextlib.suppress(OSError):  # a full disk of the log must not keep them there
                        print(f"SGLang server {server.url} hangs; its generations move to others.", flush=True)
                self.lose(server, f"It did not answer {path} for {silent_s:.0f} s. ({error})")
                server.give_up()
            raise

    async def _watch(self, server: SGLangClient) -> None:
        """Look at a server until it is up."""
        while not server.up:
            try:
                if server.hung and self._revive is not None:
                    await self._revive(server.url, True)
                    server.hung, server.misses = False, 0
                await self._look(server, "/health")
                async with self._lock:
                    if not server.up:  # else an update of all has brought it back
                        await self._bring_back(server)
            except Exception as error:  # whatever it is, the next look may find it gone
                server.problem = str(error)
                server.looked.set()
                gone = isinstance(error, ServerError) and error.kind == "transport" and not server.hung
                if self._revive is not None and gone:
                    try:
                        await self._revive(server.url, False)
                    except Exception as failure:
                        server.problem = str(failure)
            server.looked.set()
            if not server.up:
                await asyncio.sleep(self._probe_s)

    async def _bring_back(self, server: SGLangClient) -> None:
        """Make a server that answers ready for work: the current weights come first."""
        found = (await server.get("/model_info", timeout_s=_HEALTH_S)).get("weight_version")
        if found == (label := self.label(self.version)) and not server.unknown:
            # Appended, since what it still answers counts from a place in this list.
            server.versions.append(self.version)
            server.since = len(server.versions) - 1
            self._ready(server)
        elif self.params is None:
            server.problem = (
                f"It holds weight version {found!r} instead of {label!r}; start it with "
                f"--weight-version {label}, or update the weights first."
            )
        else:
            await self._give([server])

    async def _answering(self) -> list[SGLangClient]:
        """Return the servers that are up, or that answer."""

        async def answers(server: SGLangClient) -> bool:
            try:
                if not server.up:
                    await server.get("/health", timeout_s=_HEALTH_S)
            except ServerError as error:
                server.problem = str(error)
                return False
            return True

        found = await asyncio.gather(*(answers(server) for server in self.servers))
        return [server for server, yes in zip(self.servers, found, strict=True) if yes]

    async def _give(self, servers: Sequence[SGLangClient]) -> None:
        """Give the current weights; afterwards each server is up with them, or lost."""
        for server in servers:
            server.versions.append(self.version)
        failures = dict.fromkeys((server.url for server in servers), "The weight update was cut short.")
        try:
            failures = dict((await self._weight_sync.sync(servers, self.params, self.version)).failures)
        except Exception as error:
            # The reason may be our own (a full disk, deleted parameters), but which weights they hold is unknown.
            failures = dict.fromkeys(failures, str(error) or type(error).__name__)
        finally:
            for server in servers:
                server.unknown = server.url in failures
                if server.unknown:
                    server.losses += 1
                    self.lose(server, failures[server.url])
                else:
                    server.since = len(server.versions) - 1
                    self._ready(server)
                server.settle()

    def _ready(self, server: SGLangClient) -> None:
        server.up, server.problem, server.unknown, server.hung, server.misses = True, "", False, False, 0
        server.looked.set()
        self._came_up.set()
