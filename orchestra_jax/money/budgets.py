"""Hard limits on what may be spent, checked before every call with its worst case.

A run, a step and a trajectory each have a budget, and each is the parent of the next. A call reserves its worst case at
all of them or at none (`money.reservations`), and settles with what it did cost. So no limit is ever exceeded as long
as no call costs more than the worst case that was reserved for it, however many calls are in flight.

Budgets count paid calls that leave the machine, of tools, judges and user simulators (`money.paid.PaidCalls`), and the
price per call that a tool states (`tools.entries.at_price`), but not the policy's own tokens. A replayed call reserves
nothing.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra_jax.types import Usage

if TYPE_CHECKING:
    from orchestra_jax.money.journal import CallJournal, Journal


class BudgetExceeded(Exception):  # noqa: N818  named like the fact it states
    """Raised instead of a call that could cost more than is left.

    Attributes:
        scope: name of the budget that refused.
    """

    usage: tuple[Usage, ...] = ()  # what the same call had paid before

    def __init__(self, message: str, scope: str) -> None:
        super().__init__(message, scope)  # all arguments, or it could not be pickled
        self.scope = scope

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that may be spent; None: no limit."""

    usd: float | None = None
    tokens: int | None = None  # prompt and completion tokens together
    calls: int | None = None  # calls that leave the machine, each billed retry one of them

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
class Amount:
    """Exact dollars, tokens and calls: what is added and taken away again leaves no rounding error."""

    usd: Fraction = Fraction(0)
    tokens: int = 0
    calls: int = 0

    @classmethod
    def of(cls, row: Usage) -> "Amount":
        """Return the amount of one call."""
        return cls(Fraction(row.cost_usd), row.prompt_tokens + row.completion_tokens, 1)

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.usd + other.usd, self.tokens + other.tokens, self.calls + other.calls)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.usd - other.usd, self.tokens - other.tokens, self.calls - other.calls)

    def rounded(self) -> Spending:
        """Return the amount with its dollars rounded once."""
        return Spending(float(self.usd), self.tokens, self.calls)


def total(amounts: Sequence[Spending]) -> Spending:
    """Return the sum of amounts."""
    usd, tokens, calls = (sum(getattr(amount, name) for amount in amounts) for name in ("usd", "tokens", "calls"))
    return Spending(float(usd), tokens, calls)


def bill_file(directory: Path, index: int) -> Path:
    """Return the file of a process's bill; the first has index 0."""
    return directory / ("spent.jsonl" if index == 0 else f"spent-{index}.jsonl")


class Budget:
    """Limits, what was spent, and the worst cases of the calls in flight.

    Calls are made in one event loop; other threads may read meanwhile.

    Attributes:
        limits: the most that may be spent here; the parents' limits hold as well.
        name: "run", "step" or "trajectory", for errors.
        parent: the budget that this one is a part of.

    Args:
        bill: file in which every call is noted before it is made; only the outermost budget is given one.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        name: str = "run",
        parent: "Budget | None" = None,
        bill: Path | None = None,
    ) -> None:
        self.limits, self.name, self.parent = limits or Limits(), name, parent
        self._bill = bill
        self._journal: Journal | None = None
        self._chain: tuple[Budget, ...] = (self, *(parent._chain if parent else ()))
        # One lock for the whole tree: a call is reserved at all levels or at none.
        self._lock: threading.Lock = parent._lock if parent else threading.Lock()
        self._spent, self._reserved = Amount(), Amount()
        self._spent_by: dict[str, Amount] = {}
        self._reserved_by: dict[str, Amount] = {}
        self._waiting: deque[Any] = deque()  # reservations that only calls in flight at this level are in the way of

    @property
    def journal(self) -> "CallJournal | None":
        """The bill, which the first call opens; None: there is none. Raises OSError where it cannot be written."""
        if self.parent is not None:
            return self.parent.journal
        if self._journal is None and self._bill is not None:
            from orchestra_jax.money.journal import Journal  # only now: most runs of a generated world pay for nothing

            self._journal = Journal(self._bill)
        return self._journal

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

    def get_state(self) -> dict[str, Any]:
        """Return what was spent at this level, as JSON for a checkpoint.

        Calls in flight count at their worst case: they are paid for, and a restored run cannot know how much.
        """
        with self._lock:
            names = {**self._spent_by, **self._reserved_by}
            none = Amount()
            amounts = {name: self._spent_by.get(name, none) + self._reserved_by.get(name, none) for name in names}
        return {name: [str(amount.usd), amount.tokens, amount.calls] for name, amount in amounts.items()}

    def set_state(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Replace what was spent at this level by what `get_state` returned; the parents have states of their own."""
        amounts = {name: Amount(Fraction(usd), int(tokens), int(calls)) for name, (usd, tokens, calls) in state.items()}
        with self._lock:
            self._spent_by = amounts
            self._spent = sum(amounts.values(), Amount())

    def close(self) -> None:
        """Close the bill, if one was opened; every call has ended."""
        if self._journal is not None:
            self._journal.close()
