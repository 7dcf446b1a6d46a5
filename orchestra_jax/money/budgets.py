"""Hard limits on what may be spent, checked before every call with its worst case.

A run, a step and a trajectory each have a budget, and each is the parent of the next. A call reserves its worst case at
all of them or at none, and settles with what it did cost. So no limit is ever exceeded as long as no call costs more
than the worst case that was reserved for it, however many calls are in flight.

Budgets count what leaves the machine: tools, judges and user simulators, not the policy's own tokens. A replayed call
is not paid for and reserves nothing.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from orchestra_jax.io.stopwatch import queued
from orchestra_jax.money.journal import Journal
from orchestra_jax.types import Usage


class BudgetExceeded(Exception):  # noqa: N818  named like the fact it states
    """The next call could cost more than is left, so it was not made.

    Attributes:
        scope: name of the budget that refused.
    """

    def __init__(self, message: str, scope: str) -> None:
        super().__init__(message, scope)  # all arguments, or it could not be pickled
        self.scope = scope

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that may be spent; None: no limit.

    Attributes:
        usd: dollars.
        tokens: prompt and completion tokens together.
        calls: calls that leave the machine, each billed retry one of them.
    """

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            limit = getattr(self, name)
            if limit is not None and not limit >= 0:
                raise ValueError(f"A budget's limit of {name} must be at least 0, not {limit}.")


@dataclass(frozen=True, slots=True)
class Spending:
    """An amount of dollars (the exact sum, rounded once), tokens and calls."""

    usd: float = 0.0
    tokens: int = 0
    calls: int = 0


@dataclass(frozen=True, slots=True)
class _Amount:
    """A Spending with exact dollars: an amount that was added can be taken away again without a rest."""

    usd: Fraction = Fraction(0)
    tokens: int = 0
    calls: int = 0

    @classmethod
    def of(cls, row: Usage) -> "_Amount":
        return cls(Fraction(row.cost_usd), row.prompt_tokens + row.completion_tokens, 1)

    def __add__(self, other: "_Amount") -> "_Amount":
        return _Amount(self.usd + other.usd, self.tokens + other.tokens, self.calls + other.calls)

    def __sub__(self, other: "_Amount") -> "_Amount":
        return _Amount(self.usd - other.usd, self.tokens - other.tokens, self.calls - other.calls)

    def rounded(self) -> Spending:
        return Spending(float(self.usd), self.tokens, self.calls)


def total(amounts: Sequence[Spending]) -> Spending:
    """Return the sum of amounts."""
    usd, tokens, calls = (sum(getattr(amount, name) for amount in amounts) for name in ("usd", "tokens", "calls"))
    return Spending(float(usd), tokens, calls)


class Budget:
    """Limits, what was spent, and the worst cases of the calls in flight.

    Calls are made in one event loop; other threads may read meanwhile.

    Attributes:
        limits: the most that may be spent here; the parents' limits hold as well.
        name: "run", "step" or "trajectory", for errors.
        parent: the budget that this one is a part of.
        journal: bill in which every call is noted before it is made; only the outermost budget is given one.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        name: str = "run",
        parent: "Budget | None" = None,
        journal: Journal | None = None,
    ) -> None:
        self.limits, self.name, self.parent = limits or Limits(), name, parent
        self.journal: Journal | None = parent.journal if parent else journal
        self._chain: tuple[Budget, ...] = (self, *(parent._chain if parent else ()))
        # One lock for the whole tree: a call is reserved at all levels or at none.
        self._lock: threading.Lock = parent._lock if parent else threading.Lock()
        self._spent, self._reserved = _Amount(), _Amount()
        self._spent_by: dict[str, _Amount] = {}
        self._reserved_by: dict[str, _Amount] = {}
        self._waiting: deque[Reservation] = deque()  # calls that only calls in flight at this level are in the way of

    @property
    def spent(self) -> Spending:
        """Sum of what the settled calls cost."""
        with self._lock:
            return self._spent.rounded()

    @property
    def reserved(self) -> Spending:
        """Sum of the worst cases of the calls in flight."""
        with self._lock:
            return self._reserved.rounded()

    def by_name(self) -> dict[str, Spending]:
        """Return what was spent, by model or tool."""
        with self._lock:
            return {name: amount.rounded() for name, amount in self._spent_by.items()}

    async def acquire(self, worst: Usage, *, note: bool = True) -> "Reservation":
        """Set the worst case of a call aside, here and in all parents, or nowhere.

        Waits as long as only calls in flight are in the way: many calls at once rarely cost their worst case. A caller
        that waits must hold no reservation, or two of them could wait for each other. Those that wait for the same
        level go on in their order. A call that may cost money is on the disk, in the journal, when this returns.

        Args:
            worst: the most that the call can cost; `name`, tokens and `cost_usd` count.
            note: False where the call has to wait for something else: it is not in the journal before `note`.

        Raises:
            BudgetExceeded: it does not fit beside what is spent, or the journal cannot be written (scope "").
        """
        call = Reservation(self, worst)
        with self._lock:
            blocked = self._try(call)
            if blocked is not None:
                call._granted = asyncio.get_running_loop().create_future()
                blocked._waiting.append(call)
        try:
            if blocked is not None:
                await queued(call._granted)
            if note:
                await call.note()
        except BaseException:
            call.release()  # it may have been granted meanwhile
            raise
        return call

    def get_state(self) -> dict[str, Any]:
        """Return what was spent at this level, as JSON for a checkpoint.

        Calls in flight count at their worst case: they are paid for, and a restored run cannot know how much.
        """
        with self._lock:
            names = {**self._spent_by, **self._reserved_by}
            none = _Amount()
            amounts = {name: self._spent_by.get(name, none) + self._reserved_by.get(name, none) for name in names}
        return {name: [str(amount.usd), amount.tokens, amount.calls] for name, amount in amounts.items()}

    def set_state(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Replace what was spent at this level by what `get_state` returned; the parents have states of their own."""
        amounts = {
            name: _Amount(Fraction(usd), int(tokens), int(calls)) for name, (usd, tokens, calls) in state.items()
        }
        with self._lock:
            self._spent_by = amounts
            self._spent = sum(amounts.values(), _Amount())

    # All below: the caller holds the lock.

    def _over(self, used: _Amount) -> tuple[str, float, float] | None:
        """Return (unit, used, limit) of the first limit that `used` exceeds; dollars are compared rounded."""
        for what in ("usd", "tokens", "calls"):
            limit, amount = getattr(self.limits, what), getattr(used.rounded(), what)
            if limit is not None and amount > limit:
                return what, amount, limit
        return None

    def _try(self, call: "Reservation") -> "Budget | None":
        """Set a call aside at all levels; else return the outermost level at which calls in flight are in its way.

        Raises:
            BudgetExceeded: it does not fit beside what is spent.
        """
        for reserved in (False, True):
            for level in reversed(self._chain):
                over = level._over(level._spent + call._amount + (level._reserved if reserved else _Amount()))
                if over is None:
                    continue
                if reserved:
                    return level
                what, would_be, limit = over
                unit = {"usd": "dollars"}.get(what, what)
                raise BudgetExceeded(
                    f"With the next call of {call._name!r} the {level.name} could come to {would_be:.6g} {unit}, but "
                    f"its budget is {limit:.6g}; raise it to go on.",
                    level.name,
                )
        for level in self._chain:
            level._reserved += call._amount
            level._reserved_by[call._name] = level._reserved_by.get(call._name, _Amount()) + call._amount
        call._open = True
        return None

    def _free(self, call: "Reservation", billed: Usage | None) -> None:
        call._open = False
        if self.journal is not None and call._number is not None:
            with contextlib.suppress(OSError):  # then its worst case stands there
                self.journal.end(call._number, billed)
        for level in self._chain:
            level._reserved -= call._amount
            level._reserved_by[call._name] -= call._amount
            if not level._reserved_by[call._name].calls:
                del level._reserved_by[call._name]
        for level in self._chain:
            level._admit()

    def _admit(self) -> None:
        """Let the calls that wait at this level go on, until calls in flight are in the way of one."""
        while self._waiting:
            call = self._waiting[0]
            if not call._granted.done():
                try:
                    blocked = call._budget._try(call)
                except BudgetExceeded as error:
                    call._granted.set_exception(error)
                else:
                    if blocked is self:
                        return
                    if blocked is None:
                        call._granted.set_result(None)
                    else:
                        blocked._waiting.append(call)
            self._waiting.popleft()


def _unwritable(error: OSError) -> BudgetExceeded:
    return BudgetExceeded(f"The run's bill cannot be written ({error}), so nothing more is paid: free its disk.", "")


class Reservation:
    """A worst case that is set aside until the call ends."""

    _granted: "asyncio.Future[None]"  # of one that has to wait
    _number: int | None = None  # in the journal

    def __init__(self, budget: Budget, worst: Usage) -> None:
        self._budget, self._worst, self._name, self._amount = budget, worst, worst.name, _Amount.of(worst)
        self._open = False

    async def note(self) -> None:
        """Put the call into the journal, on the disk if it may cost money; the request leaves after this.

        Raises:
            BudgetExceeded: the journal cannot be written (scope ""); the worst case is given back.
        """
        journal = self._budget.journal
        if journal is None or self._number is not None:
            return
        try:
            with self._budget._lock:
                self._number = journal.reserve(self._worst)
            if self._worst.cost_usd:
                await queued(journal.durable())
        except OSError as error:
            self.release()
            raise _unwritable(error) from error

    def settle(self, row: Usage) -> None:
        """Replace the worst case by what was billed; raise RuntimeError: it was settled or released before."""
        if not self._open:
            raise RuntimeError(f"This reservation of {self._name!r} is settled or released; acquire one per call.")
        billed = _Amount.of(row)
        with self._budget._lock:
            for level in self._budget._chain:
                level._spent += billed
                level._spent_by[row.name] = level._spent_by.get(row.name, _Amount()) + billed
            self._budget._free(self, row)

    def release(self) -> None:
        """Give the worst case back, as nothing was billed; do nothing after `settle`."""
        if self._open:
            with self._budget._lock:
                self._budget._free(self, None)
