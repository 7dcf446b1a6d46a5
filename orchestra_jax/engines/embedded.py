"""The embedded engine: continuous batching in this process with a few fixed shapes.

A sequence takes a slot of a `SlotCache` and keeps it until its session is closed, so that later turns only run what is
new. Sequences join and leave between chunks of decoded tokens. On a CPU the slots may be split into parts that are run
by threads of their own: XLA uses a second core for two small programs far better than for one.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.engines.base import Generation, SamplingParams, check_request, generation
from orchestra_jax.engines.slot_cache import MAX_STOP_IDS, Row, SlotCache
from orchestra_jax.io.stopwatch import Stopwatch, current, queued
from orchestra_jax.models.base import DecoderConfig


@dataclass
class _Request:
    """A generation under way; its seconds of work are those of the steps that it takes part in."""

    session: int
    prompt: tuple[int, ...]
    params: SamplingParams
    future: "asyncio.Future[Generation]"
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)  # (weight version, tokens) in order
    cached: int = 0
    watch: Stopwatch = field(default_factory=current)

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.prompt, *self.sampled)


class EmbeddedEngine:
    """Samples from a policy of any model family in this process.

    `settings.slots` sequences are held at once and more wait their turn, none longer than `limits.max_length`, in as
    many parts as `threads`. With `lockstep` sampling does not depend on how long tools take, which makes whole runs
    reproducible bit for bit; without it sequences decode as they come. `version` is the weight version of `params`.
    """

    def __init__(self, config: DecoderConfig, params: Any, settings: RolloutConfig, *, version: int = 0) -> None:
        self.config, self.params, self.version = config, params, version
        self.max_length, self.lockstep = settings.limits.max_length, settings.lockstep
        slots, threads = settings.slots, settings.threads
        share = -(-slots // threads)
        self._caches = [
            SlotCache(config, min(share, slots - first), self.max_length, settings.chunk, settings.widths)
            for first in range(0, slots, share)
        ]
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="engine") if threads > 1 else None
        self._place: dict[int, tuple[SlotCache, int]] = {}  # cache and slot of a session
        self._waiting: dict[int, _Request] = {}
        self._running: dict[int, _Request] = {}
        self._open: set[int] = set()
        self._next_session = 0
        self._closed = False
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None

    def open_session(self) -> int:
        self._next_session += 1
        self._open.add(self._next_session)
        return self._next_session

    def close_session(self, session: int) -> None:
        self._open.discard(session)
        if (request := self._under_way(session)) is not None:
            request.future.cancel()
            self._forget(request)
        if place := self._place.pop(session, None):
            cache, slot = place
            cache.release(slot)
        self._wake.set()

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Generation:
        if self._closed:
            raise RuntimeError("The engine is closed; make a new one.")
        prompt = tuple(prompt_ids)
        check_request(prompt, params, self.max_length)
        if len(params.stop_ids) > MAX_STOP_IDS:
            raise ValueError(f"At most {MAX_STOP_IDS} stop ids are supported, got {len(params.stop_ids)}.")
        own = session is None
        key = self.open_session() if session is None else session
        if key not in self._open:
            raise ValueError(f"Session {key} is not open; call open_session() first.")
        if self._under_way(key) is not None:
            raise ValueError(f"Session {key} is generating already; await that first, or open another session.")
        loop = asyncio.get_running_loop()
        if self._loop_task is None:
            self._loop_task = loop.create_task(self._run())
        elif self._loop_task.get_loop() is not loop:
            raise RuntimeError("This engine works in another event loop; make an engine of its own for each loop.")
        request = _Request(key, prompt, params, loop.create_future())
        self._waiting[key] = request
        self._wake.set()
        try:
            return await queued(request.future)  # `_step` counts what is work
        finally:
            self._forget(request)  # still there only if the caller was cancelled
            if own:
                self.close_session(key)

    async def update_weights(self, params: Any, version: int) -> None:
        """Replace the weights at once: generations under way go on, on keys and values that are computed again."""
        self.params, self.version = params, version
        for cache in self._caches:
            cache.forget()
        self._waiting |= self._running
        self._running.clear()

    async def close(self) -> None:
        self._closed = True
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
        self._fail(RuntimeError("The engine was closed while this generation was under way."))
        if self._pool is not None:
            self._pool.shutdown()

    def _under_way(self, session: int) -> _Request | None:
        return self._waiting.get(session) or self._running.get(session)

    def _forget(self, request: _Request) -> None:
        """Withdraw a request; what its slot holds by now stays valid."""
        for requests in (self._waiting, self._running):
            if requests.get(request.session) is request:
                del requests[request.session]
                self._wake.set()

    def _fail(self, error: Exception) -> None:
        """Give the error to every caller, so that none waits for ever."""
        for request in (*self._waiting.values(), *self._running.values()):
            if not request.future.done():
                request.future.set_exception(error)
        self._waiting.clear()
        self._running.clear()

    async def _run(self) -> None:
        """Admit, extend and decode while there is something to do; then sleep until woken."""
        while True:
            while self._ready():
                try:
                    self._step()
                except Exception as error:
                    self._fail(error)
                    for cache in self._caches:
                        cache.reset()
                await asyncio.sleep(0)
            self._wake.clear()
            await self._wake.wait()

    def _ready(self) -> bool:
        """Return whether a step would do something: a request without a slot waits until a session is closed."""
        if self.lockstep and len(self._waiting) + len(self._running) < len(self._open):
            return False
        return bool(self._running) or any(self._free or session in self._place for session in self._waiting)

    @property
    def _free(self) -> int:
        return sum(cache.free for cache in self._caches)

    def _step(self) -> None:
        """Admit requests that have or get a slot, then decode a chunk of everything that runs."""
        admitted = self._admit()
        start, work = time.perf_counter(), list[tuple[SlotCache, list[_Request]]]()
        for cache in self._caches:
            here = [session for session in sorted(self._running) if self._place[session][0] is cache]
            if here:
                work.append((cache, [self._running[session] for session in here]))

        def advance(part: tuple[SlotCache, list[_Request]]) -> list[tuple[list[int], list[float]]]:
            cache, requests = part
            rows = [self._row(request) for request in requests]
            cache.fill(self.params, [row for row, r in zip(rows, requests, strict=True) if r.session in admitted])
            return cache.decode(self.params, rows)

        if self._pool is None:
            chunks = [advance(part) for part in work]
        else:
            futures = [self._pool.submit(advance, part) for part in work]
            wait(futures)  # all of them: after an error no thread may go on with its cache
            chunks = [future.result() for future in futures]
        seconds = time.perf_counter() - start
        for (_, requests), found in zip(work, chunks, strict=True):
            for request, (tokens, logprobs) in zip(requests, found, strict=True):
                request.watch.add(seconds)
                self._record(request, tokens, logprobs)

    def _admit(self) -> set[int]:
        """Move requests from waiting to running, as far as there are slots; return their sessions."""
        new = [session for session in sorted(self._waiting) if session not in self._place][: self._free]
        # Every part gets its share of the load; neighbours stay together, since they share a prompt.
        share = -(-(len(self._place) + len(new)) // len(self._caches))
        for session in new:
            open_caches = [cache for cache in self._caches if cache.free]
            cache = next((cache for cache in open_caches if cache.slots - cache.free < share), open_caches[0])
            self._place[session] = cache, cache.take()
        admitted = {session for session in self._waiting if session in self._place}
        for session in sorted(admitted):
            request = self._running[session] = self._waiting.pop(session)
            if not request.sampled:
                cache, slot = self._place[session]
                request.cached = cache.held(slot, request.ids)
        return admitted

    def _row(self, request: _Request) -> Row:
        room = self.max_length - len(request.prompt)
        left = min(request.params.max_new_tokens, room) - len(request.sampled)
        return Row(self._place[request.session][1], request.ids, len(request.sampled), left, request.params)

    def _record(self, request: _Request, tokens: list[int], logprobs: list[float]) -> None:
        """Take over sampled tokens, and resolve a request that has ended."""
        ended = len(tokens) == self._row(request).left
        request.sampled += tokens
        request.logprobs += logprobs
        same = request.spans.pop()[1] if request.spans and request.spans[-1][0] == self.version else 0
        request.spans.append((self.version, same + len(tokens)))
        stopped = tokens[-1] in request.params.stop_ids
        if stopped or ended:
            del self._running[request.session]
            if not request.future.done():  # else its caller was cancelled a moment ago
                reason = "stop" if stopped else "length"
                found = generation(request.sampled, request.logprobs, reason, request.spans, request.cached)
                request.future.set_result(found)
