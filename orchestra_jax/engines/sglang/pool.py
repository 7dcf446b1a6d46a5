"""Several servers: which of them may take work, under which weights, and how one that was lost comes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import jax

from orchestra_jax.engines.sglang.client import Worker, WorkerError
from orchestra_jax.engines.sglang.weights import WeightPush

HEALTH_S = 5.0  # /health samples a token, which takes a second or more
_MEMORY_S = 120.0  # for a server to give its memory back or to take it again
# Memory by SGLang's tags, in the order in which a server takes it again: room for the weights before their update; the
# cache, the largest part, after it, when nothing of the update lies beside it any more.
_WEIGHTS = ("weights",)
_CACHE = ("kv_cache", "cuda_graph")


class Server(Worker):
    """A worker with what the pool knows of it.

    Attributes:
        up: it answers, holds the current weights and may take work.
        problem: why it is not up.
        versions: of the weights it got, in order; `since` is the index of the oldest that may still sample.
        unknown: its weights are nobody's, since an update of them failed.
        losses: how often that happened; an answer from before counts no more.
        load: generations that run or wait here; `sessions`: open ones that keep to it.
        slots: bounds what runs; `settled` is clear from its pause for new weights until it is known how that went.
        released: the memory that it gave back and has not taken again, by SGLang's tags.
    """

    def __init__(self, url: str, concurrency: int) -> None:
        super().__init__(url)
        self.concurrency = concurrency
        self.problem, self.unknown, self.losses = "not asked yet", False, 0
        self.versions: list[int] = []
        self.since, self.load, self.sessions = 0, 0, 0
        self.released: tuple[str, ...] = ()
        self.reset()

    def reset(self) -> None:
        """Forgets what belongs to an event loop."""
        self.up = False
        self.slots, self.settled = asyncio.Semaphore(self.concurrency), asyncio.Event()
        self.settled.set()
        self.looked = asyncio.Event()
        self.watch: asyncio.Task[None] | None = None

    async def post(self, path: str, body: Mapping[str, Any] | bytes, *, timeout_s: float) -> Any:
        if path == "/pause_generation":
            # From here on its weights may be mixed, until the push says that they are not.
            self.settled.clear()
        elif path == "/continue_generation":
            await self.resume(_CACHE)
        return await super().post(path, body, timeout_s=timeout_s)

    async def release(self) -> None:
        """Gives its GPU memory back. It must be idle; it is paused, so that nobody's request runs without memory.

        Raises:
            WorkerError: it did not answer, or with an error: what it holds is unknown.
        """
        if self.released:
            return  # SGLang's scheduler dies of a second time
        await super().post("/pause_generation", {"mode": "retract"}, timeout_s=_MEMORY_S)
        await super().post("/release_memory_occupation", {"tags": [*_WEIGHTS, *_CACHE]}, timeout_s=_MEMORY_S)
        self.released = (*_WEIGHTS, *_CACHE)

    async def resume(self, tags: Sequence[str]) -> None:
        """Takes back what it gave of `tags`; the weights are nobody's and the cache is empty then.

        Raises:
            WorkerError: of kind "transport": its process is gone, and what starts in its place has its memory.
            RuntimeError: it answers, but did not get its memory.
        """
        found = [tag for tag in tags if tag in self.released]
        if not found:
            return
        self.released = tuple(tag for tag in self.released if tag not in found)
        try:
            await super().post("/resume_memory_occupation", {"tags": found}, timeout_s=_MEMORY_S)
        except WorkerError as error:
            if error.kind == "transport":
                self.released = ()
                raise
            raise RuntimeError(
                f"{self.url} did not take its GPU memory back after the update ({error}); look at its log, and give it "
                "less by --mem-fraction-static in rollout.server.flags if the memory did not suffice."
            ) from error


class ServerPool:
    """Hands out servers, gives them new weights, and brings lost ones back.

    A server is used only when it holds the current weights: it is asked before its first work and after every loss,
    and gets them first if it does not.

    Args:
        urls: one per server.
        push: brings weights to servers.
        version: of the weights the servers hold at first.
        concurrency: generations that run on one server at a time.
        probe_s: pause between two looks at a server that is not up.
        down_timeout_s: how long work waits while no server is up.
        revive: called with the URL of a server that does not answer, to start it anew.
    """

    def __init__(
        self,
        urls: Sequence[str],
        push: WeightPush,
        *,
        version: int,
        concurrency: int,
        probe_s: float,
        down_timeout_s: float,
        revive: Callable[[str], Awaitable[None]] | None,
    ) -> None:
        if not urls or len(set(urls)) < len(urls):
            raise ValueError(f"The server URLs {list(urls)} are none or not distinct; give each server once.")
        self.servers = [Server(url, concurrency) for url in urls]
        self.version = version
        self.params: Any = None
        self._push, self._revive = push, revive
        self._probe_s, self._down_timeout_s = probe_s, down_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Starts the first look at every server, once per event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock, self._came_up = loop, asyncio.Lock(), asyncio.Event()
            for server in self.servers:
                server.reset()
                self._start_watch(server)

    async def close(self) -> None:
        """Stops looking and closes the connections."""
        if self._loop is asyncio.get_running_loop():
            watches = [server.watch for server in self.servers if server.watch is not None]
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
        for server in self.servers:
            await server.close()

    @contextlib.asynccontextmanager
    async def slot(self, choose: Callable[[Sequence[Server]], Server]) -> AsyncIterator[Server]:
        """A server that is up, with one of its slots; `choose` picks among those that are.

        Raises:
            WorkerError: no server was up for `down_timeout_s`.
        """
        while True:
            server = choose(await self._up())
            server.load += 1
            try:
                async with server.slots:
                    await server.settled.wait()
                    if server.up:  # else it was lost while this waited for a slot
                        yield server
                        return
            finally:
                server.load -= 1

    def lose(self, server: Server, problem: str) -> None:
        """No more work for this server until it answers again and has the current weights."""
        server.problem = problem
        if server.up:
            server.up = False
            self._start_watch(server)

    @property
    def released(self) -> bool:
        """Whether a server lacks memory until the next update."""
        return any(server.released for server in self.servers)

    async def release(self) -> None:
        """Has every server give its GPU memory back, until the next update of all; again is harmless.

        One that is being started anew is waited for: it takes memory, and would take more in the middle of an update.

        Raises:
            RuntimeError: a server is not up for `down_timeout_s`, or did not release its memory.
        """
        deadline = self._now() + self._down_timeout_s
        while holding := [server for server in self.servers if not (server.up and server.released)]:
            async with self._lock:
                found = await asyncio.gather(*(self._release(server) for server in holding if server.up))
            if not all(found) or not all(server.up for server in holding):
                if self._now() > deadline:
                    raise RuntimeError(
                        f"Not every server was up to release its GPU memory within {self._down_timeout_s:g} s: "
                        f"{self._problems()}"
                    )
                await asyncio.sleep(self._probe_s)

    async def _release(self, server: Server) -> bool:
        """Whether it did; a server that is gone is lost."""
        try:
            await server.release()
        except WorkerError as error:
            if error.kind == "transport":
                self.lose(server, str(error))
                return False
            raise RuntimeError(
                f"{server.url} did not release its GPU memory ({error}); look at its log: it must run with "
                "--enable-memory-saver, and nothing but this run may use it."
            ) from error
        return True

    async def update(self, params: Any, version: int) -> None:
        """Gives the weights to every server that answers; those that fail are lost, and come back later.

        Raises:
            RuntimeError: no server took them, or one did not take back the memory that it had released.
        """
        async with self._lock:
            await asyncio.gather(*(self._make_room(server) for server in self.servers))
            self.params, self.version = params, version
            deadline = self._now() + self._down_timeout_s
            while not (servers := await self._answering()) and self._now() < deadline:
                if jax.process_count() > 1:
                    break  # the other processes wait for this one in the push
                await asyncio.sleep(self._probe_s)
            await self._give(servers)
            if not any(server.up for server in servers):
                raise RuntimeError(f"No server took weight version {version}: {self._problems()}")

    async def _make_room(self, server: Server) -> None:
        """Memory for the weights, where it was released; a server that is gone is lost."""
        try:
            await server.resume(_WEIGHTS)
        except WorkerError as error:
            self.lose(server, str(error))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _up(self) -> list[Server]:
        """The servers that are up; waits for one."""
        # All are asked before one is chosen, or the first to answer would get every session.
        await asyncio.gather(*(server.looked.wait() for server in self.servers))
        deadline = self._now() + self._down_timeout_s
        while not (found := [server for server in self.servers if server.up]):
            self._came_up.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._came_up.wait()
            except TimeoutError:
                raise WorkerError(
                    f"No SGLang server was ready for {self._down_timeout_s:g} s: {self._problems()}", "timeout"
                ) from None
        return found

    def _problems(self) -> str:
        return " ".join(f"{server.url}: {server.problem}" for server in self.servers if server.problem)

    def _start_watch(self, server: Server) -> None:
        if server.watch is None or server.watch.done():
            server.watch = asyncio.get_running_loop().create_task(self._watch(server))

    async def _watch(self, server: Server) -> None:
        """Looks at a server until it is up."""
        while not server.up:
            try:
                await server.get("/health", timeout_s=HEALTH_S)
                async with self._lock:
                    if not server.up:  # else an update of all has brought it back
                        await self._bring_back(server)
            except Exception as error:  # whatever it is, the next look may find it gone
                server.problem = str(error)
                server.looked.set()
                if self._revive is not None and isinstance(error, WorkerError) and error.kind == "transport":
                    await self._try_revive(server)
            server.looked.set()
            if not server.up:
                await asyncio.sleep(self._probe_s)

    async def _try_revive(self, server: Server) -> None:
        assert self._revive is not None
        try:
            await self._revive(server.url)
        except Exception as error:
            server.problem = str(error)

    async def _bring_back(self, server: Server) -> None:
        """Makes a server that answers ready for work: the current weights come first."""
        found = (await server.get("/model_info", timeout_s=HEALTH_S)).get("weight_version")
        if found == str(self.version) and not server.unknown:
            server.versions, server.since = [self.version], 0
            self._ready(server)
        elif self.params is None:
            server.problem = (
                f"It holds weight version {found!r} instead of '{self.version}'; start it with "
                f"--weight-version {self.version}, or update the weights first."
            )
        elif jax.process_count() > 1:
            server.problem = "It waits for the next weight update, which all processes make together."
        else:
            await self._give([server])

    async def _answering(self) -> list[Server]:
        """The servers that are up, or are not but answer."""

        async def answers(server: Server) -> bool:
            try:
                if not server.up:
                    await server.get("/health", timeout_s=HEALTH_S)
            except WorkerError as error:
                server.problem = str(error)
                return False
            return True

        found = await asyncio.gather(*(answers(server) for server in self.servers))
        return [server for server, yes in zip(self.servers, found, strict=True) if yes]

    async def _give(self, servers: Sequence[Server]) -> None:
        """Pushes the current weights; afterwards each server is up with them, or lost."""
        for server in servers:
            server.versions.append(self.version)
        failures = dict.fromkeys((server.url for server in servers), "The weight update was cut short.")
        try:
            failures = dict((await self._push.push(servers, self.params, self.version)).failures)
        except Exception as error:
            # The reason may lie with us (a full disk, deleted parameters), but whose weights they hold is unknown.
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
                server.settled.set()

    def _ready(self, server: Server) -> None:
        server.up, server.problem, server.unknown = True, "", False
        server.looked.set()
        self._came_up.set()
