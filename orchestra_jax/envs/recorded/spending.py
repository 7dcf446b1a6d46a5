"""What a recorded call takes from a trajectory's allowance.

Nothing leaves the machine, so that the bill of the run stays empty; but budget.trajectory_usd refuses a call as it
would refuse a paid one.
"""

from weakref import WeakKeyDictionary

from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.types import Usage

_UNLIMITED = Limits()
_ALLOWANCES: "WeakKeyDictionary[Budget, Budget]" = WeakKeyDictionary()  # by the trajectory's budget; without parents


async def spend(budget: Budget, row: Usage) -> None:
    """Takes a call, with its dollars by the list that budgets count by, from what `budget` alone allows.

    Raises:
        BudgetExceeded: it does not fit; nothing is taken.
    """
    if budget.limits == _UNLIMITED:
        return
    if (allowance := _ALLOWANCES.get(budget)) is None:
        allowance = _ALLOWANCES[budget] = Budget(budget.limits, name=budget.name)
    (await allowance.acquire(row)).settle(row)
