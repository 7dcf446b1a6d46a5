"""Tools of a demonstration of the warm start: at random, and three times of four those that the wish asks for."""

from collections.abc import Mapping, Sequence

import numpy as np

from orchestra_jax.envs.recorded.choices import PricedExpert
from orchestra_jax.envs.recorded.offer import PYTHON, code_of
from orchestra_jax.envs.recorded.table import Evidence
from orchestra_jax.types import Task

OF_A_PROMPT = (
    4  # demonstrations, whose first calls differ: the policy learns a distribution, and the prompt is read once
)
_WISH_FIRST = 0.75
_SANDBOX_FIRST = 0.25


def tools_shown(
    task: Task, experts: Sequence[PricedExpert], evidence: Mapping[str, Evidence], rng: np.random.Generator
) -> list[str]:
    """Return the names of the tools in the order in which a demonstration calls them.

    Three times of four (`_WISH_FIRST`) a user who wants it right is shown the model that is right most often for this
    kind of question, one who wants it cheap or fast the cheapest or fastest; of models that differ little, any. Else,
    and without a wish, the order is random: reinforcement learning finds out what is worth its price, and the KL to the
    policy of the warm start must not hold it to what was shown.

    If there is code to run, the sandbox is among them, and comes first in a share of `_SANDBOX_FIRST`: among a dozen
    models it would be one call in a dozen, too few for a group of rollouts to compare it with the others.
    """
    models = [experts[k] for k in rng.permutation(len(experts))]
    match task.preference.name if rng.random() < _WISH_FIRST else "":
        case "accuracy":
            models.sort(key=lambda each: -round(20 * evidence[each.name].share(task.family)))
        case "low_cost":
            models.sort(key=lambda each: float(f"{each.usd:.1g}"))
        case "fast":
            models.sort(key=lambda each: round(each.seconds))
    names = [each.call.name for each in models]
    if any(spec.name == PYTHON for spec in task.tools) and code_of(task.question) is not None:
        names.insert(0 if rng.random() < _SANDBOX_FIRST else len(names), PYTHON)
    return names
