"""Tools of a demonstration of the warm start: those that serve the wish, the better the more often."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from orchestra_jax.envs.recorded.choices import PricedExpert
from orchestra_jax.envs.recorded.offer import PYTHON, code_of
from orchestra_jax.envs.recorded.table import Evidence
from orchestra_jax.types import Task

OF_A_PROMPT = 4  # demonstrations, spread evenly over what may come first: a distribution is learned, a prompt read once
_TENFOLD = {"accuracy": 0.02, "none": 0.08, "low_cost": 0.2}  # share of right answers that a tenfold price counts for
_SLOW = 0.2  # share of right answers that ten times the seconds count for, where users are in a hurry
_EVEN = 0.007  # share of right answers by which a model that comes first e times as often is better
_SANDBOX_FIRST = 0.9
_LEAST_USD = 1e-7  # a free model counts as this cheap
_LEAST_SECONDS = 0.1


def tools_shown(
    task: Task, experts: Sequence[PricedExpert], evidence: Mapping[str, Evidence], place: float
) -> list[str]:
    """Return the tools in the order in which a demonstration calls them.

    A model is worth its share of right answers for this kind of question, less what its price (`_TENFOLD`), or for
    users in a hurry its seconds (`_SLOW`), count for under the wish. A model's own line tells that, so that a small
    policy can find the best line without comparing one with another. The first call is drawn by the softmax of that
    worth: a policy learns more from how good the near rivals of the best model are than from the best one alone. Under
    other wishes all models are equal.

    If there is code to run, the sandbox comes first in a share of `_SANDBOX_FIRST`.

    Args:
        place: where in the distribution of first calls this demonstration lies, from 0 to 1.
    """
    wish = task.preference.name

    def worth(model: PricedExpert) -> float:
        if wish == "fast":
            return evidence[model.name].share(task.family) - _SLOW * math.log10(max(model.seconds, _LEAST_SECONDS))
        if wish in _TENFOLD:
            return evidence[model.name].share(task.family) - _TENFOLD[wish] * math.log10(max(model.usd, _LEAST_USD))
        return 0.0

    worths = np.array([worth(model) for model in experts])
    first = np.exp((worths - worths.max()) / _EVEN)
    shares = dict(zip((model.call.name for model in experts), first / first.sum(), strict=True))
    if any(spec.name == PYTHON for spec in task.tools) and code_of(task.question) is not None:
        shares = {name: (1 - _SANDBOX_FIRST) * share for name, share in shares.items()} | {PYTHON: _SANDBOX_FIRST}
    names = sorted(shares, key=shares.__getitem__, reverse=True)
    ends = np.cumsum([shares[name] for name in names])
    chosen = names[min(int(np.searchsorted(ends, place, side="right")), len(names) - 1)]
    return [chosen, *(name for name in names if name != chosen)]
