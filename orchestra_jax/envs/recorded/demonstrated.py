"""Tools of a demonstration of the warm start: mostly those that serve the wish, else at random."""

from collections.abc import Mapping, Sequence

import numpy as np

from orchestra_jax.envs.recorded.choices import PricedExpert
from orchestra_jax.envs.recorded.offer import PYTHON, code_of
from orchestra_jax.envs.recorded.table import Evidence
from orchestra_jax.types import Task

OF_A_PROMPT = 4  # demonstrations, whose first calls differ: a distribution is learned, and the prompt is read once
_WISH_FIRST = 0.75
_SANDBOX_FIRST = 0.25
_COUNTS = {"accuracy": 0.0, "none": 0.1}  # right answers that the cost of the best model counts for


def tools_shown(
    task: Task, experts: Sequence[PricedExpert], evidence: Mapping[str, Evidence], rng: np.random.Generator
) -> list[str]:
    """Return the names of the tools in the order in which a demonstration calls them.

    Three times of four (`_WISH_FIRST`) the first is the one that is worth most: to users who want it right, or say
    nothing, by how often it is right for this kind of question and what its cost counts for (`_COUNTS`); others are
    shown the cheapest or the fastest. Of models that differ by less than a point it is any. Else the order is random:
    reinforcement learning finds out what is worth its price, and the KL to the policy of the warm start must not hold
    it to what was shown.

    If there is code to run, the sandbox is among them, and comes first in a share of `_SANDBOX_FIRST`: among a dozen
    models it would be one call in a dozen, too few for a group of rollouts to compare it with the others.
    """
    models = [experts[k] for k in rng.permutation(len(experts))]
    if (wish := task.preference.name if rng.random() < _WISH_FIRST else "") in _COUNTS:
        share = {each.name: evidence[each.name].share(task.family) for each in models}
        best = max(models, key=lambda each: share[each.name]).usd
        count = _COUNTS[wish] / best if best else 0.0
        models.sort(key=lambda each: -round(100 * (share[each.name] - count * each.usd)))
    elif wish == "low_cost":
        models.sort(key=lambda each: float(f"{each.usd:.1g}"))
    elif wish == "fast":
        models.sort(key=lambda each: round(each.seconds))
    names = [each.call.name for each in models]
    if any(spec.name == PYTHON for spec in task.tools) and code_of(task.question) is not None:
        names.insert(0 if rng.random() < _SANDBOX_FIRST else len(names), PYTHON)
    return names
