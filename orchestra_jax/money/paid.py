"""The way of one paid call: recorded answer, budget, limits of the provider, requests, bill, record.

Money follows requests, not callers. Every HTTP request has its own reservation and its own task, which is not cancelled
with the caller: a caller may give up, but the request still ends, and its cost is settled.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from orchestra_jax.io.stopwatch import queued
from orchestra_jax.money.budgets import Amount, Budget, BudgetExceeded
from orchestra_jax.money.limits import Limiter
from orchestra_jax.money.replay import CLOSE_S, Replay
from orchestra_jax.money.reservations import Reservation, acquire
from orchestra_jax.money.store import Recorded
from orchestra_jax.types import InfrastructureError, Usage

GRACE_S = 600.0  # how long a request whose caller gave up may still take
_LONGEST_BACKOFF_S = 60.0
_LONGEST_RETRY_AFTER_S = 600.0
_log = logging.getLogger(__name__)
T = TypeVar("T")


class MissingKey(ValueError):  # noqa: N818  named like the fact it states
    """The environment has no key for a provider; one sentence."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that was not billed: it never got there, or the provider said no.

    Attributes:
        reason: one sentence with the server and the status.
        retry: True if a further request may do better.
        wait_s: seconds that the provider asks everybody to wait (Retry-After), None where it does not say.
    """

    reason: str
    retry: bool = False
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """A request without an answer that can be used, which may have been billed.

    Attributes:
        reason: one sentence with the server.
        billed: what it cost, where the server says; None: it is charged at its worst.
    """

    reason: str
    billed: Usage | None = None


# How one request ended; an answer has one row, what it cost.
Outcome = Recorded | Refused | Lost
Send = Callable[[], Awaitable[Outcome]]
Ended = tuple[Outcome, Usage | None]  # and the row that was settled, None where nothing was billed


class PaidCalls:
    """Makes the paid calls of one provider.

    One call makes at most `retries` + 1 requests. The HTTP clients below never repeat a request; the trajectory above
    repeats a call that failed `rollout.limits.retries` times, so a call of a trajectory makes at most (retries + 1) x
    (rollout.limits.retries + 1) requests.

    A request that is overdue is not repeated here: the call fails at once, and the request goes on. Its cost is settled
    in the budgets when it ends, not in the ledger of the trajectory that left. Its answer goes into the record with its
    bill, for whoever repeats the call after that.

    What was refused (`Refused`, e.g. HTTP 429 or 5xx) costs nothing; what was lost (`Lost`) is charged at its worst. A
    call that fails raises InfrastructureError with the rows that were charged, which `EpisodePlayer.wait` books before
    it begins the call anew. A trajectory with no try left has `Status.FAILED`: no part in its group's mean and std
    (`rl.advantages.member_masks`), and none in the loss, the KL included (`training.update`).

    Args:
        limiter: limits of the provider.
        replay: the record; None: calls are neither recorded nor replayed.
        timeout_s: how long a caller waits for one request; the request itself may take GRACE_S longer.
        retries: most further requests after those that were refused or lost; 4, if a setting does not say otherwise.
        backoff_s: pause before the first retry; it doubles each time and is jittered by half. A provider's own
            Retry-After comes first.
        prepare: function that is called before the first request of a call; it raises if no request can be made.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        replay: Replay | None,
        timeout_s: float,
        retries: int,
        backoff_s: float = 0.5,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._limiter, self._replay, self._prepare = limiter, replay, prepare
        self._timeout_s, self._retries, self._backoff_s = timeout_s, retries, backoff_s
        self._open: set[asyncio.Task[Any]] = set()
        self._closed = asyncio.Event()
        self._jitter = random.Random()
        # After a bill above its worst case: the factor on all worst cases, and calls one by one until a bill fits.
        self._excess, self._doubted, self._alone = 1.0, False, asyncio.Lock()
        self._told = False  # that a bill had more output tokens than were asked for
        # Requests charged at their worst, and what was wrong with the last answer.
        self._lost, self._reason = Amount(), ""

    async def call(
        self, kind: str, request: Mapping[str, Any], worst: Usage, send: Send, *, budget: Budget
    ) -> Recorded:
        """Return the answer to one call, from the record or from the provider.

        Args:
            kind: kind of the call in the record.
            request: JSON that identifies the call, without secrets.
            worst: ledger row of the dearest way that one request can end.
            send: function that makes one request; it is cut after timeout_s + GRACE_S seconds.
            budget: budget that is charged with every request that is billed.

        Raises:
            BudgetExceeded: the worst case does not fit; nothing was sent, or nothing more.
            InfrastructureError: no answer that can be used, one sentence.
            ReplayMiss: replay only, and there is no record.
        """

        async def run() -> Recorded:
            return await self._requests(kind, request, worst, send, budget)

        if self._replay is None:
            return await run()
        return await self._replay.call(kind, request, run)

    async def close(self, patience_s: float = CLOSE_S) -> None:
        """Wait for requests whose callers gave up; those that take longer are cut and charged at their worst.

        No request is made afterwards, not even for callers that wait. Drain and close a `Replay` after its clients:
        late answers are still recorded.
        """
        self._closed.set()
        names = Counter(filter(None, (task.get_name() for task in self._open)))
        for name, count in names.items():
            _log.warning("Waits for bills of %s (requests under way: %d), %g s at most.", name, count, patience_s)
        loop = asyncio.get_running_loop()
        end = loop.time() + patience_s
        while self._open and (left := end - loop.time()) > 0:  # a request that ends may leave an answer to record
            await asyncio.wait(tuple(self._open), timeout=left)
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _requests(
        self, kind: str, request: Mapping[str, Any], worst: Usage, send: Send, budget: Budget
    ) -> Recorded:
        """Send a request until an answer can be recorded, as often as allowed. The usage has every charged try."""
        self._prepare()
        charged = list[Usage]()
        try:
            return await self._answered(kind, request, worst, send, budget, charged)
        except (InfrastructureError, BudgetExceeded) as error:
            error.usage = tuple(charged)
            if isinstance(error, BudgetExceeded) and self._lost.calls:
                lost = self._lost.rounded()
                told = (
                    f"{lost.calls} requests without a usable answer were charged at their worst case, ${lost.usd:.6g}"
                )
                error.args = (f"{error} {told}; the last: {self._reason}", error.scope)
            raise

    async def _answered(
        self,
        kind: str,
        request: Mapping[str, Any],
        worst: Usage,
        send: Send,
        budget: Budget,
        charged: list[Usage],
    ) -> Recorded:
        for attempt in itertools.count():
            task = await self._start(budget, worst, send)
            try:
                await asyncio.wait((task,), timeout=self._timeout_s)  # does not cancel the task if we are cancelled
            except asyncio.CancelledError:  # nobody books what was charged before, so the record has it
                self._background(self._record_late(kind, request, task, tuple(charged)), "")
                raise
            if not task.done():
                self._background(self._record_late(kind, request, task), "")
                raise InfrastructureError(
                    f"{worst.name} did not answer within {self._timeout_s:g} s; raise its timeout_s if it needs "
                    "longer: a request that is made again is billed again."
                )
            if task.cancelled():  # by `close`, not by whoever waits here
                raise InfrastructureError(f"The client of {worst.name} was closed before it answered.")
            outcome, row = task.result()
            charged += [row] if row is not None else []
            if isinstance(outcome, Recorded):
                return replace(outcome, usage=tuple(charged))
            wait_s = outcome.wait_s if isinstance(outcome, Refused) else None
            if wait_s is not None and wait_s > _LONGEST_RETRY_AFTER_S:
                raise InfrastructureError(f"{outcome.reason} It asks to wait {wait_s:.7g} s, which is too long.")
            if attempt >= self._retries or (isinstance(outcome, Refused) and not outcome.retry):
                raise InfrastructureError(outcome.reason)
            _log.debug("%s: request %d failed and is made again: %s", worst.name, attempt + 1, outcome.reason)
            await self._pause(attempt, wait_s)
        raise AssertionError

    async def _start(self, budget: Budget, worst: Usage, send: Send) -> asyncio.Task[Ended]:
        """Start one request once budget and provider let it; the task owns the reservation and the provider's slot."""
        while True:
            self._check_open(worst)
            with contextlib.ExitStack() as held:
                if self._doubted:
                    await queued(self._alone.acquire())
                    held.callback(self._alone.release)
                    if not self._doubted:
                        continue
                excess, alone = self._excess, self._doubted
                estimate = replace(
                    worst,
                    cost_usd=worst.cost_usd * excess,
                    prompt_tokens=math.ceil(worst.prompt_tokens * excess),
                    completion_tokens=math.ceil(worst.completion_tokens * excess),
                )
                reservation = await acquire(budget, estimate, note=False)
                held.callback(reservation.release)
                await self._limiter.acquire()
                held.callback(self._limiter.release)
                self._check_open(worst)
                if self._excess > excess or (self._doubted and not alone):
                    continue  # a bill was too high meanwhile: this call needs more of the budget
                # Only now: a call that waits for a place is not in flight, and a kill must not charge for it.
                await reservation.note()
                self._check_open(worst)  # `close` does not wait for what begins after it, and drops its connection
                work = self._request(reservation, estimate, excess, send, held.pop_all())
                return self._background(work, worst.name)

    def _check_open(self, worst: Usage) -> None:
        if self._closed.is_set():
            raise InfrastructureError(f"The client of {worst.name} is closed.")

    async def _request(
        self, reservation: Reservation, worst: Usage, excess: float, send: Send, held: contextlib.ExitStack
    ) -> Ended:
        """Make one request, settle what it cost, and give back what it held."""
        start = time.perf_counter()
        row: Usage | None = worst  # if this task is cancelled: the request may have been billed
        limit = self._timeout_s + GRACE_S
        try:
            outcome = await asyncio.wait_for(send(), limit)
            billed = outcome.usage[0] if isinstance(outcome, Recorded) else None
            billed = outcome.billed if isinstance(outcome, Lost) else billed
            if billed is not None:
                if math.isfinite(billed.cost_usd) and math.isfinite(billed.seconds):
                    row = billed
                else:
                    outcome = Lost(f"{worst.name} billed ${billed.cost_usd}, which is no amount.")
            elif isinstance(outcome, Refused):
                row = None
        except TimeoutError:
            outcome = Lost(f"{worst.name} did not answer within {limit:g} s.")
        finally:
            if row is worst:
                row = replace(worst, seconds=time.perf_counter() - start, estimated=True)
            if row is not None:
                reservation.settle(row)
                self._compare(row, worst, excess)
            held.close()
        if isinstance(outcome, Lost) and row is not None and row.estimated:
            self._lost, self._reason = self._lost + Amount.of(row), outcome.reason
        return outcome, row

    def _compare(self, row: Usage, worst: Usage, excess: float) -> None:
        """Raise the worst case of all further calls if a bill was above it."""
        billed, most = (each.prompt_tokens + each.completion_tokens for each in (row, worst))
        over = max(row.cost_usd / worst.cost_usd if worst.cost_usd else 1.0, billed / most if most else 1.0)
        if row.estimated and over <= 1 + 1e-9:  # our own count cannot show that a bill keeps to it
            return
        self._doubted = over > 1 + 1e-9  # rounding
        if self._doubted:
            self._excess = max(self._excess, excess * over)
            _log.warning(
                "%s billed $%.6g and %d tokens where its worst case was $%.6g and %d: check its max_tokens, tokenizer "
                "and price. The worst case of further calls is raised.",
                row.name, row.cost_usd, billed, worst.cost_usd, most,
            )  # fmt: skip  # the values in the order of the text
        elif row.completion_tokens > worst.completion_tokens and not self._told:
            self._told = True
            _log.warning(
                "%s billed %d output tokens, and %d were asked for at most (max_tokens): the bill is booked as it is; "
                "set max_tokens to what the model may write, its reasoning included.",
                row.name, row.completion_tokens, worst.completion_tokens,
            )  # fmt: skip  # the values in the order of the text

    async def _record_late(
        self, kind: str, request: Mapping[str, Any], task: asyncio.Task[Ended], charged: tuple[Usage, ...] = ()
    ) -> None:
        """Record an answer that came after its caller had left: it was paid, and the next caller finds it."""
        outcome, row = await task
        if self._replay is None or not isinstance(outcome, Recorded) or row is None:
            return
        await self._replay.keep(kind, request, replace(outcome, usage=(*charged, row)))

    async def _pause(self, attempt: int, wait_s: float | None) -> None:
        jitter = self._backoff_s * self._jitter.uniform(0.5, 1.5)
        if wait_s is not None:
            self._limiter.pause(wait_s)
        seconds = wait_s + jitter if wait_s is not None else min(jitter * 2**attempt, _LONGEST_BACKOFF_S)
        with contextlib.suppress(TimeoutError):  # `close` ends the pause
            await queued(asyncio.wait_for(self._closed.wait(), seconds))

    def _background(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Begin the work; `name` is that of a model or tool that is asked, "" if nothing is."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return task


def read_key(variable: str, who: str) -> str:
    """Return the key of a provider from the environment; raise MissingKey: it is not set."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise MissingKey(
            f"{who} needs a key; set the environment variable {variable}, or replay calls that were recorded."
        )
    return key
