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
_WORTH_USD = 0.03  # a right answer's worth to a user without a wish


def tools_shown(
    task: Task, experts: Sequence[PricedExpert], evidence: Mapping[str, Evidence], rng: np.random.Generator
) -> list[str]:
    """Return the names of the tools in the order in which a demonstration calls them.

    Three times of four (`_WISH_FIRST`) a user who wants it right is shown the model that is right most often for this
    kind of question, one who wants it cheap or fast the cheapest or fastest, and one without a wish the best value at
    `_WORTH_USD` for a right answer; of models that differ little, any. Else the order is random: reinforcement learning
    finds out what is worth its price, and the KL to the policy of the warm start must not hold it to what was shown.

    If there is code to run, the sandbox is among them, and comes first in a share of `_SANDBOX_FIRST`: among a dozen
    models it would be one call in a dozen, too few for a group of rollouts to compare it with the others.
    """
    models = [experts[k] for k in rng.permutation(len(experts))]
    share = {each.name: evidence[each.name].share(task.family) for each in models}
    match task.preference.name if rng.random() < _WISH_FIRST else "":
        case "accuracy":
            models.sort(key=lambda each: -round(20 * share[each.name]))
        case "none":
            models.sort(key=lambda each: -round(_WORTH_USD * share[each.name] - each.usd, 3))
        case "low_cost":
            models.sort(key=lambda each: float(f"{each.usd:.1g}"))
        case "fast":
            models.sort(key=lambda each: round(each.seconds))
    names = [each.call.name for each in models]
    if any(spec.name == PYTHON for spec in task.tools) and code_of(task.question) is not None:
        names.insert(0 if rng.random() < _SANDBOX_FIRST else len(names), PYTHON)
    return names
