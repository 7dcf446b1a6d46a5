"""Reservations: the worst case of a call is set aside before it is made, and replaced by what it cost."""

import asyncio
import contextlib

from orchestra_jax.io.stopwatch import queued
from orchestra_jax.money.budgets import Amount, Budget, BudgetExceeded
from orchestra_jax.types import Usage


class Reservation:
    """A worst case that is set aside until the call ends."""

    _granted: "asyncio.Future[None]"  # of one that has to wait
    _number: int | None = None  # in the journal

    def __init__(self, budget: Budget, worst: Usage) -> None:
        self._budget, self._worst, self._name, self._amount = budget, worst, worst.name, Amount.of(worst)
        self._open = False

    async def note(self) -> None:
        """Put the call into the journal, on the disk if it may cost money; the request leaves after this.

        Raises:
            BudgetExceeded: the journal cannot be written (scope ""), or refuses; the caller releases the reservation.
        """
        try:
            if (journal := self._budget.journal) is None:
                return
            with self._budget._lock:
                self._number = journal.reserve(self._worst)
            await queued(journal.durable(self._number, self._worst))
        except OSError as error:
            raise _unwritable(error) from error

    def settle(self, row: Usage) -> None:
        """Replace the worst case by what was billed; raise RuntimeError: it was settled or released before."""
        if not self._open:
            raise RuntimeError(f"This reservation of {self._name!r} is settled or released; acquire one per call.")
        billed = Amount.of(row)
        with self._budget._lock:
            for level in self._budget._chain:
                level._spent += billed
                level._spent_by[row.name] = level._spent_by.get(row.name, Amount()) + billed
            _end(self, row)

    def release(self) -> None:
        """Give the worst case back, as nothing was billed; do nothing after `settle`."""
        if self._open:
            with self._budget._lock:
                _end(self, None)


async def acquire(budget: Budget, worst: Usage, *, note: bool = True) -> Reservation:
    """Set the worst case of a call aside, in a budget and all its parents, or nowhere.

    Waits as long as only calls in flight are in the way: many calls at once rarely cost their worst case. A caller
    that waits must hold no reservation, or two of them could wait for each other. Those that wait for the same
    level go on in their order. A call that may cost money is on the disk, in the journal, when this returns.

    Args:
        worst: the most that the call can cost; `name`, tokens and `cost_usd` count.
        note: False where the call has to wait for something else: it is not in the journal before `note`.

    Raises:
        BudgetExceeded: it does not fit beside what is spent, or the journal cannot be written (scope "").
    """
    call = Reservation(budget, worst)
    with budget._lock:
        blocked = _set_aside(call)
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


def _set_aside(call: Reservation) -> Budget | None:
    """Set a call aside at all levels; else return the outermost level at which calls in flight are in its way.

    The caller holds the lock, here and below.

    Raises:
        BudgetExceeded: it does not fit beside what is spent.
    """
    for reserved in (False, True):
        for level in reversed(call._budget._chain):
            over = _over(level, level._spent + call._amount + (level._reserved if reserved else Amount()))
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
    for level in call._budget._chain:
        level._reserved += call._amount
        level._reserved_by[call._name] = level._reserved_by.get(call._name, Amount()) + call._amount
    call._open = True
    return None


def _over(budget: Budget, used: Amount) -> tuple[str, float, float] | None:
    """Return (unit, used, limit) of the first limit that `used` exceeds; dollars are compared rounded."""
    for what in ("usd", "tokens", "calls"):
        limit, amount = getattr(budget.limits, what), getattr(used.rounded(), what)
        if limit is not None and amount > limit:
            return what, amount, limit
    return None


def _end(call: Reservation, billed: Usage | None) -> None:
    """End the reservation of a call, and let others go on."""
    call._open = False
    budget = call._budget
    if call._number is not None and (journal := budget.journal) is not None:
        with contextlib.suppress(OSError):  # then its worst case stands there
            journal.end(call._number, billed)
    for level in budget._chain:
        level._reserved -= call._amount
        level._reserved_by[call._name] -= call._amount
        if not level._reserved_by[call._name].calls:
            del level._reserved_by[call._name]
    for level in budget._chain:
        _admit(level)


def _admit(level: Budget) -> None:
    """Let the calls that wait at this level go on, until calls in flight are in the way of one."""
    while level._waiting:
        call = level._waiting[0]
        if not call._granted.done():
            try:
                blocked = _set_aside(call)
            except BudgetExceeded as error:
                call._granted.set_exception(error)
            else:
                if blocked is level:
                    return
                if blocked is None:
                    call._granted.set_result(None)
                else:
                    blocked._waiting.append(call)
        level._waiting.popleft()


def _unwritable(error: OSError) -> BudgetExceeded:
    return BudgetExceeded(f"The run's bill cannot be written ({error}), so nothing more is paid: free its disk.", "")
