"""A client of one SGLang server with its state, and the release of its GPU memory."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any

from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.io.http_json import JsonClient, ServerError
from orchestra_jax.io.stopwatch import Stopwatch, current
from orchestra_jax.types import OutOfTime

_MEMORY_S = 120.0  # for a server to give its memory back or to take it again
# Memory by SGLang's tags, in the order in which a server takes it again: room for the weights before their update; the
# cache, the largest part, after it, when nothing of the update lies beside it any more.
WEIGHTS = ("weights",)
CACHE = ("kv_cache", "cuda_graph")


class UpdateError(RuntimeError, ConfigError, OutOfTime):
    """The servers cannot be used around an update: the run saves its last finished step and ends in this sentence."""


class SGLangClient(JsonClient):
    """One server, reached by URL, with what the pool knows of it.

    Attributes:
        up: it answers, holds the current weights and may take work.
        problem: why it is not up.
        hung: it did not answer for so long that nothing waits for it; what starts it again has to end it first.
        misses: looks in a row that it did not answer; `silent_since`: when the first of them began.
        versions: of the weights it got, in order; `since` is the index of the oldest that may still sample.
        unknown: it missed an update of its weights, or that failed, so that nothing says which ones it holds.
        losses: how often one failed; an answer from before counts no more.
        load: generations that run or wait here; `sessions`: open ones that keep to it.
        slots: bounds what runs; `settled` is clear from its pause for new weights until it is known how that went.
        released: the memory that it gave back and has not taken again, by SGLang's tags.
    """

    def __init__(self, url: str, concurrency: int) -> None:
        super().__init__(url)
        self.up, self.problem, self.unknown, self.losses = False, "not asked yet", False, 0
        self.hung, self.misses, self.silent_since = False, 0, 0.0
        self._answers = set[asyncio.Task[Any]]()  # that generations wait for
        self.versions: list[int] = []
        self.since, self.load, self.sessions = 0, 0, 0
        self.released: tuple[str, ...] = ()
        self.slots, self.settled = asyncio.Semaphore(concurrency), asyncio.Event()
        self.settled.set()
        self._asked = list[Stopwatch]()  # of the generations under way
        self.looked = asyncio.Event()
        self.watch: asyncio.Task[None] | None = None

    async def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        if path == "/pause_generation":
            # From here on its weights may be mixed, until the update says that they are not.
            if self.settled.is_set():
                self.settled.clear()
                for watch in self._asked:
                    watch.pause()
        elif path == "/continue_generation":
            await self.resume(CACHE)
        return await super().post(path, body, timeout_s=timeout_s)

    @property
    def steady(self) -> bool:
        """True if nothing keeps it from answering: no update, no memory that it gave back."""
        return self.settled.is_set() and not self.released

    @property
    def awaited(self) -> bool:
        """True if a generation waits for its answer."""
        return bool(self._answers)

    async def unless_hung(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """Return the answer of a generation.

        Raises:
            ServerError: that of the request, or of kind "transport" once `give_up` was called.
        """
        task = asyncio.get_running_loop().create_task(answer)
        self._answers.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise ServerError(f"{self.url} hangs: {self.problem}", "transport") from None
            task.cancel()
            raise
        finally:
            self._answers.discard(task)

    def give_up(self) -> None:
        """Wait for no answer any more: the server hangs."""
        self.hung = True
        for task in self._answers:
            task.cancel()

    def settle(self) -> None:
        """Let generations go on: it is known again which weights the server holds."""
        if not self.settled.is_set():
            self.settled.set()
            for watch in self._asked:
                watch.resume()

    @contextlib.contextmanager
    def asked(self) -> Iterator[Stopwatch]:
        """Hold a place for a generation during the block; the current watch stands still during weight updates."""
        watch = current()
        self._asked.append(watch)
        if not self.settled.is_set():
            watch.pause()
        try:
            yield watch
        finally:
            self._asked.remove(watch)
            if not self.settled.is_set():
                watch.resume()

    async def release(self) -> None:
        """Give its GPU memory back. It must be idle; it is paused, so that no request runs without memory.

        Raises:
            ServerError: it did not answer, or with an error: what it holds is unknown.
        """
        if self.released:
            return  # SGLang's scheduler dies of a second time
        self.released = (*WEIGHTS, *CACHE)  # it is not steady from here on
        try:
            await super().post("/pause_generation", {"mode": "retract"}, timeout_s=_MEMORY_S)
            await super().post("/release_memory_occupation", {"tags": list(self.released)}, timeout_s=_MEMORY_S)
        except BaseException:
            self.released = ()
            raise

    async def resume(self, tags: Sequence[str]) -> None:
        """Take back what it gave of `tags`; the content of the weights is undefined and the cache is empty then.

        Raises:
            ServerError: of kind "transport": its process is gone, and what starts in its place has its memory.
            UpdateError: it answers, but did not get its memory.
        """
        found = [tag for tag in tags if tag in self.released]
        if not found:
            return
        self.released = tuple(tag for tag in self.released if tag not in found)
        try:
            await super().post("/resume_memory_occupation", {"tags": found}, timeout_s=_MEMORY_S)
        except ServerError as error:
            if error.kind == "transport":
                self.released = ()
                raise
            raise UpdateError(
                f"{self.url} did not take its GPU memory back after the update ({error}); look at its log, and give it "
                "less by --mem-fraction-static in rollout.server.flags if the memory did not suffice."
            ) from error
