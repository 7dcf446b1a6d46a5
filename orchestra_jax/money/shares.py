"""Shares of a run's budget among its processes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestra_jax.money.bill import added
from orchestra_jax.money.budgets import Budget, Limits, Spending
from orchestra_jax.processes import Processes


def together(states: Iterable[Mapping[str, Sequence[Any]]]) -> Budget:
    """Return one budget with what several spent (`Budget.get_state`)."""
    whole = Budget()
    whole.set_state(added(states))
    return whole


def dealt(
    whole: Limits, processes: Processes, states: Sequence[Mapping[str, Sequence[Any]]]
) -> tuple[Spending, Limits]:
    """Return what the other processes spent, and this one's limits, from every process's `Budget.get_state`."""
    own, others = states[processes.index], [*states[: processes.index], *states[processes.index + 1 :]]
    return together(others).spent, share_of(whole, processes, together(states).spent, together([own]).spent)


def share_of(whole: Limits, processes: Processes, spent: Spending, own: Spending) -> Limits:
    """Return the limits of one process: what it spent and its share of what is left.

    Args:
        spent: sum of what all processes spent.
        own: what this one spent.
    """

    def part(limit: int | None, spent: int, own: int) -> int | None:
        return None if limit is None else own + len(processes.mine(range(max(0, limit - spent))))

    usd = None if whole.usd is None else own.usd + max(0.0, whole.usd - spent.usd) / processes.count
    return Limits(usd, part(whole.tokens, spent.tokens, own.tokens), part(whole.calls, spent.calls, own.calls))
