"""The SGLang engine: generations on servers outside of this process, exact to the token.

A generation has one request at a time, each under an id of its own. A request whose answer was lost with its server is
repeated elsewhere: only one answer is ever returned. An answer with anything wrong in it is an error, never a sample.
"""

import asyncio
import itertools
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from orchestra_jax.engines.base import Generation, SamplingParams, check_request, generation
from orchestra_jax.engines.sglang.client import SGLangClient
from orchestra_jax.engines.sglang.pool import SGLangPool
from orchestra_jax.engines.sglang.protocol import Piece, read_answer, request_body
from orchestra_jax.engines.sglang.server_check import check_server
from orchestra_jax.engines.sglang.weight_sync import DiskWeightSync
from orchestra_jax.io.http_json import ServerError
from orchestra_jax.io.stopwatch import current, queued
from orchestra_jax.models.base import DecoderConfig

_ABORT_S = 5.0
_BUSY = 503  # the server's queue is full, or it is shutting down: it did nothing
_LONGEST_BACKOFF_S = 10.0


class SGLangEngine:
    """Samples on one or several SGLang servers, and balances between them.

    A session keeps to one server, whose prefix cache then serves every turn, and moves only when that one fails.

    Args:
        urls: of the servers, such as "http://127.0.0.1:30000".
        max_length: longest sequence in tokens, prompt included; at most the servers' context length less 6.
        vocab_size: of the policy; an id beyond it is an error.
        weight_sync: brings new weights to the servers.
        version: of the weights the servers hold at first, as their --weight-version says.
        concurrency: generations that run on one server at a time; more wait here.
        request_timeout_s: for one answer of a server.
        retries: further requests after transport errors, a status 503 or the loss of a server.
        backoff_s: pause before the first retry; it doubles each time and is jittered by half.
        down_timeout_s: how long generations wait while no server is up.
        probe_s: pause between two looks at a server that is not up.
        beat_s: pause between two looks at one that is up, which has twice that to answer. It hangs if it misses three
            looks or more in a row, for six times that.
        releases: `release_memory` will be called: a look must not make a server work.
        revive: called with the URL of a server that does not answer, and whether it hangs, to restart it;
            `process.reviver` makes one.

    Raises:
        ValueError: from `generate`, for a prompt that is empty or leaves no room in `max_length`, no new tokens, or a
            session that is closed or generating already.
        RuntimeError: from `generate`, once the engine is closed, no server took the last weights, their memory is
            released, or the engine works in another event loop.
        ServerError: from `generate`, an infrastructure failure: a server's error, a time-out, or an answer that cannot
            be used.
        NoServer: from `generate`: no server was up for `down_timeout_s`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        max_length: int,
        vocab_size: int,
        weight_sync: DiskWeightSync,
        version: int = 0,
        concurrency: int = 64,
        request_timeout_s: float = 600.0,
        retries: int = 4,
        backoff_s: float = 0.5,
        down_timeout_s: float = 600.0,
        probe_s: float = 1.0,
        beat_s: float = 10.0,
        releases: bool = False,
        revive: Callable[[str, bool], Awaitable[None]] | None = None,
    ) -> None:
        self.max_length, self.vocab_size = max_length, vocab_size
        self._timeout_s, self._retries, self._backoff_s = request_timeout_s, retries, backoff_s
        self._pool = SGLangPool(
            urls,
            weight_sync,
            version=version,
            concurrency=concurrency,
            probe_s=probe_s,
            beat_s=beat_s,
            releases=releases,
            down_timeout_s=down_timeout_s,
            revive=revive,
        )
        self._sessions: dict[int, SGLangClient] = {}
        self._numbers = itertools.count(1)
        self._running: dict[int, asyncio.Task[Generation]] = {}
        self._aborts: set[asyncio.Task[None]] = set()
        self._jitter = random.Random()
        self._stopped = ""  # why nothing samples any more

    @property
    def version(self) -> int:
        """Version of the weights that new generations start under."""
        return self._pool.version

    @property
    def servers_up(self) -> list[str]:
        """URLs of the servers that take work."""
        return [server.url for server in self._pool.servers if server.up]

    def open_session(self) -> int:
        session = next(self._numbers)
        up = [server for server in self._pool.servers if server.up]
        self._pin(session, min(up or self._pool.servers, key=lambda server: server.sessions))
        return session

    def close_session(self, session: int) -> None:
        """Free the session; a generation under way in it is cancelled."""
        self._pin(session, None)
        if session in self._running:
            self._running[session].cancel()

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Generation:
        self._check_open()
        if self._pool.released:
            raise RuntimeError("The servers have released their memory; update the weights before a generation.")
        prompt = tuple(map(int, prompt_ids))
        check_request(prompt, params, self.max_length)
        if session is not None and session not in self._sessions:
            raise ValueError(f"Session {session} is not open; call open_session() first.")
        key = next(self._numbers) if session is None else session
        if key in self._running:
            raise ValueError(f"Session {key} is generating already; await that first, or open another session.")
        self._pool.start()
        task = asyncio.get_running_loop().create_task(self._generate(prompt, params, session))
        self._running[key] = task
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._stopped and caller is not None and not caller.cancelling():
                was_closed = "The engine was closed while this generation was under way."
                raise RuntimeError(was_closed if self._stopped == _CLOSED else self._stopped) from None
            raise
        finally:
            del self._running[key]

    async def update_weights(self, params: Any, version: int) -> None:
        """Give the weights to all servers; generations under way go on under the new ones.

        A server that does not take them gets no more work, and comes back once it has taken them. `params` is kept for
        such a server: until the next update, if its buffers live so long.
        """
        if self._stopped == _CLOSED:
            raise RuntimeError(_CLOSED)
        self._pool.start()
        try:
            await self._pool.update(params, version)
            self._stopped = ""
        except RuntimeError as error:
            self._stopped = self._stopped or str(error)
            self._cancel_all()
            raise

    async def release_memory(self) -> None:
        """Free the servers' GPU memory until the next `update_weights`, for a trainer on the same GPUs.

        A second call is harmless. The servers must run with --enable-memory-saver, and must have been started by this
        run: a server does not tell what it has released already, and crashes where it is told twice.

        Raises:
            RuntimeError: a generation is under way, the engine is closed, or a server keeps its memory.
        """
        self._check_open()
        if self._running:
            raise RuntimeError(f"{len(self._running)} generation(s) are under way; let them end before the release.")
        self._pool.start()
        await asyncio.gather(*self._aborts)
        await self._pool.release()

    async def close(self) -> None:
        self._stopped = _CLOSED
        running = self._cancel_all()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*self._aborts, return_exceptions=True)
        await self._pool.close()

    async def check(self, config: DecoderConfig, tokenizer_size: int, dtype: str | None = None) -> list[str]:
        """See that every server fits the policy, whose tokenizer has `tokenizer_size` ids, and its `max_length`.

        Args:
            dtype: that they are to compute in; None: any.

        Returns:
            One sentence for each way in which servers compute.

        Raises:
            ValueError: one sentence about what does not fit.
            ServerError: a server does not answer.
        """
        if tokenizer_size > config.vocab_size:
            raise ValueError(
                f"The tokenizer has {tokenizer_size} ids, but the policy's vocabulary is {config.vocab_size}; give the "
                "tokenizer of this model."
            )
        found = [await check_server(server, config, self.max_length, dtype) for server in self._pool.servers]
        return [
            f"{count} SGLang server{'s' if count > 1 else ''} sample{'s' if count == 1 else ''} in {how}."
            for how, count in Counter(found).items()
        ]

    def _check_open(self) -> None:
        if self._stopped:
            raise RuntimeError(self._stopped)

    def _cancel_all(self) -> list[asyncio.Task[Generation]]:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        return running

    def _pin(self, session: int, server: SGLangClient | None) -> None:
        """Bind a session to a server, or to none."""
        old = self._sessions.pop(session, None)
        if old is not None:
            old.sessions -= 1
        if server is not None:
            self._sessions[session] = server
            server.sessions += 1

    async def _generate(self, prompt: tuple[int, ...], params: SamplingParams, session: int | None) -> Generation:
        """Join pieces until one of our own reasons ends the generation."""
        count = min(params.max_new_tokens, self.max_length - len(prompt))
        ids, logprobs, spans = list[int](), list[float](), list[tuple[int, int]]()
        cached = None
        while True:
            piece = await self._piece((*prompt, *ids), params, count - len(ids), session)
            ids += piece.token_ids
            logprobs += piece.logprobs
            cached = piece.cached_tokens if cached is None else cached
            for version, tokens in piece.spans:
                if spans and spans[-1][0] == version:
                    tokens += spans.pop()[1]
                spans.append((version, tokens))
            # A server that knows its model's end-of-text id stops there; if we do not, it goes on.
            if piece.finish != "foreign" or len(ids) == count:
                return generation(ids, logprobs, "length" if piece.finish == "foreign" else piece.finish, spans, cached)

    async def _piece(self, ids: tuple[int, ...], params: SamplingParams, count: int, session: int | None) -> Piece:
        """Return the answer to one request, which is repeated if the server was lost or did nothing."""
        watch = current()
        for attempt in itertools.count():
            start = watch.seconds
            try:
                async with self._pool.slot(lambda up: self._choose(up, session)) as server:
                    piece = await self._ask(server, ids, params, count)
                if piece.finish == "abort":  # the player of the episode tries again: elsewhere, if it can
                    self._move(session)
                return piece
            except asyncio.CancelledError:
                if watch.overdue:  # the server is healthy, but too slow: the next try is elsewhere
                    self._move(session)
                raise
            except ServerError as error:
                if error.may_pass:
                    self._move(session)
                if (error.kind != "transport" and error.status != _BUSY) or attempt >= self._retries:
                    raise
            watch.add(start - watch.seconds)  # what is lost was no work
            backoff = min(self._backoff_s * 2**attempt, _LONGEST_BACKOFF_S)
            await queued(asyncio.sleep(backoff * self._jitter.uniform(0.5, 1.5)))
        raise AssertionError

    def _move(self, session: int | None) -> None:
        """Bind a session to another server that is up: one that fails at every request would draw all sessions."""
        pinned = self._sessions.get(session) if session is not None else None
        others = [server for server in self._pool.servers if server.up and server is not pinned]
        if session is not None and pinned is not None and others:
            self._pin(session, min(others, key=lambda server: server.sessions))

    def _choose(self, up: Sequence[SGLangClient], session: int | None) -> SGLangClient:
        """Return the session's server; without one, or where it is lost, the one with the least to do."""
        if session is None:
            return min(up, key=lambda server: server.load)
        pinned = self._sessions.get(session)
        if pinned in up:
            assert pinned is not None
            return pinned
        server = min(up, key=lambda server: server.sessions)
        self._pin(session, server)
        return server

    async def _ask(self, server: SGLangClient, ids: tuple[int, ...], params: SamplingParams, count: int) -> Piece:
        """Send one request to one server."""
        rid, losses, since = uuid.uuid4().hex, server.losses, server.since
        try:
            body = request_body(rid, ids, params, count)
            with server.asked() as watch:
                start = watch.seconds
                answer = await server.unless_hung(server.post("/generate", body, timeout_s=self._timeout_s))
                spent = watch.seconds - start
            await queued(server.settled.wait())
        except ServerError as error:
            if error.kind in ("transport", "timeout"):
                self._pool.lose(server, str(error))
            if error.kind != "status":
                self._abort(server, rid)
            raise
        except asyncio.CancelledError:
            self._abort(server, rid)
            raise
        if server.losses != losses:
            raise ServerError(f"The server {server.url} lost its weights during a generation.", "transport")
        allowed = {self._pool.label(version): version for version in server.versions[since:]}
        try:
            piece = read_answer(
                answer,
                rid=rid,
                prompt_length=len(ids),
                count=count,
                stop_ids=params.stop_ids,
                vocab_size=self.vocab_size,
                versions=allowed,
            )
            watch.add(-min(piece.queue_s, spent))
            return piece
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            problem = f"The answer of {server.url}/generate cannot be used: {str(error)[:_SHOWN]}."
            if _version_of(answer) != self._pool.label(server.versions[-1]):
                self._pool.lose(server, problem)  # restarted without our knowledge: it needs the weights
            raise ServerError(problem, "protocol") from error

    def _abort(self, server: SGLangClient, rid: str) -> None:
        """Tell the server to stop, in the background: the caller that cancelled does not wait for it."""

        async def abort() -> None:
            with_rid = server.post("/abort_request", {"rid": rid}, timeout_s=_ABORT_S)
            await asyncio.gather(with_rid, return_exceptions=True)

        task = asyncio.get_running_loop().create_task(abort())
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)


_SHOWN = 500  # characters of what is wrong with an answer
_CLOSED = "The engine is closed; make a new one."


def _version_of(answer: Any) -> Any:
    try:
        return answer["meta_info"]["weight_version"]
    except (TypeError, KeyError):
        return None
