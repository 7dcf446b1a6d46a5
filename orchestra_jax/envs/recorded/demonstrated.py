"""Tools of a demonstration of the warm start: mostly those that serve the wish, else at random."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from orchestra_jax.envs.recorded.choices import PricedExpert
from orchestra_jax.envs.recorded.offer import PYTHON, code_of
from orchestra_jax.envs.recorded.table import Evidence
from orchestra_jax.types import Task

OF_A_PROMPT = 4  # demonstrations, whose first calls differ: a distribution is learned, and the prompt is read once
_WISH_FIRST = 0.75
_SANDBOX_FIRST = 0.25
_TENFOLD = {"accuracy": 0.02, "none": 0.08, "low_cost": 0.2}  # share of right answers that a tenfold price counts for
_LEAST_USD = 1e-7  # a free model counts as this cheap


def tools_shown(
    task: Task, experts: Sequence[PricedExpert], evidence: Mapping[str, Evidence], rng: np.random.Generator
) -> list[str]:
    """Return the names of the tools in the order in which a demonstration calls them.

    Three times of four (`_WISH_FIRST`) the first is the one that is worth most: its share of right answers for this
    kind of question, less what its price counts for under the wish (`_TENFOLD`). A model's own line tells that, so that
    a small policy can find the best line without comparing one with another; users in a hurry are shown the fastest. Of
    models that differ by less than a point it is any. Else the order is random: reinforcement learning finds out what
    is worth its price, and the KL to the policy of the warm start must not hold it to what was shown.

    If there is code to run, the sandbox is among them, and comes first in a share of `_SANDBOX_FIRST`: among a dozen
    models it would be one call in a dozen, too few for a group of rollouts to compare it with the others.
    """
    models = [experts[k] for k in rng.permutation(len(experts))]
    if (wish := task.preference.name if rng.random() < _WISH_FIRST else "") in _TENFOLD:

        def worth(model: PricedExpert) -> float:
            dear = _TENFOLD[wish] * math.log10(max(model.usd, _LEAST_USD))
            return evidence[model.name].share(task.family) - dear

        models.sort(key=lambda model: -round(100 * worth(model)))
    elif wish == "fast":
        models.sort(key=lambda model: round(model.seconds))
    names = [each.call.name for each in models]
    if any(spec.name == PYTHON for spec in task.tools) and code_of(task.question) is not None:
        names.insert(0 if rng.random() < _SANDBOX_FIRST else len(names), PYTHON)
    return names
